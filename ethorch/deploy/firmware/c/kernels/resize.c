/* Nearest and bilinear resizing of images. */

#include "arithmetic.h"

/* Input index of an output index: floor(index * scale), limited to the axis. */
static int32_t nearest_index(int32_t index, int32_t size, float scale) {
  const int32_t at = (int32_t)((float)index * scale);
  return (at < size) ? at : size - 1;
}

#define ETK_NEAREST(BYTES, TYPE)                                                                                         \
  void etk_nearest_##BYTES(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,    \
                           const void *parameters) {                                                                     \
    const etk_resize *const p = parameters;                                                                              \
    const uint8_t *plane = in[0];                                                                                        \
    int32_t i, h, w;                                                                                                     \
    for (i = 0; i < count; ++i) {                                                                                        \
      for (h = 0; h < p->out_size[0]; ++h) {                                                                             \
        const ptrdiff_t row = (ptrdiff_t)nearest_index(h, p->in_size[0], p->scale[0]) * p->in_step[0];                   \
        uint8_t *to = out + (ptrdiff_t)h * p->out_step[0];                                                               \
        for (w = 0; w < p->out_size[1]; ++w) {                                                                           \
          const ptrdiff_t column = (ptrdiff_t)nearest_index(w, p->in_size[1], p->scale[1]) * p->in_step[1];              \
          *(TYPE *)(void *)to = *(const TYPE *)(const void *)(plane + row + column);                                     \
          to += p->out_step[1];                                                                                          \
        }                                                                                                                \
      }                                                                                                                  \
      out += step[0];                                                                                                    \
      plane += step[1];                                                                                                  \
    }                                                                                                                    \
  }

ETK_NEAREST(1, etk_u8)
ETK_NEAREST(2, etk_u16)
ETK_NEAREST(4, etk_u32)
ETK_NEAREST(8, etk_u64)

typedef struct {
  ptrdiff_t first, second; /* byte offsets */
  float weight;            /* weight of the second element */
} between;

static between neighbours(const etk_resize *p, int32_t axis, int32_t index) {
  between result;
  float at = (p->align_corners != 0) ? p->scale[axis] * (float)index : p->scale[axis] * ((float)index + 0.5F) - 0.5F;
  int32_t low, high;
  if (at < 0.0F) {
    at = 0.0F;
  }
  low = (int32_t)at;
  if (low > p->in_size[axis] - 1) {
    low = p->in_size[axis] - 1;
  }
  high = (low < p->in_size[axis] - 1) ? low + 1 : low;
  result.first = (ptrdiff_t)low * p->in_step[axis];
  result.second = (ptrdiff_t)high * p->in_step[axis];
  result.weight = at - (float)low;
  if (result.weight > 1.0F) {
    result.weight = 1.0F;
  }
  return result;
}

static float at(const uint8_t *plane, ptrdiff_t row, ptrdiff_t column) {
  return *(const etk_f32 *)(const void *)(plane + row + column);
}

void etk_bilinear_f32(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                      const void *parameters) {
  const etk_resize *const p = parameters;
  const uint8_t *plane = in[0];
  int32_t i, h, w;
  for (i = 0; i < count; ++i) {
    for (h = 0; h < p->out_size[0]; ++h) {
      const between row = neighbours(p, 0, h);
      uint8_t *to = out + (ptrdiff_t)h * p->out_step[0];
      for (w = 0; w < p->out_size[1]; ++w) {
        const between column = neighbours(p, 1, w);
        const float upper = (1.0F - column.weight) * at(plane, row.first, column.first) +
                            column.weight * at(plane, row.first, column.second);
        const float lower = (1.0F - column.weight) * at(plane, row.second, column.first) +
                            column.weight * at(plane, row.second, column.second);
        *(etk_f32 *)(void *)to = (1.0F - row.weight) * upper + row.weight * lower;
        to += p->out_step[1];
      }
    }
    out += step[0];
    plane += step[1];
  }
}
