/* Arithmetic without a library: rounding, conversions that are defined for every value, square root. */

#ifndef ETHORCH_ARITHMETIC_H
#define ETHORCH_ARITHMETIC_H

#include "kernels.h"

/* Through a union: a freestanding compiler calls memcpy. */
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

/* |x|, also of NaN. */
ETK_INLINE float etk_magnitude(float x) {
  return etk_from_bits(etk_bits(x) & 0x7FFFFFFFU);
}

ETK_INLINE float etk_with_sign_of(float magnitude, float sign) {
  return etk_from_bits((etk_bits(magnitude) & 0x7FFFFFFFU) | (etk_bits(sign) & 0x80000000U));
}

/* The integer nearest to x, halves to even; the sign of a zero and NaN stay. Beside 2^23 a float has no fraction left. */
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
  volatile float shifted = magnitude + 8388608.0F; /* volatile: a compiler may not take the sum back */
  return etk_with_sign_of(shifted - 8388608.0F, x);
#endif
}

/* Towards zero. What an int32 does not hold, and NaN, is INT32_MIN, as x86-64 has it: a conversion in C is undefined there. */
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

/* The root, rounded to nearest: of an FPU where there is one, else bit by bit. */
float etk_sqrt(float x);
/* x - n * y for the integer n that leaves the least rest with the sign of x; exact. */
float etk_fmod(float x, float y);
/* e^x and ln(x), as the operators compute them. */
float etk_exp(float x);
float etk_log(float x);

#endif
