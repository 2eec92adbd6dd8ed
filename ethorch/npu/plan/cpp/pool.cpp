// Pools: sums, averages, maxima, minima, indices of maxima, sums over channels.
#include "output.h"
#include "simd.h"
#include "steps.h"

namespace {

enum { ADD, MOST, LEAST };

template <int HOW, class T>
inline void combine(T *to, const T *from, int64_t n) {
    for (int64_t k = 0; k < n; k++) to[k] = HOW == ADD ? to[k] + from[k] : HOW == MOST ? std::max(to[k], from[k]) : std::min(to[k], from[k]);
}

int band_rows(const Pool &p, int64_t element) {
    const int64_t bytes = (int64_t)p.window.padded_w * p.window.in.depth * element * p.window.sy;
    return (int)std::max<int64_t>(1, std::min<int64_t>(p.stage.height, (1 << 18) / std::max<int64_t>(bytes, 1)));
}

// Sum, maximum or minimum of a window's IFM - zero point: along columns, then along rows.
template <int HOW, class T>
void windows(const Run &run, const Pool &p) {
    const Window &w = p.window;
    const Stage &s = p.stage;
    const int64_t depth = w.in.depth;
    const T zero_point = (T)w.in.zero_point, share = HOW == ADD ? (T)(zero_point * w.kh * w.kw) : zero_point;
    const int most = band_rows(p, sizeof(T));
    Rows<T> rows(run, w, depth, (T)p.fill, most);
    Output output(run, s);
    T *column = run.buffers.of<T>(run.buffers.matrix, rows.stride);
    T *sums = run.buffers.of<T>(run.buffers.sums, s.width * depth);
    for (int first = 0; first < s.height; first += most) {
        const int n = std::min(most, s.height - first);
        rows.read(first, n);
        for (int y = 0; y < n; y++) {
            const T *in = rows.data + (int64_t)y * w.sy * rows.stride;
            const T *down = in;
            if (w.kh > 1) {
                std::copy(in, in + rows.stride, column);
                for (int k = 1; k < w.kh; k++) combine<HOW>(column, in + k * w.dy * rows.stride, rows.stride);
                down = column;
            }
            if (w.sx == 1 && w.dx == 1) {
                std::copy(down, down + s.width * depth, sums);
                for (int k = 1; k < w.kw; k++) combine<HOW>(sums, down + k * depth, s.width * depth);
            } else {
                for (int x = 0; x < s.width; x++) {
                    T *to = sums + x * depth;
                    const T *from = down + (int64_t)x * w.sx * depth;
                    std::copy(from, from + depth, to);
                    for (int k = 1; k < w.kw; k++) combine<HOW>(to, from + (int64_t)k * w.dx * depth, depth);
                }
            }
            if (share)
                for (int64_t k = 0; k < s.width * depth; k++) sums[k] -= share;
            if (p.kind != POOL_AVERAGE) {
                output.rows(first + y, 1, sums, depth);
                continue;
            }
            // total / count by a reciprocal, rounded half up.
            int64_t *averages = run.buffers.of<int64_t>(run.buffers.averages, s.width * depth);
            for (int x = 0; x < s.width; x++) {
                const int64_t at = (int64_t)(first + y) * s.width + x, m = p.multiplier[at], shift = p.shift[at], half = (int64_t)1 << (shift - 1);
                for (int64_t c = x * depth; c < (x + 1) * depth; c++) averages[c] = ((int64_t)sums[c] * m + half) >> shift;
            }
            output.rows(first + y, 1, averages, depth);
        }
    }
    output.close();
}

template <class T>
void over_channels(const Run &run, const Pool &p) {
    const Window &w = p.window;
    const Stage &s = p.stage;
    const int64_t depth = w.in.depth;
    const T share = (T)(w.in.zero_point * depth);
    Output output(run, s);
    T *row = run.buffers.of<T>(run.buffers.rows, w.in.width * depth), *sums = run.buffers.of<T>(run.buffers.sums, s.width);
    const bool direct = w.in.bytes == sizeof(T) && w.in.tiles == 1 && !w.in.bricks;  // sum in place
    for (int y = 0; y < s.height; y++) {
        if (direct) {
            const uint8_t *at = run.at(w.in) + w.in.tile[0].base + (int64_t)y * w.sy * w.in.sy;
            for (int x = 0; x < s.width; x++) {
                const unaligned<T> *from = (const unaligned<T> *)(at + (int64_t)x * w.sx * w.in.sx);
                T sum = 0;
                if constexpr (sizeof(T) == 4)
                    sum = sum_of(from, depth);
                else
                    for (int64_t c = 0; c < depth; c++) sum += from[c];
                sums[x] = sum - share;
            }
            output.rows(y, 1, sums, 1);
            continue;
        }
        read_row<T>(run.at(w.in), w.in, y * w.sy, row, depth);
        for (int x = 0; x < s.width; x++) {
            const T *from = row + (int64_t)x * w.sx * depth;
            T sum = 0;
            for (int64_t c = 0; c < depth; c++) sum += from[c];
            sums[x] = sum - share;
        }
        output.rows(y, 1, sums, 1);
    }
    output.close();
}

// Index of the window's first maximum, in the upper half of the accumulator.
void index_of_most(const Run &run, const Pool &p) {
    const Window &w = p.window;
    const Stage &s = p.stage;
    const int64_t depth = w.in.depth;
    const int most = band_rows(p, 8), taps = p.kind == POOL_ARGMAX_Y ? w.kh : w.kw;
    Rows<int64_t> rows(run, w, depth, p.fill, most);
    const int64_t step = p.kind == POOL_ARGMAX_Y ? w.dy * rows.stride : w.dx * depth;
    Output output(run, s);
    int64_t *sums = run.buffers.of<int64_t>(run.buffers.sums, s.width * depth);
    for (int first = 0; first < s.height; first += most) {
        const int n = std::min(most, s.height - first);
        rows.read(first, n);
        for (int y = 0; y < n; y++) {
            for (int x = 0; x < s.width; x++)
                for (int64_t c = 0; c < depth; c++) {
                    const int64_t *in = rows.data + (int64_t)y * w.sy * rows.stride + (int64_t)x * w.sx * depth + c;
                    int64_t best = in[0], where = 0;
                    for (int k = 1; k < taps; k++)
                        if (in[k * step] > best) best = in[k * step], where = k;
                    sums[x * depth + c] = where << 16;
                }
            output.rows(first + y, 1, sums, depth);
        }
    }
    output.close();
}

void none(const Run &run, const Pool &p) {
    Output output(run, p.stage);
    const int64_t count = (int64_t)p.stage.width * p.stage.depth;
    int64_t *sums = run.buffers.of<int64_t>(run.buffers.sums, count);
    std::fill(sums, sums + count, 0);
    for (int y = 0; y < p.stage.height; y++) output.rows(y, 1, sums, p.stage.depth);
    output.close();
}

template <class T>
void pool(const Run &run, const Pool &p) {
    switch (p.kind) {
    case POOL_MAX: return windows<MOST, T>(run, p);
    case POOL_MIN: return windows<LEAST, T>(run, p);
    case POOL_REDUCE_SUM: return over_channels<T>(run, p);
    default: return windows<ADD, T>(run, p);
    }
}

}  // namespace

void run_pool(const Run &run, const Pool &p) {
    if (p.kind == POOL_NONE) return none(run, p);
    if (p.kind >= POOL_ARGMAX_Y) return index_of_most(run, p);
    p.wide ? pool<int64_t>(run, p) : pool<int32_t>(run, p);
}
