/* Elementwise arithmetic, comparisons and logical functions. */

#include "arithmetic.h"

float etk_sqrt(float x) {
#if defined(__ARM_FP) && (__ARM_FP & 4)
  float root;
  __asm__("vsqrt.f32 %0, %1" : "=t"(root) : "t"(x));
  return root;
#else
  uint32_t bits = etk_bits(x), rest, root = 0U, bit;
  int32_t exponent;
  if (!(x > 0.0F) || bits == 0x7F800000U) {
    return (x < 0.0F) ? etk_from_bits(0x7FC00000U) : x; /* +-0, inf and NaN are unchanged */
  }
  exponent = (int32_t)(bits >> 23) - 127;
  bits &= 0x7FFFFFU;
  if (exponent == -127) { /* subnormal: normalize */
    exponent = -126;
    while ((bits & 0x800000U) == 0U) {
      bits <<= 1;
      exponent -= 1;
    }
  }
  bits |= 0x800000U;
  if ((exponent & 1) != 0) {
    bits <<= 1;
    exponent -= 1;
  }
  /* 25 bits of the root of bits * 2^(25 - 23 + 24), which is one bit more than a float has and is used for rounding. */
  rest = 0U;
  {
    uint64_t operand = (uint64_t)bits << 25, remainder = 0U;
    uint64_t result = 0U;
    for (bit = 0U; bit < 25U; ++bit) {
      const uint32_t shift = 48U - 2U * bit;
      uint64_t trial;
      remainder = (remainder << 2) | ((operand >> shift) & 3U);
      trial = (result << 2) | 1U;
      result <<= 1;
      if (remainder >= trial) {
        remainder -= trial;
        result |= 1U;
      }
    }
    root = (uint32_t)result;
    rest = (remainder != 0U) ? 1U : 0U;
  }
  bits = (root >> 1) + (((root & 1U) != 0U && (rest != 0U || (root & 2U) != 0U)) ? 1U : 0U);
  return etk_from_bits((((uint32_t)(exponent / 2 + 127) << 23) - 0x800000U) + bits);
#endif
}

/* Splits a finite nonzero number into an integer of 24 bits and the exponent of the integer's last bit. */
static uint32_t split(uint32_t bits, int32_t *exponent) {
  uint32_t digits = bits & 0x7FFFFFU;
  *exponent = (int32_t)((bits >> 23) & 0xFFU) - 150;
  if (*exponent == -150) {
    *exponent = -149;
    while ((digits & 0x800000U) == 0U) {
      digits <<= 1;
      *exponent -= 1;
    }
    return digits;
  }
  return digits | 0x800000U;
}

float etk_fmod(float x, float y) {
  int32_t of_x, of_y;
  uint32_t rest, divisor;
  const float size = etk_magnitude(x), limit = etk_magnitude(y);
  if (!(size < etk_from_bits(0x7F800000U)) || !(limit > 0.0F)) {
    return etk_from_bits(0x7FC00000U); /* infinity, division by 0, or NaN */
  }
  if (size < limit) {
    return x;
  }
  rest = split(etk_bits(x), &of_x);
  divisor = split(etk_bits(y), &of_y);
  for (;;) { /* long division, one bit of the quotient at a time; only the remainder is stored */
    if (rest >= divisor) {
      rest -= divisor;
    }
    if (of_x == of_y || rest == 0U) {
      break;
    }
    rest <<= 1;
    of_x -= 1;
  }
  if (rest == 0U) {
    return etk_with_sign_of(0.0F, x);
  }
  while ((rest & 0x800000U) == 0U) {
    rest <<= 1;
    of_y -= 1;
  }
  if (of_y >= -149) {
    return etk_with_sign_of(etk_from_bits(((uint32_t)(of_y + 150) << 23) | (rest & 0x7FFFFFU)), x);
  }
  return etk_with_sign_of(etk_from_bits(rest >> (uint32_t)(-149 - of_y)), x); /* exact: the remainder is a multiple of 2^-149 */
}

/* Rows: OUT = EXPRESSION of x, of x and y, or of condition, x and y. */
#define ETK_ROW(NAME, OUT, A, B, C, EXPRESSION)                                                                          \
  void etk_##NAME(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,             \
                  const void *parameters) {                                                                              \
    const uint8_t *at_x = in[0], *at_y = in[1], *at_z = in[2];                                                           \
    int32_t i;                                                                                                           \
    (void)parameters;                                                                                                    \
    for (i = 0; i < count; ++i) {                                                                                        \
      A B C                                                                                                              \
      *(OUT *)(void *)out = (OUT)(EXPRESSION);                                                                           \
      out += step[0];                                                                                                    \
      at_x += step[1];                                                                                                   \
      at_y += step[2];                                                                                                   \
      at_z += step[3];                                                                                                   \
    }                                                                                                                    \
    (void)at_y;                                                                                                          \
    (void)at_z;                                                                                                          \
  }
#define ETK_X(TYPE) const TYPE x = *(const TYPE *)(const void *)at_x;
#define ETK_Y(TYPE) const TYPE y = *(const TYPE *)(const void *)at_y;
#define ETK_Z(TYPE) const TYPE z = *(const TYPE *)(const void *)at_z;
#define ETK_UNARY(NAME, OUT, TYPE, EXPRESSION) ETK_ROW(NAME, OUT, ETK_X(TYPE), , , EXPRESSION)
#define ETK_BINARY(NAME, OUT, TYPE, EXPRESSION) ETK_ROW(NAME, OUT, ETK_X(TYPE), ETK_Y(TYPE), , EXPRESSION)
#define ETK_COMPARISONS(TYPE)                                                                                            \
  ETK_BINARY(eq_##TYPE, etk_b8, etk_##TYPE, x == y)                                                                      \
  ETK_BINARY(ne_##TYPE, etk_b8, etk_##TYPE, x != y)                                                                      \
  ETK_BINARY(lt_##TYPE, etk_b8, etk_##TYPE, x < y)                                                                       \
  ETK_BINARY(le_##TYPE, etk_b8, etk_##TYPE, x <= y)                                                                      \
  ETK_BINARY(gt_##TYPE, etk_b8, etk_##TYPE, x > y)                                                                       \
  ETK_BINARY(ge_##TYPE, etk_b8, etk_##TYPE, x >= y)                                                                      \
  ETK_ROW(where_##TYPE, etk_##TYPE, ETK_X(etk_b8), ETK_Y(etk_##TYPE), ETK_Z(etk_##TYPE), (x != 0U) ? y : z)

/* Floats. Results for zeros of different signs, and abs and relu of a negative zero, are as in ExecuTorch. */
static float floor_divided(float x, float y) {
  float rest, quotient;
  if (y == 0.0F) {
    return etk_with_sign_of(etk_from_bits(0x7F800000U), x);
  }
  rest = etk_fmod(x, y);
  quotient = (x - rest) / y;
  return (rest != 0.0F && (etk_bits(y) >> 31) != (etk_bits(rest) >> 31)) ? quotient - 1.0F : quotient;
}

static float remainder_of(float x, float y) {
  const float rest = etk_fmod(x, y);
  return (rest != 0.0F && (y < 0.0F) != (rest < 0.0F)) ? rest + y : rest;
}

ETK_BINARY(add_f32, etk_f32, etk_f32, x + y)
ETK_BINARY(add_scaled_f32, etk_f32, etk_f32, x + *(const etk_f32 *)parameters * y)
ETK_BINARY(sub_f32, etk_f32, etk_f32, x - y)
ETK_BINARY(sub_scaled_f32, etk_f32, etk_f32, x - *(const etk_f32 *)parameters * y)
ETK_BINARY(mul_f32, etk_f32, etk_f32, x *y)
ETK_BINARY(div_f32, etk_f32, etk_f32, x / y)
ETK_UNARY(neg_f32, etk_f32, etk_f32, -x)
ETK_UNARY(abs_f32, etk_f32, etk_f32, (x < 0.0F) ? -x : x)
ETK_UNARY(sign_f32, etk_f32, etk_f32, (x > 0.0F) ? 1.0F : (x < 0.0F) ? -1.0F : (x == 0.0F) ? 0.0F : x)
ETK_UNARY(relu_f32, etk_f32, etk_f32, (x < 0.0F) ? 0.0F : x)
ETK_BINARY(floor_divide_f32, etk_f32, etk_f32, floor_divided(x, y))
ETK_BINARY(trunc_divide_f32, etk_f32, etk_f32, etk_truncated(x / y))
ETK_BINARY(remainder_f32, etk_f32, etk_f32, remainder_of(x, y))
ETK_BINARY(fmod_f32, etk_f32, etk_f32, etk_fmod(x, y))
ETK_BINARY(minimum_f32, etk_f32, etk_f32, (x != x) ? x : (y != y) ? y : (x < y) ? x : y)
ETK_BINARY(maximum_f32, etk_f32, etk_f32, (x != x) ? x : (y != y) ? y : (x > y) ? x : y)
ETK_ROW(clamp_f32, etk_f32, ETK_X(etk_f32), ETK_Y(etk_f32), ETK_Z(etk_f32),
        (x != x) ? x : (y != y) ? y : (z != z) ? z : ((x > y) ? x : y) < z ? (x > y) ? x : y : z)
ETK_ROW(clamp_each_f32, etk_f32, ETK_X(etk_f32), ETK_Y(etk_f32), ETK_Z(etk_f32),
        (x != x) ? x : (y != y) ? y : (z != z) ? z : ((x < y) ? y : x) > z ? z : (x < y) ? y : x)
ETK_ROW(hardtanh_f32, etk_f32, ETK_X(etk_f32), ETK_Y(etk_f32), ETK_Z(etk_f32),
        ((x < y) ? y : x) > z ? z : (x < y) ? y : x)
ETK_BINARY(div_by_one_f32, etk_f32, etk_f32, x *(1.0F / y))
ETK_BINARY(leaky_relu_f32, etk_f32, etk_f32, (x > 0.0F) ? x : x *y)
ETK_UNARY(reciprocal_f32, etk_f32, etk_f32, 1.0F / x)
ETK_UNARY(sqrt_f32, etk_f32, etk_f32, etk_sqrt(x))
ETK_UNARY(rsqrt_f32, etk_f32, etk_f32, 1.0F / etk_sqrt(x))
ETK_UNARY(floor_f32, etk_f32, etk_f32, etk_floor(x))
ETK_UNARY(ceil_f32, etk_f32, etk_f32, etk_ceil(x))
ETK_UNARY(trunc_f32, etk_f32, etk_f32, etk_truncated(x))
ETK_UNARY(round_f32, etk_f32, etk_f32, etk_nearest(x))
ETK_UNARY(isnan_f32, etk_b8, etk_f32, x != x)
ETK_UNARY(isinf_f32, etk_b8, etk_f32, (etk_bits(x) & 0x7FFFFFFFU) == 0x7F800000U)
ETK_COMPARISONS(f32)

/* Integers, computed as unsigned because signed overflow is undefined in C. */
#define ETK_INTEGERS(TYPE, UNSIGNED, BITS)                                                                               \
  static etk_##TYPE quotient_##TYPE(etk_##TYPE x, etk_##TYPE y) {                                                        \
    return (y == 0) ? 0 : (y == -1) ? (etk_##TYPE)(0U - (UNSIGNED)x) : x / y;                                            \
  }                                                                                                                      \
  static etk_##TYPE rest_##TYPE(etk_##TYPE x, etk_##TYPE y) {                                                            \
    return (y == 0 || y == -1) ? 0 : x % y;                                                                              \
  }                                                                                                                      \
  ETK_BINARY(add_##TYPE, etk_##TYPE, etk_##TYPE, (UNSIGNED)x + (UNSIGNED)y)                                              \
  ETK_BINARY(add_scaled_##TYPE, etk_##TYPE, etk_##TYPE,                                                                  \
             (UNSIGNED)x + (UNSIGNED) * (const etk_##TYPE *)parameters * (UNSIGNED)y)                                    \
  ETK_BINARY(sub_##TYPE, etk_##TYPE, etk_##TYPE, (UNSIGNED)x - (UNSIGNED)y)                                              \
  ETK_BINARY(sub_scaled_##TYPE, etk_##TYPE, etk_##TYPE,                                                                  \
             (UNSIGNED)x - (UNSIGNED) * (const etk_##TYPE *)parameters * (UNSIGNED)y)                                    \
  ETK_BINARY(mul_##TYPE, etk_##TYPE, etk_##TYPE, (UNSIGNED)x *(UNSIGNED)y)                                               \
  ETK_UNARY(neg_##TYPE, etk_##TYPE, etk_##TYPE, 0U - (UNSIGNED)x)                                                        \
  ETK_UNARY(abs_##TYPE, etk_##TYPE, etk_##TYPE, (x < 0) ? 0U - (UNSIGNED)x : (UNSIGNED)x)                                \
  ETK_UNARY(sign_##TYPE, etk_##TYPE, etk_##TYPE, (x > 0) ? 1 : (x < 0) ? -1 : 0)                                         \
  ETK_UNARY(relu_##TYPE, etk_##TYPE, etk_##TYPE, (x > 0) ? x : 0)                                                        \
  ETK_BINARY(trunc_divide_##TYPE, etk_##TYPE, etk_##TYPE, quotient_##TYPE(x, y))                                         \
  ETK_BINARY(floor_divide_##TYPE, etk_##TYPE, etk_##TYPE,                                                                \
             quotient_##TYPE(x, y) - ((rest_##TYPE(x, y) != 0 && (x < 0) != (y < 0)) ? 1 : 0))                           \
  ETK_BINARY(fmod_##TYPE, etk_##TYPE, etk_##TYPE, rest_##TYPE(x, y))                                                     \
  ETK_BINARY(minimum_##TYPE, etk_##TYPE, etk_##TYPE, (y < x) ? y : x)                                                    \
  ETK_BINARY(maximum_##TYPE, etk_##TYPE, etk_##TYPE, (y > x) ? y : x)                                                    \
  ETK_ROW(clamp_##TYPE, etk_##TYPE, ETK_X(etk_##TYPE), ETK_Y(etk_##TYPE), ETK_Z(etk_##TYPE),                             \
          ((x < y) ? y : x) > z ? z : (x < y) ? y : x)                                                                   \
  ETK_BINARY(bitwise_and_##TYPE, etk_##TYPE, etk_##TYPE, (UNSIGNED)x & (UNSIGNED)y)                                      \
  ETK_BINARY(bitwise_or_##TYPE, etk_##TYPE, etk_##TYPE, (UNSIGNED)x | (UNSIGNED)y)                                       \
  ETK_BINARY(bitwise_xor_##TYPE, etk_##TYPE, etk_##TYPE, (UNSIGNED)x ^ (UNSIGNED)y)                                      \
  ETK_UNARY(bitwise_not_##TYPE, etk_##TYPE, etk_##TYPE, ~(UNSIGNED)x)                                                    \
  ETK_BINARY(left_shift_##TYPE, etk_##TYPE, etk_##TYPE, (y < 0 || y >= BITS) ? 0U : (UNSIGNED)x << (UNSIGNED)y)          \
  ETK_BINARY(right_shift_##TYPE, etk_##TYPE, etk_##TYPE, x >> ((y < 0 || y >= BITS) ? BITS - 1 : y))                     \
  ETK_COMPARISONS(TYPE)

ETK_INTEGERS(i32, uint32_t, 32)
ETK_INTEGERS(i64, uint64_t, 64)

/* Logical functions of bools. */
ETK_BINARY(logical_and_b8, etk_b8, etk_b8, x &y)
ETK_BINARY(logical_or_b8, etk_b8, etk_b8, x | y)
ETK_BINARY(logical_xor_b8, etk_b8, etk_b8, x ^ y)
ETK_UNARY(logical_not_b8, etk_b8, etk_b8, x ^ 1U)
