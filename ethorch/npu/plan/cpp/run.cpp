// Run steps on one machine, or for a batch of images.
#include <atomic>
#include <chrono>
#include <new>

#include "steps.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

bool run_step(const Run &run, const Step &s) {
    switch (s.kind) {
    case KIND_COPY: run_copy(run, *(const Copy *)s.what); return true;
    case KIND_TRANSFER: return run_transfer(run, *(const Transfer *)s.what);
    case KIND_CONV: run_conv(run, *(const Conv *)s.what); return true;
    case KIND_DEPTHWISE: run_depthwise(run, *(const Depthwise *)s.what); return true;
    case KIND_PRODUCT: run_product(run, *(const Product *)s.what); return true;
    case KIND_POOL: run_pool(run, *(const Pool *)s.what); return true;
    case KIND_ELEMENTWISE: return run_elementwise(run, *(const Elementwise *)s.what);
    case KIND_RESIZE: run_resize(run, *(const Resize *)s.what); return true;
    case KIND_MOVE: run_move(run, *(const Move *)s.what); return true;
    case KIND_DOT: run_dot(run, *(const Dot *)s.what); return true;
    default: return true;
    }
}

int64_t nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

// Location of a tensor of every image: in an array of all images, and in a region.
struct Place {
    uint8_t *images;
    int64_t bytes, offset;
    int32_t region, pad;
};

// Buffers that a thread reuses between calls.
EXPORT Buffers *ethorch_new_buffers() { return new (std::nothrow) Buffers; }
EXPORT void ethorch_free_buffers(Buffers *buffers) { delete buffers; }

// Run steps from first. Return the number of the first step that cannot run, or count; -1 if memory is exhausted.
// nanoseconds[k], unless null, receives the duration of step k.
EXPORT int64_t ethorch_run(const Step *steps, int64_t first, int64_t count, const Machine *machine, Buffers *buffers, int64_t *times) {
    const Run run{*machine, *buffers};
    try {
        int64_t before = times ? nanoseconds() : 0;
        for (int64_t k = first; k < count; k++) {
            if (!run_step(run, steps[k])) return k;
            if (times) {
                const int64_t now = nanoseconds();
                times[k] = now - before, before = now;
            }
        }
    } catch (const std::bad_alloc &) {
        return -1;
    }
    return count;
}

// Run images from a counter shared by threads, at most ``most`` of them.
// Return count, or the result of ethorch_run for an image that could not run; *image is its number.
EXPORT int64_t ethorch_run_images(
    const Step *steps, int64_t count, const Machine *machine, Buffers *buffers, const Place *in, int64_t ins, const Place *out,
    int64_t outs, int64_t *next, int64_t images, int64_t most, int64_t *image) {
    for (int64_t done = 0; done < most; done++) {
        const int64_t i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        *image = i;
        if (i >= images) return count;
        for (int64_t k = 0; k < ins; k++) memcpy(machine->region[in[k].region] + in[k].offset, in[k].images + i * in[k].bytes, in[k].bytes);
        const int64_t end = ethorch_run(steps, 0, count, machine, buffers, nullptr);
        if (end != count) return end;
        for (int64_t k = 0; k < outs; k++) memcpy(out[k].images + i * out[k].bytes, machine->region[out[k].region] + out[k].offset, out[k].bytes);
    }
    return count;
}

// Sizes of the structs, in the order of ethorch/npu/plan/layout.py; 0 after the last.
EXPORT int ethorch_size(int which) {
    const int sizes[] = {sizeof(Map), sizeof(Stage), sizeof(Window), sizeof(Copy), sizeof(Transfer), sizeof(Conv), sizeof(Depthwise),
        sizeof(Product), sizeof(Pool), sizeof(Elementwise), sizeof(Resize), sizeof(Move), sizeof(Dot), sizeof(Step), sizeof(Machine), sizeof(Place)};
    return which < (int)(sizeof sizes / sizeof *sizes) ? sizes[which] : 0;
}
