// Data movement (DMA, gather, scatter, copies of feature maps) and resizing.
#include "output.h"
#include "steps.h"

void run_copy(const Run &run, const Copy &c) {
    memmove(run.machine.region[c.to_region] + c.to, run.machine.region[c.from_region] + c.from, c.bytes);
}

bool run_transfer(const Run &run, const Transfer &t) {
    const uint8_t *from = run.machine.region[t.from_region], *indices = run.machine.region[t.index_region];
    uint8_t *to = run.machine.region[t.to_region];
    for (int64_t j = 0; j < t.outer; j++) {
        const int64_t index = t.index + j * t.index_outer;
        if (t.by_source || t.by_target) {
            if (index < 0 || index + 4 * t.inner > t.index_size) return false;
            for (int64_t i = 0; i < t.inner; i++) {
                const int32_t k = ((const unaligned<int32_t> *)(indices + index))[i];
                if (k < 0 || k > t.limit) return false;
            }
        }
        for (int64_t i = 0; i < t.inner; i++) {
            const int64_t k = t.by_source || t.by_target ? ((const unaligned<int32_t> *)(indices + index))[i] : i;
            const int64_t a = t.from + j * t.from_outer + (t.by_source ? k : i) * t.from_inner;
            const int64_t b = t.to + j * t.to_outer + (t.by_target ? k : i) * t.to_inner;
            if (a < 0 || a + t.length > t.from_size || b < 0 || b + t.length > t.to_size) return false;
            memmove(to + b, from + a, t.length);
        }
    }
    return true;
}

void run_move(const Run &run, const Move &m) {
    Output output(run, m.stage);
    uint8_t *row = run.buffers.get(run.buffers.rows, (int64_t)m.in.width * m.in.depth * m.in.bytes);
    for (int y = 0; y < m.in.height; y++) {
        read_raw(run.at(m.in), m.in, y, row);
        output.stored(y, row);
    }
    output.close();
}

void run_resize(const Run &run, const Resize &r) {
    const Stage &s = r.stage;
    const int64_t depth = s.depth, row_size = r.in.width * depth;
    Output output(run, s);
    int64_t *first = run.buffers.of<int64_t>(run.buffers.rows, row_size), *second = run.buffers.of<int64_t>(run.buffers.matrix, row_size);
    int64_t *sums = run.buffers.of<int64_t>(run.buffers.sums, s.width * depth);
    const bool bilinear = r.mode == 0, nearest = r.mode == 2;
    for (int y = 0; y < s.height; y++) {
        const int64_t part = r.row_part[y];
        const int64_t from = nearest && 2 * part >= r.row_n ? r.row1[y] : r.row0[y];
        read_row<int64_t>(run.at(r.in), r.in, (int)from, first, depth, r.in.zero_point);
        if (bilinear) {
            read_row<int64_t>(run.at(r.in), r.in, (int)r.row1[y], second, depth, r.in.zero_point);
            for (int64_t k = 0; k < row_size; k++) first[k] = first[k] * (r.row_n - part) + second[k] * part;
        }
        for (int x = 0; x < s.width; x++) {
            const int64_t share = r.column_part[x], *left = first + r.column0[x] * depth, *right = first + r.column1[x] * depth;
            const int64_t *one = nearest && 2 * share >= r.column_n ? right : left;
            int64_t *to = sums + x * depth;
            if (bilinear)
                for (int64_t c = 0; c < depth; c++) to[c] = (int64_t)((uint64_t)(left[c] * (r.column_n - share) + right[c] * share) << 16);
            else
                for (int64_t c = 0; c < depth; c++) to[c] = (int64_t)((uint64_t)one[c] << 16);
        }
        output.rows(y, 1, sums, depth);
    }
    output.close();
}
