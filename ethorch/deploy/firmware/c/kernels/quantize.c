/* Quantize and dequantize with scales and zero points per tensor or per channel. */

#include "arithmetic.h"

/* clamp(nearest(x * inverse) + zero point, low, high). NaN becomes 0, as in PyTorch and in Arm's conversion. */
ETK_INLINE int32_t quantized(float x, float inverse, int32_t zero_point, int32_t low, int32_t high) {
  const float scaled = x * inverse;
  const float code = etk_nearest(scaled) + (float)zero_point;
  if (code >= -2147483648.0F && code < 2147483648.0F) {
    const int32_t whole = (int32_t)code;
    return (whole < low) ? low : (whole > high) ? high : whole;
  }
  return (code != code) ? 0 : (code > 0.0F) ? high : low;
}

/* Wraps as two's complement int32 arithmetic. */
ETK_INLINE float dequantized(int32_t code, int32_t zero_point, float scale) {
  return (float)(int32_t)((uint32_t)code - (uint32_t)zero_point) * scale;
}

#define ETK_QUANTIZE(NAME, TYPE)                                                                                         \
  void etk_quantize_##NAME(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,    \
                           const void *parameters) {                                                                     \
    const etk_quantization *const q = parameters;                                                                        \
    const uint8_t *x = in[0];                                                                                            \
    int32_t i;                                                                                                           \
    for (i = 0; i < count; ++i) {                                                                                        \
      *(TYPE *)(void *)out =                                                                                             \
          (TYPE)quantized(*(const etk_f32 *)(const void *)x, q->scale, q->zero_point, q->low, q->high);                  \
      out += step[0];                                                                                                    \
      x += step[1];                                                                                                      \
    }                                                                                                                    \
  }                                                                                                                      \
  void etk_dequantize_##NAME(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,  \
                             const void *parameters) {                                                                   \
    const etk_quantization *const q = parameters;                                                                        \
    const uint8_t *x = in[0];                                                                                            \
    int32_t i;                                                                                                           \
    for (i = 0; i < count; ++i) {                                                                                        \
      *(etk_f32 *)(void *)out = dequantized((int32_t) * (const TYPE *)(const void *)x, q->zero_point, q->scale);         \
      out += step[0];                                                                                                    \
      x += step[1];                                                                                                      \
    }                                                                                                                    \
  }                                                                                                                      \
  void etk_quantize_channels_##NAME(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS],          \
                                    int32_t count, const void *parameters) {                                             \
    const etk_quantization *const q = parameters;                                                                        \
    const uint8_t *x = in[0], *scale = in[1], *zero = in[2];                                                             \
    int32_t i;                                                                                                           \
    for (i = 0; i < count; ++i) {                                                                                        \
      *(TYPE *)(void *)out = (TYPE)quantized(*(const etk_f32 *)(const void *)x,                                          \
                                             1.0F / (float)*(const etk_f64 *)(const void *)scale,                        \
                                             (int32_t) * (const etk_i64 *)(const void *)zero, q->low, q->high);          \
      out += step[0];                                                                                                    \
      x += step[1];                                                                                                      \
      scale += step[2];                                                                                                  \
      zero += step[3];                                                                                                   \
    }                                                                                                                    \
  }                                                                                                                      \
  void etk_dequantize_channels_##NAME(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS],        \
                                      int32_t count, const void *parameters) {                                           \
    const uint8_t *x = in[0], *scale = in[1], *zero = in[2];                                                             \
    int32_t i;                                                                                                           \
    for (i = 0; i < count; ++i) {                                                                                        \
      const float factor = parameters != NULL ? *(const etk_f32 *)(const void *)scale                                    \
                                              : (float)*(const etk_f64 *)(const void *)scale;                            \
      *(etk_f32 *)(void *)out = dequantized((int32_t) * (const TYPE *)(const void *)x,                                   \
                                            (int32_t) * (const etk_i64 *)(const void *)zero, factor);                    \
      out += step[0];                                                                                                    \
      x += step[1];                                                                                                      \
      scale += step[2];                                                                                                  \
      zero += step[3];                                                                                                   \
    }                                                                                                                    \
  }

ETK_QUANTIZE(i8, etk_i8)
ETK_QUANTIZE(u8, etk_u8)
ETK_QUANTIZE(i16, etk_i16)
ETK_QUANTIZE(u16, etk_u16)
ETK_QUANTIZE(i32, etk_i32)
