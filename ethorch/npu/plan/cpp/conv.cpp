// Convolutions. The channels of a pixel are in groups of four bytes: four unsigned bytes, or two int16. A group and a vector of
// weights, which contains the same group of LANES output channels, produce LANES sums at once. A kernel row is contiguous in the
// padded input, so no patches are copied.
#include "output.h"
#include "simd.h"
#include "steps.h"

namespace {

// Location of a window's groups: ``runs`` runs of ``groups`` groups, each at an offset from the window's first byte.
struct Groups {
    int runs, groups;
    const int64_t *offsets;
};

// PIXELS windows times VECTORS vectors of channels.
template <int ELEMENT, int PIXELS, int VECTORS>
inline void tile(const uint8_t *const *pixels, const Groups &g, const vi32 *weights, const int32_t *start, int32_t *sums, int64_t pixel, int count) {
    vi32 acc[PIXELS][VECTORS];
#pragma GCC unroll 16
    for (int p = 0; p < PIXELS; p++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) acc[p][v] = load(start + v * LANES);
    for (int r = 0; r < g.runs; r++) {
        const int64_t offset = g.offsets[r];
        const uint8_t *at[PIXELS];
#pragma GCC unroll 16
        for (int p = 0; p < PIXELS; p++) at[p] = pixels[p] + offset;
        for (int k = 0; k < g.groups; k++, weights += VECTORS) {
#pragma GCC unroll 16
            for (int p = 0; p < PIXELS; p++) {
                int32_t group;
                memcpy(&group, at[p] + 4 * k, 4);
#pragma GCC unroll 2
                for (int v = 0; v < VECTORS; v++) acc[p][v] = dot<ELEMENT>(acc[p][v], group, weights[v]);
            }
        }
    }
#pragma GCC unroll 16
    for (int p = 0; p < PIXELS; p++)
        if (p < count)
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++) store(sums + p * pixel + v * LANES, acc[p][v]);
}

// All pixels of a band times a block of channels.
template <int ELEMENT, int VECTORS>
void block(const uint8_t *const *pixels, int count, const Groups &g, const vi32 *weights, const int32_t *start, int32_t *sums, int64_t pixel) {
    for (int p = 0; p < count;) {
        const int left = count - p;
        int32_t *to = sums + p * pixel;
        if (left > MOST_PIXELS / 2) {
            tile<ELEMENT, MOST_PIXELS, VECTORS>(pixels + p, g, weights, start, to, pixel, left);
            p += MOST_PIXELS;
        } else if (left > 2) {
            tile<ELEMENT, MOST_PIXELS / 2, VECTORS>(pixels + p, g, weights, start, to, pixel, left);
            p += MOST_PIXELS / 2;
        } else if (left == 2) {
            tile<ELEMENT, 2, VECTORS>(pixels + p, g, weights, start, to, pixel, left);
            p += 2;
        } else {
            tile<ELEMENT, 1, VECTORS>(pixels + p, g, weights, start, to, pixel, left);
            p += 1;
        }
    }
}

// Sums [count][padded channels] of all blocks. ``pixels`` has MOST_PIXELS further readable entries.
template <int ELEMENT>
void all_blocks(const uint8_t *const *pixels, int count, const Groups &g, const void *weights, const int32_t *start, int depth, int32_t *sums, int64_t pixel) {
    const vi32 *w = (const vi32 *)weights;
    for (int o = 0; o < depth; o += 2 * LANES) {
        if (depth - o > LANES) {
            block<ELEMENT, 2>(pixels, count, g, w, start + o, sums + o, pixel);
            w += (int64_t)g.runs * g.groups * 2;
        } else {
            block<ELEMENT, 1>(pixels, count, g, w, start + o, sums + o, pixel);
        }
    }
}

constexpr int64_t BAND_BYTES = 1 << 18;  // of sums and of input rows, to fit a core's cache

int band_rows(const Stage &s, int64_t row_bytes, int64_t sum_bytes) {
    const int64_t n = std::min(BAND_BYTES / std::max<int64_t>(row_bytes, 1), BAND_BYTES / std::max<int64_t>(sum_bytes, 1));
    return (int)std::max<int64_t>(1, std::min<int64_t>(s.height, n));
}

int64_t padded_channels(int depth) { return (depth + 2 * LANES - 1) / (2 * LANES) * (2 * LANES); }

template <class T, int ELEMENT>
void conv(const Run &run, const Conv &c) {
    const Window &w = c.window;
    const Stage &s = c.stage;
    const int64_t depth = c.padded_depth, pixel = padded_channels(s.depth);
    const int most = band_rows(s, w.padded_w * depth * (int64_t)sizeof(T) * w.sy, s.width * pixel * 4);
    Rows<T> rows(run, w, depth, (T)(w.in.zero_point ^ (sizeof(T) == 1 ? c.flip : 0)), most, c.flip);
    // One run per kernel row, or per tap if taps are not adjacent.
    const bool dense = w.dx == 1;
    std::vector<int64_t> offsets;
    for (int ky = 0; ky < w.kh; ky++)
        for (int kx = 0; kx < (dense ? 1 : w.kw); kx++) offsets.push_back((ky * w.dy * rows.stride + kx * w.dx * depth) * (int64_t)sizeof(T));
    const int group = 4 / (int)sizeof(T);
    const Groups g{(int)offsets.size(), (int)((dense ? w.kw : 1) * depth / group), offsets.data()};
    std::vector<const uint8_t *> pixels((size_t)most * s.width + MOST_PIXELS);
    Output output(run, s);
    int32_t *sums = run.buffers.of<int32_t>(run.buffers.sums, (int64_t)most * s.width * pixel);
    int64_t *wide = c.chunk ? run.buffers.of<int64_t>(run.buffers.matrix, (int64_t)s.width * s.depth) : nullptr;
    for (int first = 0; first < s.height; first += most) {
        const int n = std::min(most, s.height - first), count = n * s.width;
        rows.read(first, n);
        for (int y = 0, p = 0; y < n; y++)
            for (int x = 0; x < s.width; x++) pixels[p++] = (const uint8_t *)(rows.data + (int64_t)y * w.sy * rows.stride + (int64_t)x * w.sx * depth);
        for (int p = 0; p < MOST_PIXELS; p++) pixels[count + p] = pixels[count - 1];
        if (!c.chunk) {
            all_blocks<ELEMENT>(pixels.data(), count, g, c.weights, c.start, s.depth, sums, pixel);
            output.rows(first, n, sums, pixel);
            continue;
        }
        // Sums that may exceed int32: pieces of each run, added in int64.
        for (int y = 0; y < n; y++) {
            std::fill(wide, wide + (int64_t)s.width * s.depth, 0);
            for (int o = 0; o < s.depth; o += 2 * LANES) {
                const int vectors = s.depth - o > LANES ? 2 : 1, channels = std::min(2 * LANES, s.depth - o);
                const vi32 *base = (const vi32 *)c.weights + (int64_t)o / LANES * g.runs * g.groups;
                for (int r = 0; r < g.runs; r++)
                    for (int k = 0; k < g.groups; k += c.chunk) {
                        const int64_t offset = offsets[r] + 4 * k;
                        const Groups part{1, std::min(c.chunk, g.groups - k), &offset};
                        const vi32 *weights = base + ((int64_t)r * g.groups + k) * vectors;
                        const uint8_t *const *at = pixels.data() + (int64_t)y * s.width;
                        vectors == 2 ? block<ELEMENT, 2>(at, s.width, part, weights, c.start, sums, pixel)
                                     : block<ELEMENT, 1>(at, s.width, part, weights, c.start, sums, pixel);
                        for (int x = 0; x < s.width; x++)
                            for (int ch = 0; ch < channels; ch++) wide[(int64_t)x * s.depth + o + ch] += sums[x * pixel + ch];
                    }
            }
            output.rows(first + y, 1, wide, s.depth);
        }
    }
    output.close();
}

// Weights [rows][depth][channels] of int16 or less -> vectors, see all_blocks. rows: taps; depth is padded to whole groups.
template <class W, int ELEMENT>
void pack(const W *from, int64_t taps, int64_t depth, int64_t channels, uint8_t *to) {
    const int group = ELEMENT == 1 ? 4 : 2;
    for (int64_t o = 0; o < channels; o += 2 * LANES) {
        const int64_t vectors = channels - o > LANES ? 2 : 1;
        for (int64_t t = 0; t < taps; t++)
            for (int64_t c = 0; c < depth; c += group)
                for (int64_t lane = 0; lane < vectors * LANES; lane++)
                    for (int k = 0; k < group; k++) {
                        const bool is = c + k < depth && o + lane < channels;
                        const int16_t value = is ? (int16_t)from[(t * depth + c + k) * channels + o + lane] : 0;
                        if (ELEMENT == 1) {
                            *to++ = (uint8_t)value;
                        } else {
                            memcpy(to, &value, 2);
                            to += 2;
                        }
                    }
    }
}

}  // namespace

void run_conv(const Run &run, const Conv &c) {
    if (c.element == 1)
        conv<uint8_t, 1>(run, c);
    else
        conv<int16_t, 2>(run, c);
}

void run_product(const Run &run, const Product &p) {
    const Window &w = p.window;
    const Stage &s = p.stage;
    const int64_t depth = p.padded_depth, outs = s.depth, in = w.in.depth;
    Output output(run, s);
    if (p.wide) {
        int64_t *matrix = run.buffers.of<int64_t>(run.buffers.rows, (outs + w.in.width) * in), *row = matrix + outs * in;
        read_row<int64_t>(run.at(p.weights), p.weights, 0, matrix, in, p.weights.zero_point);
        int64_t *sums = run.buffers.of<int64_t>(run.buffers.sums, s.width * outs);
        for (int y = 0; y < s.height; y++) {
            read_row<int64_t>(run.at(w.in), w.in, y * w.sy, row, in, w.in.zero_point);
            for (int x = 0; x < s.width; x++)
                for (int64_t o = 0; o < outs; o++) {
                    int64_t sum = 0;
                    for (int64_t c = 0; c < in; c++) sum += row[x * w.sx * in + c] * matrix[o * in + c];
                    sums[x * outs + o] = sum;
                }
            output.rows(y, 1, sums, outs);
        }
        return output.close();
    }
    // Weights [outs][in] -> vectors of pairs.
    int16_t *matrix = run.buffers.of<int16_t>(run.buffers.rows, outs * depth);
    read_row<int16_t>(run.at(p.weights), p.weights, 0, matrix, depth, (int16_t)p.weights.zero_point);
    const int64_t pixel = padded_channels((int)outs);
    int16_t *packed = run.buffers.of<int16_t>(run.buffers.matrix, pixel * depth), *to = packed;
    for (int64_t o = 0; o < outs; o += 2 * LANES) {
        const int64_t vectors = outs - o > LANES ? 2 : 1;
        for (int64_t c = 0; c < depth; c += 2)
            for (int64_t lane = 0; lane < vectors * LANES; lane++)
                for (int k = 0; k < 2; k++) *to++ = o + lane < outs && c + k < in ? matrix[(o + lane) * depth + c + k] : 0;
    }
    const std::vector<int32_t> start(pixel, 0);
    const int64_t offset = 0;
    const Groups g{1, (int)depth / 2, &offset};
    std::vector<const uint8_t *> pixels(s.width + MOST_PIXELS);
    int16_t *row = run.buffers.of<int16_t>(run.buffers.rows, w.in.width * depth);
    std::fill(row, row + w.in.width * depth, 0);
    int32_t *sums = run.buffers.of<int32_t>(run.buffers.sums, s.width * pixel);
    for (int y = 0; y < s.height; y++) {
        read_row<int16_t>(run.at(w.in), w.in, y * w.sy, row, depth, (int16_t)w.in.zero_point);
        for (int x = 0; x < s.width + MOST_PIXELS; x++) pixels[x] = (const uint8_t *)(row + (int64_t)std::min(x, s.width - 1) * w.sx * depth);
        all_blocks<2>(pixels.data(), s.width, g, packed, start.data(), (int)outs, sums, pixel);
        output.rows(y, 1, sums, pixel);
    }
    output.close();
}

extern "C" __attribute__((visibility("default"))) int64_t ethorch_packed_bytes(int64_t taps, int64_t depth, int64_t channels, int element) {
    const int64_t group = element == 1 ? 4 : 2, groups = taps * ((depth + group - 1) / group);
    const int64_t vectors = channels / (2 * LANES) * 2 + (channels % (2 * LANES) ? (channels % (2 * LANES) > LANES ? 2 : 1) : 0);
    return groups * vectors * LANES * 4;
}

// weight_bytes: 1 int8, 2 int16.
extern "C" __attribute__((visibility("default"))) void ethorch_pack_weights(
    const void *from, int weight_bytes, int64_t taps, int64_t depth, int64_t channels, int element, uint8_t *to) {
    if (weight_bytes == 1)
        element == 1 ? pack<int8_t, 1>((const int8_t *)from, taps, depth, channels, to) : pack<int8_t, 2>((const int8_t *)from, taps, depth, channels, to);
    else
        element == 1 ? pack<int16_t, 1>((const int16_t *)from, taps, depth, channels, to) : pack<int16_t, 2>((const int16_t *)from, taps, depth, channels, to);
}

extern "C" __attribute__((visibility("default"))) int ethorch_byte_dot() { return HAS_BYTE_DOT; }
