/* Softmax along an axis, and the mean and variance of normalizations. */

#include "arithmetic.h"

/* parameters: axis size, bytes between elements of the output and of the input. */
static float greatest(const uint8_t *from, int32_t count, int32_t step) {
  float most = *(const etk_f32 *)(const void *)from;
  int32_t k;
  for (k = 1; k < count; ++k) {
    float x;
    from += step;
    x = *(const etk_f32 *)(const void *)from;
    most = (x != x || most != most) ? x + most : (x > most) ? x : most;
  }
  return most;
}

void etk_softmax_f32(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                     const void *parameters) {
  const int32_t *const p = parameters;
  const uint8_t *start = in[0];
  int32_t i, k;
  for (i = 0; i < count; ++i) {
    const float most = greatest(start, p[0], p[2]);
    float sum = 0.0F;
    for (k = 0; k < p[0]; ++k) {
      const float power = etk_exp(*(const etk_f32 *)(const void *)(start + (ptrdiff_t)k * p[2]) - most);
      *(etk_f32 *)(void *)(out + (ptrdiff_t)k * p[1]) = power;
      sum += power;
    }
    for (k = 0; k < p[0]; ++k) {
      etk_f32 *const to = (etk_f32 *)(void *)(out + (ptrdiff_t)k * p[1]);
      *to = *to / sum;
    }
    out += step[0];
    start += step[1];
  }
}

void etk_log_softmax_f32(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                         const void *parameters) {
  const int32_t *const p = parameters;
  const uint8_t *start = in[0];
  int32_t i, k;
  for (i = 0; i < count; ++i) {
    const float most = greatest(start, p[0], p[2]);
    float sum = 0.0F, logarithm;
    for (k = 0; k < p[0]; ++k) {
      sum += etk_exp(*(const etk_f32 *)(const void *)(start + (ptrdiff_t)k * p[2]) - most);
    }
    logarithm = etk_log(sum);
    for (k = 0; k < p[0]; ++k) {
      const float x = *(const etk_f32 *)(const void *)(start + (ptrdiff_t)k * p[2]);
      *(etk_f32 *)(void *)(out + (ptrdiff_t)k * p[1]) = x - most - logarithm;
    }
    out += step[0];
    start += step[1];
  }
}

/* Mean and sqrt(variance + eps) of a row of contiguous floats. As in ExecuTorch, the variance is the mean of the squares minus the
 * square of the mean. This is inaccurate if the mean is far from 0. */
void etk_moments_f32(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                     const void *parameters) {
  const etk_normalization *const p = parameters;
  etk_address deviation;
  const uint8_t *start = in[1];
  int32_t i, k;
  deviation.read = in[0];
  for (i = 0; i < count; ++i) {
    const etk_f32 *const x = (const etk_f32 *)(const void *)start;
    float sum = 0.0F, squares = 0.0F, mean;
    for (k = 0; k < p->count; ++k) {
      sum += x[k];
      squares += x[k] * x[k];
    }
    mean = sum / (float)p->count;
    *(etk_f32 *)(void *)out = mean;
    *(etk_f32 *)(void *)deviation.write = etk_sqrt(squares / (float)p->count - mean * mean + p->eps);
    out += step[0];
    deviation.write += step[1];
    start += step[2];
  }
}

/* (x - mean) / sqrt(variance + eps): inputs x, mean, variance; parameters: eps, a float. */
void etk_normalize_f32(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                       const void *parameters) {
  const float eps = *(const etk_f32 *)parameters;
  const uint8_t *x = in[0], *mean = in[1], *variance = in[2];
  int32_t i;
  for (i = 0; i < count; ++i) {
    const float deviation = etk_sqrt(*(const etk_f32 *)(const void *)variance + eps);
    *(etk_f32 *)(void *)out = (*(const etk_f32 *)(const void *)x - *(const etk_f32 *)(const void *)mean) / deviation;
    out += step[0];
    x += step[1];
    mean += step[2];
    variance += step[3];
  }
}
