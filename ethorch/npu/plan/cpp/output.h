// The output stage: converts sums to stored bytes.
#pragma once
#include "rows.h"
#include "simd.h"

// Finishes the rows of one step in order, from the first. If the stage is ``whole``, nothing is stored before ``close``.
class Output {
public:
    Output(const Run &run, const Stage &stage);
    // n rows of sums [width][depth], with ``pixel`` sums between pixels.
    void rows(int first, int n, const int32_t *sums, int64_t pixel);
    void rows(int first, int n, const int64_t *sums, int64_t pixel);
    // A quantized row: bytes [width][depth], looked up if there is a table.
    void quantized(int y, const uint8_t *bytes);
    // A row of finished elements.
    void stored(int y, const uint8_t *values);
    void close();

private:
    const Run &run;
    const Stage &s;
    const int64_t count;  // elements of a row
    uint8_t *box = nullptr;
    const uint8_t *table = nullptr;
    uint8_t turned_table[256];  // table from bytes to bytes

    uint8_t *place(int y);
    void look_up(const uint8_t *bytes, uint8_t *values);
    template <class T>
    void activate(T *values, uint8_t *out);
    template <bool SYMMETRIC, int STEP>
    vi32 quantize_some(vi32 sums, int64_t channel) const;
    template <bool SYMMETRIC, class S>
    void quantize_row(const int32_t *sums, int64_t pixel, S *out);
    template <class S>
    void quantize_row(const int32_t *sums, int64_t pixel, S *out);
    template <class S>
    void turn();
};

// v scaled in int64, as by ethorch.npu.arithmetic.Scaling.
static inline int64_t scaled(int64_t v, const Scale &s, int64_t channel) {
    const int64_t k = s.per_channel ? channel : 0;
    return (int64_t)((uint64_t)v * (uint64_t)s.multiplier[k] + (uint64_t)(v >= 0 ? s.above[k] : s.below[k])) >> s.shift[k];
}
