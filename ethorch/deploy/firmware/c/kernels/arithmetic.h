/* Arithmetic without a library: rounding, conversions that are defined for all values, and square root. */

#ifndef ETHORCH_ARITHMETIC_H
#define ETHORCH_ARITHMETIC_H

#include "kernels.h"

/* Uses a union because a freestanding compiler would emit a call of memcpy. */
typedef union {
  float number;
  uint32_t bits;
} etk_word;

ETK_INLINE uint32_t etk_bits(float x) {
  etk_word word;
  word.number = x;
  return word.bits;
}

ETK_INLINE float etk_from_bits(uint32_t bits) {
  etk_word word;
  word.bits = bits;
  return word.number;
}

/* |x|, also for NaN. */
ETK_INLINE float etk_magnitude(float x) {
  return etk_from_bits(etk_bits(x) & 0x7FFFFFFFU);
}

ETK_INLINE float etk_with_sign_of(float magnitude, float sign) {
  return etk_from_bits((etk_bits(magnitude) & 0x7FFFFFFFU) | (etk_bits(sign) & 0x80000000U));
}

/* Nearest integer, ties to even. Preserves NaN and the sign of zero. Floats of at least 2^23 have no fraction. */
ETK_INLINE float etk_nearest(float x) {
#if defined(__ARM_FEATURE_DIRECTED_ROUNDING) && defined(__ARM_FP) && (__ARM_FP & 4)
  float whole;
  __asm__("vrintn.f32 %0, %1" : "=t"(whole) : "t"(x));
  return whole;
#else
  const float magnitude = etk_magnitude(x);
  if (!(magnitude < 8388608.0F)) {
    return x;
  }
  volatile float shifted = magnitude + 8388608.0F; /* volatile, so that the compiler does not cancel the sum */
  return etk_with_sign_of(shifted - 8388608.0F, x);
#endif
}

/* Truncates to int32. Out-of-range values and NaN become INT32_MIN as on x86-64; in C, their conversion is undefined. */
ETK_INLINE int32_t etk_to_i32(float x) {
  return (x >= -2147483648.0F && x < 2147483648.0F) ? (int32_t)x : INT32_MIN;
}

ETK_INLINE int64_t etk_to_i64(float x) {
  return (x >= -9223372036854775808.0F && x < 9223372036854775808.0F) ? (int64_t)x : INT64_MIN;
}

ETK_INLINE int32_t etk_f64_to_i32(double x) {
  return (x > -2147483649.0 && x < 2147483648.0) ? (int32_t)x : INT32_MIN;
}

ETK_INLINE int64_t etk_f64_to_i64(double x) {
  return (x >= -9223372036854775808.0 && x < 9223372036854775808.0) ? (int64_t)x : INT64_MIN;
}

ETK_INLINE float etk_truncated(float x) {
  return (etk_magnitude(x) < 8388608.0F) ? etk_with_sign_of((float)(int32_t)x, x) : x;
}

ETK_INLINE float etk_floor(float x) {
  const float whole = etk_truncated(x);
  return (whole > x) ? whole - 1.0F : whole;
}

ETK_INLINE float etk_ceil(float x) {
  const float whole = etk_truncated(x);
  return (whole < x) ? etk_with_sign_of(whole + 1.0F, x) : whole;
}

/* Square root, rounded to nearest. Computed by an FPU if there is one, otherwise bit by bit. */
float etk_sqrt(float x);
/* Exact remainder x - n * y, where n is x / y truncated. It has the sign of x. */
float etk_fmod(float x, float y);
/* e^x and ln(x), as the operators compute them. */
float etk_exp(float x);
float etk_log(float x);

#endif
