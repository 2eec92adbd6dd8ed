// Elementwise operations: read, scale, combine and finish rows of both operands.
#include <limits>

#include "output.h"
#include "simd.h"
#include "steps.h"

namespace {

void scale(const Operand &o, int64_t *v, int64_t n) {
    if (o.scale.is_identity) return;
    const uint64_t m = (uint64_t)*o.scale.multiplier, above = (uint64_t)*o.scale.above, below = (uint64_t)*o.scale.below;
    const int64_t shift = *o.scale.shift;
    for (int64_t k = 0; k < n; k++) v[k] = (int64_t)((uint64_t)v[k] * m + (v[k] >= 0 ? above : below)) >> shift;
}

void scale(const Operand &o, int32_t *v, int64_t n) {
    if (o.scale.is_identity) return;
    const DoubleScale &d = o.scaled;
    const double low = std::numeric_limits<int32_t>::min(), high = std::numeric_limits<int32_t>::max();
    if (d.symmetric)
        for (int64_t k = 0; k < n; k += LANES) store(v + k, quantize<true, 0>(load(v + k), d.factor, d.above, d.below, low, high));
    else
        for (int64_t k = 0; k < n; k += LANES) store(v + k, quantize<false, 0>(load(v + k), d.factor, d.above, d.below, low, high));
}

// A row of one operand, broadcast to the axes that it lacks.
template <class T>
struct Reader {
    const Run &run;
    const Operand &o;
    const Stage &s;
    const bool scales;
    const int64_t count;
    T *row;
    bool ready = false;

    Reader(const Run &run, const Operand &o, const Stage &s, std::vector<uint8_t> &buffer, bool scales = true)
        : run(run), o(o), s(s), scales(scales), count((int64_t)s.width * s.depth), row(run.buffers.of<T>(buffer, count + 64)) {}

    const T *read(int y) {
        if (ready && (o.is_constant || (o.spread & 1))) return row;
        ready = true;
        if (o.is_constant) {
            std::fill(row, row + count, (T)o.constant);
        } else if (!(o.spread & 6)) {
            read_row<T>(run.at(o.map), o.map, y, row, s.depth, (T)o.map.zero_point);
        } else {
            T *small = run.buffers.of<T>(run.buffers.source, (int64_t)o.map.width * o.map.depth);
            read_row<T>(run.at(o.map), o.map, o.spread & 1 ? 0 : y, small, o.map.depth, (T)o.map.zero_point);
            for (int x = 0; x < s.width; x++) {
                T *to = row + (int64_t)x * s.depth;
                const T *from = small + (o.spread & 2 ? 0 : (int64_t)x * o.map.depth);
                if (o.spread & 4)
                    std::fill(to, to + s.depth, *from);
                else
                    std::copy(from, from + s.depth, to);
            }
        }
        if constexpr (sizeof(T) > 1)
            if (scales) scale(o, row, count);
        return row;
    }
};

template <class T>
T bounded_shift(T v) {
    return std::min<T>(std::max<T>(v, 0), 63);
}

int32_t leading_zeros(int64_t v) {
    const uint32_t pattern = (uint32_t)v;
    return pattern ? __builtin_clz(pattern) : 32;
}

#define EACH(expression)                          \
    for (int64_t k = 0; k < n; k++) {             \
        const T x = a[k], y = b[k];               \
        (void)x, (void)y;                         \
        out[k] = (T)(expression);                 \
    }                                             \
    break

template <class T>
void combine(const Elementwise &e, const T *__restrict a, const T *__restrict b, T *__restrict out, int64_t n) {
    switch (e.what) {
    case DO_ADD: EACH(x + y);
    case DO_SUB: EACH(x - y);
    case DO_MUL: EACH(x * y);
    case DO_MIN: EACH(std::min(x, y));
    case DO_MAX: EACH(std::max(x, y));
    case DO_LRELU: break;
    case DO_ABS: EACH(x < 0 ? -x : x);
    case DO_CLZ: EACH(leading_zeros(x));
    case DO_SHR: {
        for (int64_t k = 0; k < n; k++) {
            const int64_t by = bounded_shift<int64_t>(b[k]), half = e.rounds && by > 0 ? (int64_t)1 << (by - 1) : 0;
            out[k] = (T)(((int64_t)a[k] + half) >> by);
        }
        break;
    }
    case DO_SHL: EACH((int32_t)(uint32_t)((uint64_t)(int64_t)x << bounded_shift<int64_t>(y)));
    case DO_LSR: EACH(((int64_t)x & e.mask) >> bounded_shift<int64_t>(y));
    case DO_DIV: {
        for (int64_t k = 0; k < n; k++) {
            const int64_t x = a[k], y = b[k];
            const uint64_t q = (x < 0 ? 0 - (uint64_t)x : (uint64_t)x) / std::max<uint64_t>(y < 0 ? 0 - (uint64_t)y : (uint64_t)y, 1);
            out[k] = (T)((x < 0) == (y < 0) ? q : 0 - q);
        }
        break;
    }
    case DO_EQ: EACH(-(x == y));
    case DO_NE: EACH(-(x != y));
    case DO_GE: EACH(-(x >= y));
    case DO_GT: EACH(-(x > y));
    case DO_AND: EACH(x & y);
    case DO_OR: EACH(x | y);
    case DO_XOR: EACH(x ^ y);
    case DO_NOT: EACH(~x);
    case DO_AND_NOT: EACH(x & ~y);
    }
    if (e.wraps)
        for (int64_t k = 0; k < n; k++) out[k] = (int32_t)out[k];
}
#undef EACH

// Check the values of the second operand before anything is written.
bool fits(const Run &run, const Elementwise &e) {
    Reader<int64_t> reader(run, e.b, e.stage, run.buffers.matrix, false);
    for (int y = 0; y < e.stage.height; y++) {
        const int64_t *b = reader.read(y);
        for (int64_t k = 0; k < reader.count; k++)
            if (e.want == WANT_DIVISOR ? b[k] == 0 : b[k] < 0 || b[k] > 63) return false;
        if (e.b.is_constant || (e.b.spread & 1)) break;
    }
    return true;
}

template <class T>
void elementwise(const Run &run, const Elementwise &e) {
    const Stage &s = e.stage;
    Output output(run, s);
    Reader<T> a(run, e.a, s, run.buffers.rows), b(run, e.b, s, run.buffers.matrix);
    T *sums = run.buffers.of<T>(run.buffers.sums, a.count + 64);
    for (int y = 0; y < s.height; y++) {
        if (e.what == DO_LRELU) {  // where(a >= 0, scale a, scale b), both of the first operand
            T *raw = run.buffers.of<T>(run.buffers.other, a.count + 64);
            Reader<T> plain(run, e.a, s, run.buffers.matrix, false);
            const T *x = plain.read(y);
            std::copy(x, x + a.count, raw);
            std::copy(x, x + a.count, sums);
            scale(e.a, sums, a.count);
            scale(e.b, plain.row, a.count);
            for (int64_t k = 0; k < a.count; k++)
                if (raw[k] < 0) sums[k] = plain.row[k];
        } else {
            const T *x = a.read(y);
            combine<T>(e, x, e.operands > 1 ? b.read(y) : x, sums, a.count);
        }
        output.rows(y, 1, sums, s.depth);
    }
    output.close();
}

// A product of bytes, stored unscaled in 32 bits each: part of a matrix product on U55.
template <class A, class B>
void products(const Run &run, const Elementwise &e) {
    const Stage &s = e.stage;
    const Map &ma = e.a.map, &mb = e.b.map, &mo = s.out;
    const uint8_t *a = run.at(ma) + ma.tile[0].base, *b = run.at(mb) + mb.tile[0].base;
    uint8_t *out = run.at(mo) + mo.tile[0].base;
    const int depth = s.depth, za = (int)ma.zero_point, zb = (int)mb.zero_point, add = (int)mo.zero_point;
    int32_t *wide = run.buffers.of<int32_t>(run.buffers.rows, depth);
    for (int y = 0; y < s.height; y++)
        for (int x = 0; x < s.width; x++) {
            const B *from = (const B *)(b + (e.b.spread & 1 ? 0 : y * mb.sy) + (e.b.spread & 2 ? 0 : x * mb.sx));
            if (!(e.b.spread & 2) || !x)
                for (int c = 0; c < depth; c++) wide[c] = from[c] - zb;
            const A *__restrict p = (const A *)(a + y * ma.sy + x * ma.sx);
            unaligned<int32_t> *__restrict to = (unaligned<int32_t> *)(out + y * mo.sy + x * mo.sx);
            for (int c = 0; c < depth; c++) to[c] = (p[c] - za) * wide[c] + add;
        }
}

template <class A, class B>
void dots(const Run &run, const Dot &d) {
    const Stage &s = d.stage;
    const uint8_t *a = run.at(d.a) + d.a.tile[0].base, *b = run.at(d.b) + d.b.tile[0].base;
    const int depth = d.depth, za = (int)d.a.zero_point, zb = (int)d.b.zero_point;
    int16_t *wide = run.buffers.of<int16_t>(run.buffers.rows, depth);
    int32_t *sums = run.buffers.of<int32_t>(run.buffers.sums, s.width);
    Output output(run, s);
    for (int y = 0; y < s.height; y++) {
        for (int x = 0; x < s.width; x++) {
            const B *from = (const B *)(b + (d.spread & 1 ? 0 : y * d.b.sy) + (d.spread & 2 ? 0 : x * d.b.sx));
            if (!(d.spread & 2) || !x)
                for (int c = 0; c < depth; c++) wide[c] = (int16_t)(from[c] - zb);
            const A *__restrict p = (const A *)(a + y * d.a.sy + x * d.a.sx);
            const int16_t *__restrict w = wide;
            int32_t sum = d.add;
            for (int c = 0; c < depth; c++) sum += (int32_t)(int16_t)(p[c] - za) * (int32_t)w[c];
            sums[x] = sum;
        }
        output.rows(y, 1, sums, 1);
    }
    output.close();
}

bool is_product(const Elementwise &e) {
    const Stage &s = e.stage;
    const bool stored = s.mode == SCALE_NOTHING && !s.clamps && s.table == TABLE_NONE && !s.whole && s.out.bytes == 4;
    if (e.what != DO_MUL || e.wide || e.wraps || !stored || e.a.is_constant || e.b.is_constant || e.a.spread || (e.b.spread & 4)) return false;
    for (const Map *m : {&e.a.map, &e.b.map, &s.out})
        if (m->tiles != 1 || m->bricks) return false;
    return e.a.map.bytes == 1 && e.b.map.bytes == 1 && e.a.scale.is_identity && e.b.scale.is_identity;
}

// Table lookup of a pair of bytes, one of each operand.
void pairs(const Run &run, const Elementwise &e) {
    const Stage &s = e.stage;
    Output output(run, s);
    Operand raw_a = e.a, raw_b = e.b;
    for (Operand *o : {&raw_a, &raw_b}) o->map.is_signed = 0, o->map.zero_point = 0, o->constant = 0;
    Reader<uint8_t> a(run, raw_a, s, run.buffers.rows, false), b(run, raw_b, s, run.buffers.matrix, false);
    uint8_t *found = run.buffers.get(run.buffers.sums, a.count);
    for (int y = 0; y < s.height; y++) {
        const uint8_t *x = a.read(y), *z = b.read(y);
        for (int64_t k = 0; k < a.count; k++) found[k] = e.pairs[x[k] << 8 | z[k]];
        output.quantized(y, found);
    }
    output.close();
}

}  // namespace

void run_dot(const Run &run, const Dot &d) {
    d.a.is_signed ? d.b.is_signed ? dots<int8_t, int8_t>(run, d) : dots<int8_t, uint8_t>(run, d)
                  : d.b.is_signed ? dots<uint8_t, int8_t>(run, d) : dots<uint8_t, uint8_t>(run, d);
}

bool run_elementwise(const Run &run, const Elementwise &e) {
    if (e.want != WANT_NOTHING && !fits(run, e)) return false;
    if (is_product(e)) {
        const bool a = e.a.map.is_signed, b = e.b.map.is_signed;
        a ? b ? products<int8_t, int8_t>(run, e) : products<int8_t, uint8_t>(run, e)
          : b ? products<uint8_t, int8_t>(run, e) : products<uint8_t, uint8_t>(run, e);
    } else if (e.pairs)
        pairs(run, e);
    else if (e.wide)
        elementwise<int64_t>(run, e);
    else
        elementwise<int32_t>(run, e);
    return true;
}
