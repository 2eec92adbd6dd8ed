/* The cortex_m CPU operators of ExecuTorch's Arm backend, except layers with weights. Results equal those of the definitions in
 * ExecuTorch's wheel. */

#include "arithmetic.h"

#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1)
#include <arm_mve.h>
#define ETK_MVE 1
#else
#define ETK_MVE 0
#endif

/* round(value * multiplier * 2^shift / 2^31), in integers. */
static int32_t requantized(int64_t value, int32_t multiplier, int32_t shift) {
  const uint64_t wide = (uint64_t)value << ((shift > 0) ? (uint32_t)shift : 0U);
  int64_t result = (int64_t)(wide * (uint64_t)(int64_t)multiplier + (1ULL << 30)) >> 31;
  if (shift < 0) {
    const int64_t mask = (1LL << (uint32_t)-shift) - 1;
    const int64_t rest = result & mask;
    result >>= (uint32_t)-shift;
    result += (rest > (mask >> 1) + ((result < 0) ? 1 : 0)) ? 1 : 0;
  }
  return (int32_t)result;
}

static int8_t clamped(int64_t value, int32_t low, int32_t high) {
  return (int8_t)((value < low) ? low : (value > high) ? high : value);
}

/* clamp(nearest(x * inverse) + zero point, low, high) in floats. Infinities saturate, and NaN becomes 0. */
#define ETK_CORTEX_M_QUANTIZE(NAME, TYPE)                                                                                \
  void etk_cortex_m_quantize_##NAME(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS],          \
                                    int32_t count, const void *parameters) {                                             \
    const etk_quantization *const q = parameters;                                                                        \
    const float low = (float)q->low, high = (float)q->high;                                                              \
    const uint8_t *x = in[0];                                                                                            \
    int32_t i;                                                                                                           \
    for (i = 0; i < count; ++i) {                                                                                        \
      const float scaled = *(const etk_f32 *)(const void *)x * q->scale;                                                 \
      const float code = etk_nearest(scaled) + (float)q->zero_point;                                                     \
      const float held = (code < low) ? low : (code > high) ? high : code;                                               \
      *(TYPE *)(void *)out = (TYPE)((held == held) ? etk_to_i64(held) : 0);                                              \
      out += step[0];                                                                                                    \
      x += step[1];                                                                                                      \
    }                                                                                                                    \
  }                                                                                                                      \
  void etk_cortex_m_dequantize_##NAME(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS],        \
                                      int32_t count, const void *parameters) {                                           \
    const etk_quantization *const q = parameters;                                                                        \
    const uint8_t *x = in[0];                                                                                            \
    int32_t i;                                                                                                           \
    for (i = 0; i < count; ++i) {                                                                                        \
      const float code = (float)*(const TYPE *)(const void *)x;                                                          \
      *(etk_f32 *)(void *)out = (code - (float)q->zero_point) * q->scale;                                                \
      out += step[0];                                                                                                    \
      x += step[1];                                                                                                      \
    }                                                                                                                    \
  }

ETK_CORTEX_M_QUANTIZE(i8, etk_i8)
ETK_CORTEX_M_QUANTIZE(u8, etk_u8)
ETK_CORTEX_M_QUANTIZE(i16, etk_i16)
ETK_CORTEX_M_QUANTIZE(u16, etk_u16)
ETK_CORTEX_M_QUANTIZE(i32, etk_i32)

/* parameters: zero point, multiplier and shift of x, of y and of the output, low, high. */
void etk_cortex_m_add(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                      const void *parameters) {
  const int32_t *const p = parameters;
  const uint8_t *x = in[0], *y = in[1];
  int32_t i;
  for (i = 0; i < count; ++i) {
    const int32_t a = requantized((int64_t)(*(const int8_t *)x - p[0]) * (1 << 20), p[1], p[2]);
    const int32_t b = requantized((int64_t)(*(const int8_t *)y - p[3]) * (1 << 20), p[4], p[5]);
    const int32_t sum = (int32_t)((uint32_t)a + (uint32_t)b);
    *(int8_t *)out = clamped((int64_t)requantized(sum, p[7], p[8]) + p[6], p[9], p[10]);
    out += step[0];
    x += step[1];
    y += step[2];
  }
}

/* parameters: zero points of x and y; zero point, multiplier and shift of the output. */
void etk_cortex_m_mul(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                      const void *parameters) {
  const int32_t *const p = parameters;
  const uint8_t *x = in[0], *y = in[1];
  int32_t i;
  for (i = 0; i < count; ++i) {
    const int64_t product = (int64_t)(*(const int8_t *)x - p[0]) * (*(const int8_t *)y - p[1]);
    *(int8_t *)out = clamped((int64_t)requantized(product, p[3], p[4]) + p[2], -128, 127);
    out += step[0];
    x += step[1];
    y += step[2];
  }
}

/* Sums of x[k] * y[k] and of y[k], for contiguous x and y. */
static uint32_t products_of(const int8_t *x, const int8_t *y, int32_t count, int32_t *sum) {
  int32_t ys = 0;
#if ETK_MVE
  int32_t products = 0;
  for (; count > 0; count -= 16) {
    const mve_pred16_t rest = vctp8q((uint32_t)count);
    const int8x16_t factor = vldrbq_z_s8(y, rest);
    products = vmladavaq_s8(products, vldrbq_z_s8(x, rest), factor);
    ys = vaddvaq_s8(ys, factor);
    x += 16;
    y += 16;
  }
#else
  uint32_t products = 0;
  int32_t k;
  for (k = 0; k < count; ++k) {
    products += (uint32_t)(x[k] * y[k]);
    ys += y[k];
  }
#endif
  *sum = ys;
  return (uint32_t)products;
}

/* Computes a sum of products for each element. parameters: number of products, offsets of x and y; zero point, multiplier and shift
 * of the output. The factors of an element are contiguous. */
void etk_cortex_m_dot(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                      const void *parameters) {
  const int32_t *const p = parameters;
  const uint8_t *row = in[0], *column = in[1], *last = 0;
  uint32_t wide = 0; /* sum of x plus offset, times y's offset; reused until the row changes */
  int32_t i, k;
  for (i = 0; i < count; ++i) {
    const int8_t *const x = (const int8_t *)row;
    uint32_t sum;
    int32_t ys;
    if (row != last) {
      wide = 0;
      for (k = 0; k < p[0]; ++k) {
        wide += (uint32_t)(x[k] + p[1]);
      }
      wide *= (uint32_t)p[2];
      last = row;
    }
    sum = products_of(x, (const int8_t *)column, p[0], &ys) + (uint32_t)ys * (uint32_t)p[1] + wide;
    *(int8_t *)out = clamped((int64_t)requantized((int32_t)sum, p[4], p[5]) + p[3], -128, 127);
    out += step[0];
    row += step[1];
    column += step[2];
  }
}

/* The second input is a table of 256 int8 values, indexed by x + 128. */
void etk_cortex_m_activation(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                             const void *parameters) {
  const uint8_t *x = in[0];
  const uint8_t *const table = in[1];
  int32_t i;
  (void)parameters;
  for (i = 0; i < count; ++i) {
    *out = table[*(const int8_t *)x + 128];
    out += step[0];
    x += step[1];
  }
}
