/* Arithmetic without a library: rounding, conversions that are defined for every value, square root. */

#ifndef ETHORCH_ARITHMETIC_H
#define ETHORCH_ARITHMETIC_H

#include "kernels.h"

static inline uint32_t etk_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float etk_from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* |x|, also of NaN. */
static inline float etk_magnitude(float x) {
  return etk_from_bits(etk_bits(x) & 0x7FFFFFFFU);
}

static inline float etk_with_sign_of(float magnitude, float sign) {
  return etk_from_bits((etk_bits(magnitude) & 0x7FFFFFFFU) | (etk_bits(sign) & 0x80000000U));
}

/* The integer nearest to x, halves to even; the sign of a zero and NaN stay. Beside 2^23 a float has no fraction left. */
static inline float etk_nearest(float x) {
  const float magnitude = etk_magnitude(x);
  if (!(magnitude < 8388608.0F)) {
    return x;
  }
  volatile float shifted = magnitude + 8388608.0F; /* volatile: a compiler may not take the sum back */
  return etk_with_sign_of(shifted - 8388608.0F, x);
}

/* Towards zero. What an int32 does not hold, and NaN, is INT32_MIN, as x86-64 has it: a conversion in C is undefined there. */
static inline int32_t etk_to_i32(float x) {
  return (x >= -2147483648.0F && x < 2147483648.0F) ? (int32_t)x : INT32_MIN;
}

static inline int64_t etk_to_i64(float x) {
  return (x >= -9223372036854775808.0F && x < 9223372036854775808.0F) ? (int64_t)x : INT64_MIN;
}

static inline int32_t etk_f64_to_i32(double x) {
  return (x > -2147483649.0 && x < 2147483648.0) ? (int32_t)x : INT32_MIN;
}

static inline int64_t etk_f64_to_i64(double x) {
  return (x >= -9223372036854775808.0 && x < 9223372036854775808.0) ? (int64_t)x : INT64_MIN;
}

static inline float etk_truncated(float x) {
  return (etk_magnitude(x) < 8388608.0F) ? etk_with_sign_of((float)(int32_t)x, x) : x;
}

static inline float etk_floor(float x) {
  const float whole = etk_truncated(x);
  return (whole > x) ? whole - 1.0F : whole;
}

static inline float etk_ceil(float x) {
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
