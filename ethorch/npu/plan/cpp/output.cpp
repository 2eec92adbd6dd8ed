#include "output.h"

#include "simd.h"

Output::Output(const Run &run, const Stage &stage) : run(run), s(stage), count((int64_t)stage.width * stage.depth) {
    if (s.whole) box = run.buffers.get(run.buffers.box, (int64_t)s.height * count * s.out.bytes);
    if (s.table == TABLE_NONE) return;
    table = s.built_in ? (const uint8_t *)s.built_in : run.machine.region[8] + s.table_address;
    if (s.table == TABLE_DIRECT && s.entry_bytes == 1)
        for (int k = 0; k < 256; k++) turned_table[k] = table[(uint8_t)(k + s.table_origin)];
}

uint8_t *Output::place(int y) {
    const int64_t bytes = count * s.out.bytes;
    return s.whole ? box + y * bytes : run.buffers.get(run.buffers.values, bytes);
}

void Output::stored(int y, const uint8_t *values) {
    if (!s.whole)
        store_row(run.at(s.out), s.out, y, values);
    else if (values != box + y * count * s.out.bytes)
        memcpy(box + y * count * s.out.bytes, values, count * s.out.bytes);
}

// Look up bytes in a table of any entry size.
void Output::look_up(const uint8_t *bytes, uint8_t *values) {
    int64_t k = 0;
    if (s.entry_bytes == 1 && s.out.bytes == 1) {
#if defined(__AVX512VBMI__) && LEVEL_AVX512
        const __m512i t0 = _mm512_loadu_si512(turned_table), t1 = _mm512_loadu_si512(turned_table + 64);
        const __m512i t2 = _mm512_loadu_si512(turned_table + 128), t3 = _mm512_loadu_si512(turned_table + 192);
        for (; k + 64 <= count; k += 64) {
            const __m512i v = _mm512_loadu_si512(bytes + k);
            const __m512i low = _mm512_permutex2var_epi8(t0, v, t1), high = _mm512_permutex2var_epi8(t2, v, t3);
            _mm512_storeu_si512(values + k, _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(v), high));
        }
#endif
        for (; k < count; k++) values[k] = turned_table[bytes[k]];
        return;
    }
    for (; k < count; k++) {
        const int64_t at = (uint8_t)(bytes[k] + s.table_origin);
        int64_t entry;
        if (s.entry_bytes == 1)
            entry = s.entry_signed ? (int8_t)table[at] : table[at];
        else if (s.entry_bytes == 2)
            entry = ((const unaligned<int16_t> *)table)[at];
        else
            entry = ((const unaligned<int32_t> *)table)[at];
        memcpy(values + k * s.out.bytes, &entry, s.out.bytes);  // little-endian: the low bytes
    }
}

void Output::quantized(int y, const uint8_t *bytes) {
    if (s.table == TABLE_NONE) return stored(y, bytes);
    uint8_t *values = place(y);
    look_up(bytes, values);
    stored(y, values);
}

template <class T, class S>
static inline void low_bits(const T *__restrict from, S *__restrict to, int64_t n) {
    for (int64_t k = 0; k < n; k++) to[k] = (S)from[k];
}

// Look up quantized values in the table, then store their low bits.
template <class T>
void Output::activate(T *values, uint8_t *out) {
    if (s.table == TABLE_DIRECT) {
        uint8_t *bytes = run.buffers.get(run.buffers.table, count);
        low_bits(values, bytes, count);
        return look_up(bytes, out);
    }
    if (s.table != TABLE_NONE) {
        const unaligned<int16_t> *pairs = (const unaligned<int16_t> *)table;
        for (int64_t k = 0; k < count; k++) {
            const int64_t v = values[k];
            int64_t y;
            if (s.table == TABLE_16_16 || s.table == TABLE_16_32) {
                const int64_t u = v + 32768, base = pairs[2 * (u >> 7)], slope = pairs[2 * (u >> 7) + 1], part = u & 127;
                y = s.table == TABLE_16_16 ? base + ((slope * part + 64) >> 7) : base * 128 + slope * part;
            } else {
                const int b = s.table == TABLE_TANH ? 8 : 9, n = s.table == TABLE_TANH ? 8 : 10;
                const int64_t most = (int64_t)256 << b;
                const int64_t u = std::min(std::max(v, -most), most - 1) + most, i = u >> b;
                const int64_t t = pairs[2 * i] * ((int64_t)1 << b) + pairs[2 * i + 1] * (u & (((int64_t)1 << b) - 1));
                const int64_t half = (int64_t)1 << (n - 1), r = t >= 0 ? (t + half) >> n : -((-t + half) >> n);
                y = s.table == TABLE_TANH ? r : 16384 + r;
            }
            values[k] = (T)y;
        }
    }
    switch (s.out.bytes) {
    case 1: return low_bits(values, out, count);
    case 2: return low_bits(values, (uint16_t *)out, count);
    case 4: return low_bits(values, (uint32_t *)out, count);
    default: return low_bits(values, (uint64_t *)out, count);
    }
}

// LANES sums of a row, from channel c if scales are per channel.
template <bool SYMMETRIC, int STEP>
inline vi32 Output::quantize_some(vi32 sums, int64_t c) const {
    if (s.mode == SCALE_DOUBLE) {
        const DoubleScale &d = s.scaled;
        return quantize<SYMMETRIC, STEP>(sums, d.factor + c, d.above + c, d.below + c, (double)s.low, (double)s.high);
    }
    const Scale &q = s.scale;
    return quantize_long<SYMMETRIC, STEP>(sums, q.multiplier + c, q.shift + c, q.above + c, q.below + c, s.out.zero_point, s.low, s.high);
}

template <bool SYMMETRIC, class S>
void Output::quantize_row(const int32_t *sums, int64_t pixel, S *out) {
    const bool per_channel = s.mode == SCALE_DOUBLE ? s.scaled.per_channel : s.scale.per_channel;
    if (!per_channel && pixel == s.depth) {
        for (int64_t k = 0; k < count; k += LANES) narrow(quantize_some<SYMMETRIC, 0>(load(sums + k), 0), out + k);
        return;
    }
    for (int x = 0; x < s.width; x++)
        for (int c = 0; c < s.depth; c += LANES) {
            const vi32 v = load(sums + x * pixel + c);
            narrow(per_channel ? quantize_some<SYMMETRIC, 1>(v, c) : quantize_some<SYMMETRIC, 0>(v, 0), out + (int64_t)x * s.depth + c);
        }
}

template <class S>
void Output::quantize_row(const int32_t *sums, int64_t pixel, S *out) {
    const bool symmetric = s.mode == SCALE_DOUBLE ? s.scaled.symmetric : s.scale.symmetric;
    symmetric ? quantize_row<true>(sums, pixel, out) : quantize_row<false>(sums, pixel, out);
}

void Output::rows(int first, int n, const int32_t *sums, int64_t pixel) {
    if (s.mode == SCALE_INTEGER) {
        int64_t *wide = run.buffers.of<int64_t>(run.buffers.quantized, count);
        for (int y = first; y < first + n; y++, sums += s.width * pixel) {
            for (int x = 0; x < s.width; x++)
                for (int c = 0; c < s.depth; c++) wide[(int64_t)x * s.depth + c] = sums[x * pixel + c];
            rows(y, 1, wide, s.depth);
        }
        return;
    }
    const int32_t zero_point = (int32_t)s.out.zero_point, low = (int32_t)s.low, high = (int32_t)s.high;
    for (int y = first; y < first + n; y++, sums += s.width * pixel) {
        uint8_t *out = place(y);
        int32_t *values = s.table == TABLE_NONE ? nullptr : run.buffers.of<int32_t>(run.buffers.quantized, count + 64);
        if (s.mode == SCALE_NOTHING) {
            if (!values) values = s.out.bytes == 4 ? (int32_t *)out : run.buffers.of<int32_t>(run.buffers.quantized, count + 64);
            for (int x = 0; x < s.width; x++) {
                const int32_t *from = sums + x * pixel;
                int32_t *to = values + (int64_t)x * s.depth;
                const int m = pixel == s.depth ? (int)count : s.depth;
                if (s.clamps)
                    for (int c = 0; c < m; c++) to[c] = std::min(std::max(from[c] + zero_point, low), high);
                else
                    for (int c = 0; c < m; c++) to[c] = from[c] + zero_point;
                if (m == count) break;
            }
            if ((uint8_t *)values != out) activate(values, out);
        } else if (s.table == TABLE_NONE) {
            switch (s.out.bytes) {
            case 1: quantize_row(sums, pixel, out); break;
            case 2: quantize_row(sums, pixel, (int16_t *)out); break;
            default: quantize_row(sums, pixel, (int32_t *)out);
            }
        } else if (s.table == TABLE_DIRECT) {
            uint8_t *bytes = run.buffers.get(run.buffers.table, count);
            quantize_row(sums, pixel, bytes);
            look_up(bytes, out);
        } else {
            quantize_row(sums, pixel, values);
            activate(values, out);
        }
        stored(y, out);
    }
}

void Output::rows(int first, int n, const int64_t *sums, int64_t pixel) {
    int64_t *values = run.buffers.of<int64_t>(run.buffers.quantized, count);
    int64_t *other = s.adds_ifm2 ? run.buffers.of<int64_t>(run.buffers.other, count) : nullptr;
    const int64_t c1 = s.depth;
    for (int y = first; y < first + n; y++, sums += s.width * pixel) {
        int64_t *kept = (int64_t *)(run.machine.region[9] + s.kept) + y * count;
        if (values != sums)
            for (int x = 0; x < s.width; x++) std::copy(sums + x * pixel, sums + x * pixel + c1, values + x * c1);
        if (s.offset)
            for (int64_t k = 0; k < count; k += c1)
                for (int64_t c = 0; c < c1; c++) values[k + c] += s.offset[c];
        if (s.adds_kept)
            for (int64_t k = 0; k < count; k++) values[k] += kept[k];
        if (s.adds_ifm2) {
            read_row<int64_t>(run.at(s.ifm2), s.ifm2, y, other, c1, s.ifm2.zero_point);
            for (int64_t k = 0; k < count; k++) values[k] += other[k];
        }
        if (s.keeps) {
            std::copy(values, values + count, kept);
            continue;
        }
        if (s.bias)
            for (int64_t k = 0; k < count; k += c1)
                for (int64_t c = 0; c < c1; c++) values[k + c] += s.bias[c];
        const Scale &q = s.scale;
        if (!q.is_identity && q.per_channel) {
            for (int64_t k = 0; k < count; k += c1) {
                int64_t *__restrict row = values + k;
                const int64_t *__restrict m = q.multiplier, *__restrict above = q.above, *__restrict below = q.below, *__restrict by = q.shift;
                for (int64_t c = 0; c < c1; c++) row[c] = (int64_t)((uint64_t)row[c] * (uint64_t)m[c] + (uint64_t)(row[c] >= 0 ? above[c] : below[c])) >> by[c];
            }
        } else if (!q.is_identity) {
            const uint64_t m = (uint64_t)*q.multiplier, above = (uint64_t)*q.above, below = (uint64_t)*q.below;
            const int64_t shift = *q.shift, n = count;
            for (int64_t k = 0; k < n; k++) {
                const int64_t v = values[k];
                values[k] = (int64_t)((uint64_t)v * m + (v >= 0 ? above : below)) >> shift;
            }
        }
        const int64_t zero_point = s.out.zero_point, low = s.low, high = s.high, n = count;
        if (s.clamps)
            for (int64_t k = 0; k < n; k++) values[k] = std::min(std::max(values[k] + zero_point, low), high);
        else
            for (int64_t k = 0; k < n; k++) values[k] += zero_point;
        uint8_t *out = place(y);
        activate(values, out);
        stored(y, out);
    }
}

// Store the computed box, reversed and transposed.
template <class S>
void Output::turn() {
    const int size[3] = {s.height, s.width, s.depth};
    const int64_t strides[3] = {count, s.depth, 1};
    int64_t step[3], start = 0;
    for (int k = 0; k < 3; k++) step[k] = strides[s.axis[k]] * (s.axis[k] == s.reverse ? -1 : 1);
    if (s.reverse >= 0) start = (size[s.reverse] - 1) * strides[s.reverse];
    S *row = run.buffers.of<S>(run.buffers.values, (int64_t)s.out.width * s.out.depth);
    for (int y = 0; y < s.out.height; y++) {
        const S *from = (const S *)box + start + y * step[0];
        if (step[2] == 1 || s.out.width == 1 || s.out.depth == 1) {
            for (int x = 0; x < s.out.width; x++)
                for (int c = 0; c < s.out.depth; c++) row[(int64_t)x * s.out.depth + c] = from[x * step[1] + c * step[2]];
        } else {
            for (int c0 = 0; c0 < s.out.depth; c0 += 32)  // a few columns at a time, so that both sides fit in the cache
                for (int x = 0; x < s.out.width; x++)
                    for (int c = c0; c < std::min(c0 + 32, s.out.depth); c++)
                        row[(int64_t)x * s.out.depth + c] = from[x * step[1] + c * step[2]];
        }
        store_row(run.at(s.out), s.out, y, (const uint8_t *)row);
    }
}

void Output::close() {
    if (!s.whole || s.keeps) return;
    if (!s.turned) {
        for (int y = 0; y < s.height; y++) store_row(run.at(s.out), s.out, y, box + y * count * s.out.bytes);
        return;
    }
    switch (s.out.bytes) {
    case 1: return turn<uint8_t>();
    case 2: return turn<uint16_t>();
    case 4: return turn<uint32_t>();
    default: return turn<uint64_t>();
    }
}
