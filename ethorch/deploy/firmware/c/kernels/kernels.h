/* CPU operators in C11. They use no heap and require only memcpy and memset.
 *
 * A tensor is an address and an array of etk_axis, which ethorch generates and which contains the location of each element. Each
 * operator is a row function (etk_row), and etk_map calls the function for each row. Unless stated otherwise, results equal those of
 * ExecuTorch's runtime on the host, bit for bit.
 */

#ifndef ETHORCH_KERNELS_H
#define ETHORCH_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* Declares the required library functions, because a freestanding compiler has no string.h. */
void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
void *memset(void *at, int value, size_t bytes);

#define ETK_OPERANDS 4  /* operands of a row function: the output, and up to three inputs */
#define ETK_MAX_RANK 16 /* maximum number of tensor dimensions in a .pte */

/* Products and sums are rounded separately, as on the host, without fused multiply-add. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

/* Access to elements in memory that is declared as bytes. */
#if defined(__GNUC__) || defined(__clang__)
#define ETK_ALIAS __attribute__((may_alias))
#define ETK_INLINE static inline __attribute__((always_inline)) /* for functions of one element */
#else
#define ETK_ALIAS
#define ETK_INLINE static inline
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

/* One axis of a loop: the number of steps, and the bytes per step in each operand, output first. A step of 0 repeats an element. */
typedef struct {
  int32_t size;
  int32_t step[ETK_OPERANDS];
} etk_axis;

/* Computes `count` elements. `step` contains the bytes between consecutive elements of each operand, output first. */
typedef void etk_row(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                     const void *parameters);

/* A second output is passed as an input. */
typedef union {
  const uint8_t *read;
  uint8_t *write;
} etk_address;

/* Calls `row` for each row along the last axis. The addresses of unused operands are ignored. */
void etk_map(etk_row *row, const void *parameters, const etk_axis *axes, uint32_t rank, void *out, const void *a,
             const void *b, const void *c);

/* A row function whose operands are converted from and to other dtypes, in blocks of elements. */
typedef struct {
  etk_row *row;
  const void *parameters;
  etk_row *store;        /* converts results of `row` to the output's dtype; 0 if the dtypes are equal */
  etk_row *load[3];      /* converts an input to the dtype of `row`; 0 if the dtypes are equal */
  int32_t item_bytes[ETK_OPERANDS]; /* element sizes of `row`, at most 8 */
} etk_conversion;
etk_row etk_converted; /* parameters: etk_conversion */

/* copy.c: elements of 1, 2, 4 or 8 bytes. */
etk_row etk_copy_1, etk_copy_2, etk_copy_4, etk_copy_8;
etk_row etk_fill_1, etk_fill_2, etk_fill_4, etk_fill_8; /* parameters: the element */
/* Copies runs of bytes that are contiguous in both operands; the axes iterate over the runs. */
void etk_copy_runs(size_t bytes, const etk_axis *axes, uint32_t rank, void *out, const void *in);

/* cast.c: etk_cast_TO_FROM for all pairs of the dtypes that have a type above. Floats are converted to integers as in etk_to_i32.
 * Integers out of range lose their high bits. All values except 0 are converted to true. */
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

/* quantize.c: parameters: etk_quantization. The inputs of *_channels are values, scales (float64) and zero points (int64). */
typedef struct {
  float scale; /* for quantize, 1 / scale */
  int32_t zero_point;
  int32_t low, high;
} etk_quantization;
etk_row etk_quantize_i8, etk_quantize_u8, etk_quantize_i16, etk_quantize_u16, etk_quantize_i32;
etk_row etk_dequantize_i8, etk_dequantize_u8, etk_dequantize_i16, etk_dequantize_u16, etk_dequantize_i32;
etk_row etk_quantize_channels_i8, etk_quantize_channels_u8, etk_quantize_channels_i16, etk_quantize_channels_u16,
    etk_quantize_channels_i32;
etk_row etk_dequantize_channels_i8, etk_dequantize_channels_u8, etk_dequantize_channels_i16, etk_dequantize_channels_u16,
    etk_dequantize_channels_i32;

/* elementwise.c: etk_NAME_TYPE computes and returns TYPE; comparisons and logical functions return a bool. Integers wrap. Integer
 * division by 0 returns 0, whereas ExecuTorch's runtime raises an error. */
#define ETK_DECLARE_ARITHMETIC(TYPE)                                                                                     \
  etk_row etk_add_##TYPE, etk_add_scaled_##TYPE, etk_sub_##TYPE, etk_sub_scaled_##TYPE, etk_mul_##TYPE, etk_neg_##TYPE,  \
      etk_abs_##TYPE, etk_sign_##TYPE, etk_relu_##TYPE, etk_floor_divide_##TYPE, etk_trunc_divide_##TYPE,                \
      etk_fmod_##TYPE, etk_minimum_##TYPE, etk_maximum_##TYPE, etk_clamp_##TYPE, etk_eq_##TYPE,    \
      etk_ne_##TYPE, etk_lt_##TYPE, etk_le_##TYPE, etk_gt_##TYPE, etk_ge_##TYPE, etk_where_##TYPE
ETK_DECLARE_ARITHMETIC(f32);
ETK_DECLARE_ARITHMETIC(i32);
ETK_DECLARE_ARITHMETIC(i64);
#define ETK_DECLARE_BITS(TYPE)                                                                                           \
  etk_row etk_bitwise_and_##TYPE, etk_bitwise_or_##TYPE, etk_bitwise_xor_##TYPE, etk_bitwise_not_##TYPE,                 \
      etk_left_shift_##TYPE, etk_right_shift_##TYPE
ETK_DECLARE_BITS(i32);
ETK_DECLARE_BITS(i64);
etk_row etk_logical_and_b8, etk_logical_or_b8, etk_logical_xor_b8, etk_logical_not_b8;
etk_row etk_div_f32, etk_div_by_one_f32, etk_remainder_f32, etk_reciprocal_f32, etk_floor_f32, etk_ceil_f32, etk_trunc_f32, etk_round_f32, etk_isnan_f32,
    etk_isinf_f32, etk_hardtanh_f32, etk_clamp_each_f32, etk_leaky_relu_f32, etk_sqrt_f32, etk_rsqrt_f32;

/* functions.c, and pow.c */
etk_row etk_exp_f32, etk_expm1_f32, etk_log_f32, etk_log1p_f32, etk_log2_f32, etk_log10_f32, etk_tanh_f32,
    etk_sigmoid_f32, etk_sin_f32, etk_cos_f32, etk_tan_f32, etk_erf_f32, etk_gelu_f32,
    etk_gelu_tanh_f32;
etk_row etk_elu_f32; /* parameters: three floats, alpha, scale and the factor of x in the exponent */
etk_row etk_pow_f32;

/* See places.c for the parameters. argmax and argmin return int64. The indices of topk, which are its second output, are passed as
 * the first input. */
#define ETK_DECLARE_PLACES(TYPE) etk_row etk_argmax_##TYPE, etk_argmin_##TYPE, etk_topk_##TYPE
ETK_DECLARE_PLACES(i8);
ETK_DECLARE_PLACES(u8);
ETK_DECLARE_PLACES(i16);
ETK_DECLARE_PLACES(i32);
ETK_DECLARE_PLACES(i64);
ETK_DECLARE_PLACES(f32);
etk_row etk_argmax_b8, etk_argmin_b8;

/* See softmax.c for the parameters. */
typedef struct {
  int32_t count;
  float eps;
} etk_normalization;
etk_row etk_softmax_f32, etk_log_softmax_f32, etk_moments_f32, etk_normalize_f32;

/* index.c: out[place] = x[place + sum of index * step], or the reverse. A negative index counts from the end. Returns 1 if an
 * index is out of range, and does not access its element. */
typedef struct {
  int32_t indices;      /* number of indices: 1 or 2 */
  int32_t index_bytes;  /* 4 for int32, 8 for int64 */
  int32_t size[2];      /* size of the indexed axis */
  int32_t step[2];      /* bytes from one index to the next */
  int32_t run_bytes;    /* contiguous bytes in both operands */
} etk_indexing;
int etk_take(const etk_indexing *indexing, const etk_axis *axes, uint32_t rank, void *out, const void *x, const void *first,
             const void *second);
int etk_put(const etk_indexing *indexing, const etk_axis *axes, uint32_t rank, void *out, const void *x, const void *first,
            const void *second);
int etk_put_sum_f32(const etk_indexing *indexing, const etk_axis *axes, uint32_t rank, void *out, const void *x,
                    const void *first, const void *second);
int etk_put_sum_i32(const etk_indexing *indexing, const etk_axis *axes, uint32_t rank, void *out, const void *x,
                    const void *first, const void *second);
int etk_put_sum_i64(const etk_indexing *indexing, const etk_axis *axes, uint32_t rank, void *out, const void *x,
                    const void *first, const void *second);

/* resize.c: resizes planes of an image. The scales are computed like PyTorch's. */
typedef struct {
  int32_t in_size[2], out_size[2];       /* height, width */
  int32_t in_step[2], out_step[2];       /* bytes */
  float scale[2];
  int32_t align_corners;
} etk_resize;
etk_row etk_nearest_1, etk_nearest_2, etk_nearest_4, etk_nearest_8, etk_bilinear_f32; /* a row consists of planes */

/* product.c: parameters: number of products, and bytes between consecutive elements of each input. Sums are in index order. */
etk_row etk_dot_f32;

/* cortex_m.c: parameters: etk_quantization, or as described in cortex_m.c. */
#define ETK_DECLARE_CORTEX_M(TYPE) etk_row etk_cortex_m_quantize_##TYPE, etk_cortex_m_dequantize_##TYPE
ETK_DECLARE_CORTEX_M(i8);
ETK_DECLARE_CORTEX_M(u8);
ETK_DECLARE_CORTEX_M(i16);
ETK_DECLARE_CORTEX_M(u16);
ETK_DECLARE_CORTEX_M(i32);
etk_row etk_cortex_m_add, etk_cortex_m_mul, etk_cortex_m_dot, etk_cortex_m_activation;

/* pool.c: pairs are height and width; steps are in bytes. */
typedef struct {
  int32_t in_size[2], out_size[2], in_step[2], out_step[2], kernel[2], stride[2], padding[2], dilation[2];
  int32_t divisor, counts_padding;                  /* for means; a divisor of 0 selects the number of elements */
  int32_t place_step[2];                            /* for the indices of maxima */
  int32_t channels, channel_step, weight_step[3];   /* for convolutions: channels of a group; weights by channel, height, width */
  int32_t has_bias;
} etk_window;
etk_row etk_avg_pool_f32, etk_convolution_f32;
etk_row etk_max_pool_i8, etk_max_pool_u8, etk_max_pool_i16, etk_max_pool_i32, etk_max_pool_f32;

#endif
