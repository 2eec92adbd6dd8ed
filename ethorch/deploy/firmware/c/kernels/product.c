/* Matrix products. */

#include "kernels.h"

void etk_dot_f32(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                 const void *parameters) {
  const int32_t *const p = parameters;
  const uint8_t *row = in[0], *column = in[1];
  int32_t i, k;
  for (i = 0; i < count; ++i) {
    const uint8_t *x = row, *y = column;
    float sum = 0.0F;
    for (k = 0; k < p[0]; ++k) {
      sum += *(const etk_f32 *)(const void *)x * *(const etk_f32 *)(const void *)y;
      x += p[1];
      y += p[2];
    }
    *(etk_f32 *)(void *)out = sum;
    out += step[0];
    row += step[1];
    column += step[2];
  }
}
