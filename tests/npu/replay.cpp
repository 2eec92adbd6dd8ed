// Runs a plan that tests/npu/replay.py has written to a file, on the CPU this is compiled for.
//
//     replay FILE RESULT      leaves the regions' bytes, one after the other, in RESULT
//     replay                  prints the sizes of the plan's structs
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

extern "C" {
int ethorch_size(int which);
void *ethorch_new_buffers();
void ethorch_free_buffers(void *buffers);
int64_t ethorch_run(const void *steps, int64_t first, int64_t count, const void *machine, void *buffers, int64_t *times);
}

static int64_t number(FILE *file) {
    int64_t value;
    if (fread(&value, sizeof value, 1, file) != 1) exit(3);
    return value;
}

int main(int count, char **arguments) {
    if (count < 3) {
        for (int k = 0; ethorch_size(k); k++) printf("%d\n", ethorch_size(k));
        return 0;
    }
    FILE *file = fopen(arguments[1], "rb");
    if (!file) return 2;
    const int64_t blocks = number(file), pointers = number(file), steps = number(file), machine = number(file), regions = number(file);
    std::vector<int64_t> sizes;
    std::vector<char *> places;
    for (int64_t k = 0; k < blocks; k++) sizes.push_back(number(file));
    for (int64_t size : sizes) {
        char *place = (char *)aligned_alloc(64, (size + 127) / 64 * 64);
        if (!place || (size && fread(place, 1, size, file) != (size_t)size)) return 3;
        places.push_back(place);
    }
    for (int64_t k = 0; k < pointers; k++) {
        const int64_t block = number(file), at = number(file), target = number(file), offset = number(file);
        *(char **)(places[block] + at) = places[target] + offset;
    }
    fclose(file);
    void *buffers = ethorch_new_buffers();
    const int64_t all = sizes[0] / 16;  // of struct Step, which block 0 is an array of
    if (ethorch_run(places[steps], 0, all, places[machine], buffers, nullptr) != all) return 4;
    ethorch_free_buffers(buffers);
    FILE *result = fopen(arguments[2], "wb");
    if (!result) return 5;
    for (int64_t k = blocks - regions; k < blocks; k++)
        if (fwrite(places[k], 1, sizes[k], result) != (size_t)sizes[k]) return 5;
    return fclose(result) ? 5 : 0;
}
