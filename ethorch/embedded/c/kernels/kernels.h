/* Operators that stay on the CPU: C11, no heap, no library but memcpy and memset.
 *
 * A tensor is an address; where its elements lie is in an array of etk_axis, which the generator of the project computes. Each
 * operator is a function of a row (etk_row), and etk_map walks over the rows. Results are those of ExecuTorch's runtime on the
 * desk, bit for bit where nothing else is said.
 */

#ifndef ETHORCH_KERNELS_H
#define ETHORCH_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ETK_OPERANDS 4  /* of a function of a row: the output, and up to three inputs */
#define ETK_MAX_RANK 16 /* axes of a tensor in a .pte */

/* A product and a sum are rounded each by itself, as on the desk: no fused multiply-add. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

/* Elements of memory that is declared as bytes. */
#if defined(__GNUC__) || defined(__clang__)
#define ETK_ALIAS __attribute__((may_alias))
#else
#define ETK_ALIAS
#endif
typedef int8_t etk_i8;
typedef uint8_t etk_u8;
typedef uint8_t etk_b8; /* a bool: 0 or 1 */
typedef int16_t ETK_ALIAS etk_i16;
typedef uint16_t ETK_ALIAS etk_u16;
typedef int32_t ETK_ALIAS etk_i32;
typedef uint32_t ETK_ALIAS etk_u32;
typedef int64_t ETK_ALIAS etk_i64;
typedef uint64_t ETK_ALIAS etk_u64;
typedef float ETK_ALIAS etk_f32;
typedef double ETK_ALIAS etk_f64;

/* One axis of a walk: how many steps, and the bytes of a step in each operand (the output first); 0 repeats. */
typedef struct {
  int32_t size;
  int32_t step[ETK_OPERANDS];
} etk_axis;

/* Computes `count` elements; `step` are bytes from one element to the next, the output's first. */
typedef void etk_row(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                     const void *parameters);

/* Calls `row` for each row: the last of the axes is the one within a row. Operands that there are not may be any address. */
void etk_map(etk_row *row, const void *parameters, const etk_axis *axes, uint32_t rank, void *out, const void *a,
             const void *b, const void *c);

/* A function of a row whose operands have other dtypes than the function takes: converted some elements at a time. */
typedef struct {
  etk_row *row;
  const void *parameters;
  etk_row *store;        /* from what `row` gives to the output's dtype; 0: they are the same */
  etk_row *load[3];      /* from an input's dtype to what `row` takes; 0: they are the same */
  int32_t item_bytes[ETK_OPERANDS]; /* of the elements that `row` sees; at most 8 */
} etk_conversion;
etk_row etk_converted; /* parameters: etk_conversion */

/* copy.c: elements of 1, 2, 4 or 8 bytes. */
etk_row etk_copy_1, etk_copy_2, etk_copy_4, etk_copy_8;
etk_row etk_fill_1, etk_fill_2, etk_fill_4, etk_fill_8; /* parameters: the element */
/* Runs of bytes that lie one after the other in both operands; the axes walk over the runs. */
void etk_copy_runs(size_t bytes, const etk_axis *axes, uint32_t rank, void *out, const void *in);

/* cast.c: etk_cast_TO_FROM for all pairs of the dtypes that have a type above. Floats become integers as etk_to_i32 says;
 * an integer that is too large loses its high bits; whatever is not 0 is true. */
#define ETK_DECLARE_CASTS(TO)                                                                                            \
  etk_row etk_cast_##TO##_i8, etk_cast_##TO##_u8, etk_cast_##TO##_i16, etk_cast_##TO##_u16, etk_cast_##TO##_i32,         \
      etk_cast_##TO##_u32, etk_cast_##TO##_i64, etk_cast_##TO##_f32, etk_cast_##TO##_f64, etk_cast_##TO##_b8
ETK_DECLARE_CASTS(i8);
ETK_DECLARE_CASTS(u8);
ETK_DECLARE_CASTS(i16);
ETK_DECLARE_CASTS(u16);
ETK_DECLARE_CASTS(i32);
ETK_DECLARE_CASTS(u32);
ETK_DECLARE_CASTS(i64);
ETK_DECLARE_CASTS(f32);
ETK_DECLARE_CASTS(f64);
ETK_DECLARE_CASTS(b8);

/* quantize.c: parameters etk_quantization; the inputs of *_channels are the values, scales (float64), zero points (int64). */
typedef struct {
  float scale; /* of a quantize, 1 / scale */
  int32_t zero_point;
  int32_t low, high;
} etk_quantization;
etk_row etk_quantize_i8, etk_quantize_u8, etk_quantize_i16, etk_quantize_u16, etk_quantize_i32;
etk_row etk_dequantize_i8, etk_dequantize_u8, etk_dequantize_i16, etk_dequantize_u16, etk_dequantize_i32;
etk_row etk_quantize_channels_i8, etk_quantize_channels_u8, etk_quantize_channels_i16, etk_quantize_channels_u16,
    etk_quantize_channels_i32;
etk_row etk_dequantize_channels_i8, etk_dequantize_channels_u8, etk_dequantize_channels_i16, etk_dequantize_channels_u16,
    etk_dequantize_channels_i32;

#endif
