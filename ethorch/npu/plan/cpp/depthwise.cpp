// Depthwise convolutions: vectors of adjacent channels, in the narrowest type with exact sums.
#include "output.h"
#include "simd.h"
#include "steps.h"

namespace {

constexpr int64_t BAND_BYTES = 3 << 17;

template <class T>
struct Vector;
template <>
struct Vector<float> {
    typedef vf32 type;
};
template <>
struct Vector<int32_t> {
    typedef vi32 type;
};

inline void put(int32_t *to, vf32 v) { store(to, __builtin_convertvector(v, vi32)); }
inline void put(int32_t *to, vi32 v) { store(to, v); }

// Several pixels of a row, VECTORS vectors of channels.
template <class T, int PIXELS, int VECTORS>
inline void tile(const T *in, int64_t step, const int64_t *taps, int count, const T *weights, const T *start, int64_t depth, int32_t *sums) {
    typename Vector<T>::type acc[PIXELS][VECTORS];
#pragma GCC unroll 4
    for (int x = 0; x < PIXELS; x++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) acc[x][v] = load(start + v * LANES);
    for (int k = 0; k < count; k++) {
        const T *p = in + taps[k], *w = weights + k * depth;
#pragma GCC unroll 4
        for (int x = 0; x < PIXELS; x++)
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++) acc[x][v] += load(p + x * step + v * LANES) * load(w + v * LANES);
    }
    for (int x = 0; x < PIXELS; x++)
        for (int v = 0; v < VECTORS; v++) put(sums + x * depth + v * LANES, acc[x][v]);
}

template <class T, int VECTORS>
inline void row(const T *in, int64_t step, const int64_t *taps, int count, const T *weights, const T *start, int64_t depth, int width, int32_t *sums) {
    int x = 0;
    for (; x + 4 <= width; x += 4) tile<T, 4, VECTORS>(in + x * step, step, taps, count, weights, start, depth, sums + x * depth);
    for (; x < width; x++) tile<T, 1, VECTORS>(in + x * step, step, taps, count, weights, start, depth, sums + x * depth);
}

std::vector<int64_t> taps_of(const Window &w, int64_t stride, int64_t depth) {
    std::vector<int64_t> taps;
    for (int ky = 0; ky < w.kh; ky++)
        for (int kx = 0; kx < w.kw; kx++) taps.push_back(ky * w.dy * stride + kx * w.dx * depth);
    return taps;
}

template <class T>
int band_rows(const Depthwise &d) {
    const int64_t bytes = d.window.padded_w * d.padded_depth * (int64_t)sizeof(T) * d.window.sy;
    return (int)std::max<int64_t>(1, std::min<int64_t>(d.stage.height, BAND_BYTES / std::max<int64_t>(bytes, 1)));
}

template <class T>
void depthwise(const Run &run, const Depthwise &d) {
    const Window &w = d.window;
    const Stage &s = d.stage;
    const int64_t depth = d.padded_depth;
    const int most = band_rows<T>(d);
    Rows<T> rows(run, w, depth, (T)w.in.zero_point, most);
    const std::vector<int64_t> taps = taps_of(w, rows.stride, depth);
    Output output(run, s);
    int32_t *sums = run.buffers.of<int32_t>(run.buffers.sums, s.width * depth);
    const T *weights = (const T *)d.weights, *start = (const T *)d.start;
    for (int first = 0; first < s.height; first += most) {
        const int n = std::min(most, s.height - first);
        rows.read(first, n);
        for (int y = 0; y < n; y++) {
            const T *in = rows.data + (int64_t)y * w.sy * rows.stride;
            int64_t c = 0;
            for (; c + 2 * LANES <= depth; c += 2 * LANES)
                row<T, 2>(in + c, w.sx * depth, taps.data(), (int)taps.size(), weights + c, start + c, depth, s.width, sums + c);
            for (; c < depth; c += LANES)
                row<T, 1>(in + c, w.sx * depth, taps.data(), (int)taps.size(), weights + c, start + c, depth, s.width, sums + c);
            output.rows(first + y, 1, sums, depth);
        }
    }
    output.close();
}

void depthwise_wide(const Run &run, const Depthwise &d) {
    const Window &w = d.window;
    const Stage &s = d.stage;
    const int64_t depth = d.padded_depth;
    const int most = band_rows<int64_t>(d);
    Rows<int64_t> rows(run, w, depth, w.in.zero_point, most);
    const std::vector<int64_t> taps = taps_of(w, rows.stride, depth);
    Output output(run, s);
    int64_t *sums = run.buffers.of<int64_t>(run.buffers.sums, s.width * depth);
    const int64_t *weights = (const int64_t *)d.weights;
    for (int first = 0; first < s.height; first += most) {
        const int n = std::min(most, s.height - first);
        rows.read(first, n);
        for (int y = 0; y < n; y++) {
            std::fill(sums, sums + s.width * depth, 0);
            for (size_t k = 0; k < taps.size(); k++)
                for (int x = 0; x < s.width; x++) {
                    const int64_t *in = rows.data + (int64_t)y * w.sy * rows.stride + (int64_t)x * w.sx * depth + taps[k];
                    for (int c = 0; c < s.depth; c++) sums[x * depth + c] += in[c] * weights[k * depth + c];
                }
            output.rows(first + y, 1, sums, depth);
        }
    }
    output.close();
}

}  // namespace

void run_depthwise(const Run &run, const Depthwise &d) {
    if (d.sum == SUM_FLOAT)
        depthwise<float>(run, d);
    else if (d.sum == SUM_INT32)
        depthwise<int32_t>(run, d);
    else
        depthwise_wide(run, d);
}
