/* x^y. log2(x) * y must be exact to 2^-33 for the last place of a float, so it is computed in double. If the FPU supports only
 * float32, the compiler's library functions are called, which requires thousands of cycles per element. Squares, roots and
 * reciprocals use float32. */

#include "arithmetic.h"

/* log2 of a positive finite x: 2 artanh(s) / ln(2) with s = (m - 1) / (m + 1). */
static double log2_of(float x) {
  static const double part[9] = {1.0,       1.0 / 3.0,  1.0 / 5.0,  1.0 / 7.0, 1.0 / 9.0,
                                 1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0, 1.0 / 17.0};
  uint32_t bits = etk_bits(x);
  int32_t e = 0;
  double m, s, z, sum;
  int32_t n;
  if (bits < 0x800000U) {
    bits = etk_bits(x * 8388608.0F);
    e = -23;
  }
  bits += 0x3F800000U - 0x3F3504F3U;
  e += (int32_t)(bits >> 23) - 127;
  m = (double)etk_from_bits((bits & 0x7FFFFFU) + 0x3F3504F3U);
  s = (m - 1.0) / (m + 1.0);
  z = s * s;
  sum = part[8];
  for (n = 7; n >= 0; --n) {
    sum = sum * z + part[n];
  }
  return (double)e + 2.8853900817779268 * s * sum; /* 2 / ln(2) */
}

/* 2^y for y from -151 to 129. */
static float exp2_of(double y) {
  const int32_t k = (int32_t)((y < 0.0) ? y - 0.5 : y + 0.5);
  const double r = (y - (double)k) * 0.69314718055994531;
  static const double part[11] = {1.0,         1.0,          1.0 / 2.0,     1.0 / 6.0,      1.0 / 24.0,     1.0 / 120.0,
                                  1.0 / 720.0, 1.0 / 5040.0, 1.0 / 40320.0, 1.0 / 362880.0, 1.0 / 3628800.0};
  double sum = part[10];
  int32_t n;
  union {
    uint64_t bits;
    double number;
  } power;
  for (n = 9; n >= 0; --n) {
    sum = sum * r + part[n];
  }
  power.bits = (uint64_t)(k + 1023) << 52;
  return (float)(sum * power.number);
}

static float power_of(float x, float y) {
  const float size = etk_magnitude(x), infinite = etk_from_bits(0x7F800000U);
  const float whole = etk_truncated(y);
  const int is_odd = whole == y && etk_magnitude(y) < 16777216.0F && ((int32_t)y & 1) != 0;
  const float sign = is_odd ? x : 1.0F;
  double exponent;
  if (y == 0.0F || x == 1.0F) {
    return 1.0F;
  }
  if (x != x || y != y) {
    return x + y;
  }
  if (etk_magnitude(y) == infinite) {
    return (size == 1.0F) ? 1.0F : ((size > 1.0F) == (y > 0.0F)) ? infinite : 0.0F;
  }
  if (size == 0.0F || size == infinite) {
    return etk_with_sign_of(((size == 0.0F) == (y > 0.0F)) ? 0.0F : infinite, sign);
  }
  if (x < 0.0F && whole != y) {
    return etk_from_bits(0x7FC00000U);
  }
  if (y == 2.0F) {
    return x * x;
  }
  if (y == 1.0F) {
    return x;
  }
  if (y == -1.0F) {
    return 1.0F / x;
  }
  if (y == 0.5F) {
    return etk_sqrt(x);
  }
  exponent = log2_of(size) * (double)y;
  if (exponent > 128.5) {
    return etk_with_sign_of(infinite, sign);
  }
  return etk_with_sign_of((exponent < -150.5) ? 0.0F : exp2_of(exponent), sign);
}

void etk_pow_f32(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                 const void *parameters) {
  const uint8_t *x = in[0], *y = in[1];
  int32_t i;
  (void)parameters;
  for (i = 0; i < count; ++i) {
    *(etk_f32 *)(void *)out = power_of(*(const etk_f32 *)(const void *)x, *(const etk_f32 *)(const void *)y);
    out += step[0];
    x += step[1];
    y += step[2];
  }
}
