// Rows of feature maps: read as any type, stored in their own type.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "plan.h"

template <class T>
using unaligned __attribute__((aligned(1), may_alias)) = T;

// Buffers of one thread, which grow and are shared by all steps. A second request may move a buffer, so a step uses each
// buffer only once.
struct Buffers {
    std::vector<uint8_t> rows, matrix, sums, averages, quantized, values, box, source, other, table;
    uint8_t *get(std::vector<uint8_t> &buffer, int64_t bytes) {
        bytes += 256;  // vectors may read and write beyond the end
        if ((int64_t)buffer.size() < bytes) buffer.resize(bytes);
        return (uint8_t *)(((uintptr_t)buffer.data() + 63) & ~(uintptr_t)63);
    }
    template <class T>
    T *of(std::vector<uint8_t> &buffer, int64_t count) {
        return (T *)get(buffer, count * (int64_t)sizeof(T));
    }
};

struct Run {
    const Machine &machine;
    Buffers &buffers;
    uint8_t *at(const Map &m) const { return machine.region[m.region]; }
};

// q = p - sub, with p's bytes xored with ``flip`` where T is uint8_t.
template <class S, class T>
static inline void convert(const uint8_t *from, T *q, int64_t n, T sub, int flip) {
    const unaligned<S> *p = (const unaligned<S> *)from;
    if (sizeof(T) == 1) {
        if (n == 16)
            for (int k = 0; k < 16; k++) q[k] = (T)(p[k] ^ (S)flip);
        else
            for (int64_t k = 0; k < n; k++) q[k] = (T)(p[k] ^ (S)flip);
    } else if (n == 16) {
        for (int k = 0; k < 16; k++) q[k] = (T)p[k] - sub;
    } else {
        for (int64_t k = 0; k < n; k++) q[k] = (T)p[k] - sub;
    }
}

template <class S, class T>
static void read_row_of(const uint8_t *memory, const Map &m, int y, T *out, int64_t pixel, T sub, int flip) {
    for (int t = 0; t < m.tiles; t++) {
        const Tile &tile = m.tile[t];
        if (y < tile.y || y >= tile.y + tile.height) continue;
        const uint8_t *row = memory + tile.base + (int64_t)(y - tile.y) * m.sy;
        T *o = out + (int64_t)tile.x * pixel;
        if (m.bricks) {
            for (int c = 0; c < m.depth; c += 16) {
                const uint8_t *p = row + (int64_t)(c / 16) * m.sc;
                T *q = o + c;
                if (m.depth - c >= 16)
                    for (int x = 0; x < tile.width; x++, p += m.sx, q += pixel) convert<S, T>(p, q, 16, sub, flip);
                else
                    for (int x = 0; x < tile.width; x++, p += m.sx, q += pixel) convert<S, T>(p, q, m.depth - c, sub, flip);
            }
        } else if (m.sx == (int64_t)(m.depth * sizeof(S)) && pixel == m.depth) {
            convert<S, T>(row, o, (int64_t)tile.width * m.depth, sub, flip);
        } else {
            for (int x = 0; x < tile.width; x++) convert<S, T>(row + x * m.sx, o + x * pixel, m.depth, sub, flip);
        }
    }
}

// Row y of a map as T[x*pixel + c], minus ``sub``. T must represent all values of the map.
template <class T>
static inline void read_row(const uint8_t *memory, const Map &m, int y, T *out, int64_t pixel, T sub = 0, int flip = 0) {
    switch (m.bytes * 2 + m.is_signed) {
    case 2: return read_row_of<uint8_t, T>(memory, m, y, out, pixel, sub, flip);
    case 3: return read_row_of<int8_t, T>(memory, m, y, out, pixel, sub, flip);
    case 4: return read_row_of<uint16_t, T>(memory, m, y, out, pixel, sub, flip);
    case 5: return read_row_of<int16_t, T>(memory, m, y, out, pixel, sub, flip);
    case 8: return read_row_of<uint32_t, T>(memory, m, y, out, pixel, sub, flip);
    case 9: return read_row_of<int32_t, T>(memory, m, y, out, pixel, sub, flip);
    default: return read_row_of<int64_t, T>(memory, m, y, out, pixel, sub, flip);
    }
}
template <>
inline void read_row<uint8_t>(const uint8_t *memory, const Map &m, int y, uint8_t *out, int64_t pixel, uint8_t sub, int flip) {
    read_row_of<uint8_t, uint8_t>(memory, m, y, out, pixel, sub, flip);
}
template <>
inline void read_row<int16_t>(const uint8_t *memory, const Map &m, int y, int16_t *out, int64_t pixel, int16_t sub, int flip) {
    switch (m.bytes * 2 + m.is_signed) {
    case 2: return read_row_of<uint8_t, int16_t>(memory, m, y, out, pixel, sub, flip);
    case 3: return read_row_of<int8_t, int16_t>(memory, m, y, out, pixel, sub, flip);
    default: return read_row_of<int16_t, int16_t>(memory, m, y, out, pixel, sub, flip);
    }
}

// Store row y of a map; S is an unsigned type of the map's element size, and ``values`` are [width][depth].
template <class S>
static void store_row_of(uint8_t *memory, const Map &m, int y, const uint8_t *values) {
    const int64_t pixel = (int64_t)m.depth * sizeof(S);
    for (int t = 0; t < m.tiles; t++) {
        const Tile &tile = m.tile[t];
        if (y < tile.y || y >= tile.y + tile.height) continue;
        uint8_t *row = memory + tile.base + (int64_t)(y - tile.y) * m.sy;
        const uint8_t *v = values + tile.x * pixel;
        if (m.bricks) {
            for (int c = 0; c < m.depth; c += 16) {
                uint8_t *p = row + (int64_t)(c / 16) * m.sc;
                const uint8_t *q = v + c * sizeof(S);
                const int64_t n = (int64_t)std::min(16, m.depth - c) * sizeof(S);
                if (n == 16)
                    for (int x = 0; x < tile.width; x++, p += m.sx, q += pixel) memcpy(p, q, 16);
                else if (n == 32)
                    for (int x = 0; x < tile.width; x++, p += m.sx, q += pixel) memcpy(p, q, 32);
                else
                    for (int x = 0; x < tile.width; x++, p += m.sx, q += pixel) memcpy(p, q, n);
            }
        } else if (m.sx == pixel) {
            memcpy(row, v, tile.width * pixel);
        } else if (m.depth == 1) {
            for (int x = 0; x < tile.width; x++) memcpy(row + x * m.sx, v + x * sizeof(S), sizeof(S));
        } else {
            for (int x = 0; x < tile.width; x++) memcpy(row + x * m.sx, v + x * pixel, pixel);
        }
    }
}

static inline void store_row(uint8_t *memory, const Map &m, int y, const uint8_t *values) {
    switch (m.bytes) {
    case 1: return store_row_of<uint8_t>(memory, m, y, values);
    case 2: return store_row_of<uint16_t>(memory, m, y, values);
    case 4: return store_row_of<uint32_t>(memory, m, y, values);
    default: return store_row_of<uint64_t>(memory, m, y, values);
    }
}

// A row as stored, [width][depth] of the map's elements.
static inline void read_raw(const uint8_t *memory, const Map &m, int y, uint8_t *out) {
    switch (m.bytes) {
    case 1: return read_row_of<uint8_t, uint8_t>(memory, m, y, out, m.depth, 0, 0);
    case 2: return read_row_of<uint16_t, uint16_t>(memory, m, y, (uint16_t *)out, m.depth, 0, 0);
    case 4: return read_row_of<uint32_t, uint32_t>(memory, m, y, (uint32_t *)out, m.depth, 0, 0);
    default: return read_row_of<uint64_t, uint64_t>(memory, m, y, (uint64_t *)out, m.depth, 0, 0);
    }
}

// The padded input rows of a band of output rows, T[row][padded_w][pixel]. Rows shared with the previous band are kept.
template <class T>
struct Rows {
    const Window &w;
    const Run &run;
    int64_t pixel, stride;  // elements of a pixel and of a row
    T fill;
    int flip, first = 0, count = 0;
    T *data = nullptr;

    // most: output rows of the largest band.
    Rows(const Run &run, const Window &w, int64_t pixel, T fill, int most, int flip = 0)
        : w(w), run(run), pixel(pixel), stride(pixel * w.padded_w), fill(fill), flip(flip) {
        data = run.buffers.of<T>(run.buffers.rows, input_rows(most) * stride + 64);
    }

    int64_t input_rows(int n) const { return (int64_t)(n - 1) * w.sy + (int64_t)(w.kh - 1) * w.dy + 1; }

    void read(int out_first, int n) {
        const int start = out_first * w.sy, rows = (int)input_rows(n);
        int kept = 0;
        if (count && start < first + count) {
            kept = std::min(rows, first + count - start);
            memmove(data, data + (int64_t)(start - first) * stride, kept * stride * sizeof(T));
        }
        for (int k = kept; k < rows; k++) read_one(start + k - w.top, data + k * stride);
        first = start, count = rows;
    }

    void read_one(int y, T *row) {
        if (y < 0 || y >= w.size_h || (w.upscale == 2 && y % 2)) {
            std::fill(row, row + stride, fill);
            return;
        }
        const int64_t left = w.left * pixel, right = (int64_t)(w.left + w.size_w) * pixel;
        std::fill(row, row + left, fill);
        std::fill(row + right, row + stride, fill);
        if (!w.upscale) return read_row<T>(run.at(w.in), w.in, y, row + left, pixel, 0, flip);
        T *source = run.buffers.of<T>(run.buffers.source, w.in.width * pixel);
        read_row<T>(run.at(w.in), w.in, y / 2, source, pixel, 0, flip);
        for (int x = 0; x < w.size_w; x++) {
            T *to = row + left + x * pixel;
            if (w.upscale == 2 && x % 2)
                std::fill(to, to + pixel, fill);
            else
                std::copy(source + (x / 2) * pixel, source + (x / 2) * pixel + pixel, to);
        }
    }
};
