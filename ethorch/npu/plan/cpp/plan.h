// The plan: a prepared command stream as structs. ethorch/npu/plan/layout.py defines the same structs for ctypes.
// library.py compares their sizes with those that the library reports.
//
// This code checks no addresses: when Python builds the plan, it proves that every address is in its region, every table index in
// its table, and every sum in the range of its type. Values that depend on data (indices of a gather, shift amounts, divisors) are
// checked at run time; a step with an invalid value stops the run before it writes anything.
#pragma once
#include <cstdint>

// Regions of a machine: 0 to 7 as in the stream, then internal memory, then memory of the plan that persists between steps
// (chain buffers, accumulators).
constexpr int REGIONS = 10;

struct Tile {
    int32_t y, x, height, width;
    int64_t base;
};

// A feature map: element (y, x, c) of a tile is at base + y*sy + x*sx + c*bytes, or in bricks of 16 channels with stride sc.
struct Map {
    int32_t region, tiles, bricks, bytes, is_signed, height, width, depth;
    int64_t zero_point, sy, sx, sc;
    Tile tile[4];
};

// v -> floor((v*multiplier + (v >= 0 ? above : below)) / 2**shift), which represents every rounding of the NPU.
struct Scale {
    const int64_t *multiplier, *shift, *above, *below;  // one, or one per channel; padded as in DoubleScale
    int32_t per_channel, is_identity, symmetric, pad;  // symmetric: above and below differ
};

// The same in float64, if that is exact: floor(v*factor + (v >= 0 ? above : below)), all multiplied by 2**-shift.
struct DoubleScale {
    const double *factor, *above, *below;  // padded to a multiple of 16 entries, plus 16
    int32_t per_channel, symmetric;
};

enum { TABLE_NONE, TABLE_DIRECT, TABLE_16_16, TABLE_16_32, TABLE_TANH, TABLE_SIGMOID };
// Stage::mode. INTEGER reads int64 sums, the others int32: DOUBLE scales in float64, LONG in int64 by a 32-bit multiplier.
enum { SCALE_INTEGER, SCALE_DOUBLE, SCALE_NOTHING, SCALE_LONG };

// The output stage. height, width, depth are the computed box; ``out`` is its location, possibly transposed.
struct Stage {
    Map out, ifm2;
    int32_t height, width, depth, mode;
    int32_t axis[3], reverse, whole, turned;  // out axis i is computed axis axis[i]; whole: nothing is stored before all is computed
    int32_t adds_kept, adds_ifm2, keeps, clamps;
    int32_t table, entry_bytes, entry_signed, pad;
    int64_t low, high, table_address, table_bytes, table_origin, kept;  // kept: offset of the accumulator in the plan's own region
    const void *built_in;
    const int64_t *offset, *bias;  // [depth] or null: added before and after the kept accumulator
    Scale scale;
    DoubleScale scaled;
};

struct Window {
    Map in;
    int32_t kh, kw, sy, sx, dy, dx, top, left, size_h, size_w, padded_w, upscale;
};

enum { KIND_COPY, KIND_TRANSFER, KIND_CONV, KIND_DEPTHWISE, KIND_PRODUCT, KIND_POOL, KIND_ELEMENTWISE, KIND_RESIZE, KIND_MOVE, KIND_DOT, KIND_NOTHING };

struct Copy {
    int32_t from_region, to_region;
    int64_t from, to, bytes;
};

struct Transfer {
    int32_t from_region, to_region, index_region, by_source, by_target, pad;
    int64_t length, inner, outer, from, from_inner, from_outer, to, to_inner, to_outer, index, index_outer, limit;
    int64_t from_size, to_size, index_size;
};

// ``element`` is the contents of four bytes of a pixel: 1 four unsigned bytes, 2 two int16. Weights are packed by pack_weights.
struct Conv {
    Window window;
    Stage stage;
    const void *weights;
    const int32_t *start;  // initial sums, padded
    int32_t element, flip, padded_depth, chunk;  // chunk: taps*depth/elements summed in int32 before they move to int64, or 0
};

enum { SUM_FLOAT, SUM_INT32, SUM_INT64 };

struct Depthwise {
    Window window;
    Stage stage;
    const void *weights;  // [taps][padded depth] of the sum's type
    const void *start;    // [padded depth] of the sum's type: initial sums
    int32_t sum, padded_depth;
};

struct Product {
    Window window;
    Map weights;
    Stage stage;
    int32_t wide, element, flip, padded_depth;  // as in Conv; flips: bit 0 of pixels, bit 1 of weights
};

enum { POOL_SUM, POOL_AVERAGE, POOL_MAX, POOL_MIN, POOL_REDUCE_SUM, POOL_NONE, POOL_ARGMAX_Y, POOL_ARGMAX_X };

struct Pool {
    Window window;
    Stage stage;
    int32_t kind, wide;
    const int64_t *multiplier, *shift;  // AVERAGE: [height*width] reciprocals of the valid positions
    int64_t fill;
};

enum {
    DO_ADD, DO_SUB, DO_MUL, DO_MIN, DO_MAX, DO_LRELU, DO_ABS, DO_CLZ, DO_SHR, DO_SHL, DO_LSR, DO_DIV,
    DO_EQ, DO_NE, DO_GE, DO_GT, DO_AND, DO_OR, DO_XOR, DO_NOT, DO_AND_NOT
};
enum { WANT_NOTHING, WANT_SHIFT, WANT_DIVISOR };

struct Operand {
    Map map;
    int32_t is_constant, spread;  // spread: broadcast axes of the map, 1 y, 2 x, 4 c
    int64_t constant;             // minus the zero point
    Scale scale;
    DoubleScale scaled;
};

struct Elementwise {
    Operand a, b;
    Stage stage;
    const uint8_t *pairs;  // result of each pair of bytes, before a table; null: computed
    int32_t what, operands, wide, wraps, rounds, want;
    int64_t mask;
};

struct Resize {
    Map in;
    Stage stage;
    int32_t mode, pad;
    int64_t row_n, column_n;
    const int64_t *row0, *row1, *row_part, *column0, *column1, *column_part;
};

// A copy of bytes.
struct Move {
    Map in;
    Stage stage;
};

// Products of bytes and their sums over channels, without storing the products. spread: as in Operand, for b.
struct Dot {
    Map a, b;
    Stage stage;
    int32_t spread, depth, add, pad;  // add: added to every sum
};

struct Step {
    int32_t kind, pad;
    const void *what;
};

struct Machine {
    uint8_t *region[REGIONS];
};
