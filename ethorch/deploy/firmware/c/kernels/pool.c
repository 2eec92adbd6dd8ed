/* Pooling and convolution of images. The elements of a row are planes (pooling) or images (convolution). */

#include "kernels.h"

/* Computes the range [first, last) of a window inside the image, in steps of the dilation. */
static void window(const etk_window *p, int32_t axis, int32_t index, int32_t *first, int32_t *last) {
  const int32_t start = index * p->stride[axis] - p->padding[axis];
  int32_t end = start + (p->kernel[axis] - 1) * p->dilation[axis] + 1;
  int32_t begin = start;
  while (begin < 0) {
    begin += p->dilation[axis];
  }
  if (end > p->in_size[axis]) {
    end = p->in_size[axis];
  }
  *first = begin;
  *last = end;
}

static int32_t least(int32_t a, int32_t b) {
  return (a < b) ? a : b;
}

void etk_avg_pool_f32(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                      const void *parameters) {
  const etk_window *const p = parameters;
  const uint8_t *plane = in[0];
  int32_t i, h, w, y, x;
  for (i = 0; i < count; ++i) {
    for (h = 0; h < p->out_size[0]; ++h) {
      for (w = 0; w < p->out_size[1]; ++w) {
        int32_t top, bottom, left, right, number = p->divisor;
        float sum = 0.0F;
        window(p, 0, h, &top, &bottom);
        window(p, 1, w, &left, &right);
        for (y = top; y < bottom; ++y) {
          for (x = left; x < right; ++x) {
            sum += *(const etk_f32 *)(const void *)(plane + (ptrdiff_t)y * p->in_step[0] + (ptrdiff_t)x * p->in_step[1]);
          }
        }
        if (number == 0) {
          if (p->counts_padding != 0) { /* excludes the elements that ceil_mode adds after the padding */
            const int32_t high = h * p->stride[0] - p->padding[0], wide = w * p->stride[1] - p->padding[1];
            number = (least(high + p->kernel[0], p->in_size[0] + p->padding[0]) - high) *
                     (least(wide + p->kernel[1], p->in_size[1] + p->padding[1]) - wide);
          } else {
            number = (bottom - top) * (right - left);
          }
        }
        *(etk_f32 *)(void *)(out + (ptrdiff_t)h * p->out_step[0] + (ptrdiff_t)w * p->out_step[1]) = sum / (float)number;
      }
    }
    out += step[0];
    plane += step[1];
  }
}

/* Computes the maximum or the first NaN of each window. The second output is the index of this element in the plane. */
#define ETK_MAX_POOL(SUFFIX, TYPE, BEFORE)                                                                               \
  void etk_max_pool_##SUFFIX(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,  \
                             const void *parameters) {                                                                   \
    const etk_window *const p = parameters;                                                                              \
    etk_address places;                                                                                                  \
    const uint8_t *plane = in[1];                                                                                        \
    int32_t i, h, w, y, x;                                                                                               \
    places.read = in[0];                                                                                                 \
    for (i = 0; i < count; ++i) {                                                                                        \
      for (h = 0; h < p->out_size[0]; ++h) {                                                                             \
        for (w = 0; w < p->out_size[1]; ++w) {                                                                           \
          int32_t top, bottom, left, right, place;                                                                       \
          TYPE most;                                                                                                     \
          window(p, 0, h, &top, &bottom);                                                                                \
          window(p, 1, w, &left, &right);                                                                                \
          place = top * p->in_size[1] + left;                                                                            \
          most = *(const TYPE *)(const void *)(plane + (ptrdiff_t)top * p->in_step[0] + (ptrdiff_t)left * p->in_step[1]); \
          for (y = top; y < bottom; y += p->dilation[0]) {                                                               \
            for (x = left; x < right; x += p->dilation[1]) {                                                             \
              const TYPE value =                                                                                         \
                  *(const TYPE *)(const void *)(plane + (ptrdiff_t)y * p->in_step[0] + (ptrdiff_t)x * p->in_step[1]);    \
              if (BEFORE) {                                                                                              \
                most = value;                                                                                            \
                place = y * p->in_size[1] + x;                                                                           \
              }                                                                                                          \
            }                                                                                                            \
          }                                                                                                              \
          *(TYPE *)(void *)(out + (ptrdiff_t)h * p->out_step[0] + (ptrdiff_t)w * p->out_step[1]) = most;                 \
          *(etk_i64 *)(void *)(places.write + (ptrdiff_t)h * p->place_step[0] + (ptrdiff_t)w * p->place_step[1]) = place; \
        }                                                                                                                \
      }                                                                                                                  \
      out += step[0];                                                                                                    \
      places.write += step[1];                                                                                           \
      plane += step[2];                                                                                                  \
    }                                                                                                                    \
  }

ETK_MAX_POOL(i8, etk_i8, value > most)
ETK_MAX_POOL(u8, etk_u8, value > most)
ETK_MAX_POOL(i16, etk_i16, value > most)
ETK_MAX_POOL(i32, etk_i32, value > most)
ETK_MAX_POOL(f32, etk_f32, most == most && (value > most || value != value))

/* Computes the range [first, last) inside the image, for a kernel that starts at `start`. */
static void inside(const etk_window *p, int32_t axis, int32_t start, int32_t *first, int32_t *last) {
  const int32_t dilation = p->dilation[axis], size = p->in_size[axis];
  *first = (start < 0) ? (dilation - 1 - start) / dilation : 0;
  *last = least(p->kernel[axis], (start < size) ? (size - 1 - start) / dilation + 1 : 0);
}

/* Inputs: all channels of one group of an image, and the weights and the bias of one output channel. */
void etk_convolution_f32(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                         const void *parameters) {
  const etk_window *const p = parameters;
  const ptrdiff_t next = (ptrdiff_t)p->dilation[1] * p->in_step[1];
  const uint8_t *image = in[0], *weights = in[1], *bias = in[2];
  int32_t i, h, w, c, y, x;
  for (i = 0; i < count; ++i) {
    for (h = 0; h < p->out_size[0]; ++h) {
      for (w = 0; w < p->out_size[1]; ++w) {
        const int32_t high = h * p->stride[0] - p->padding[0], wide = w * p->stride[1] - p->padding[1];
        int32_t top, bottom, left, right;
        float sum = 0.0F;
        inside(p, 0, high, &top, &bottom);
        inside(p, 1, wide, &left, &right);
        for (c = 0; c < p->channels; ++c) {
          for (y = top; y < bottom; ++y) {
            const uint8_t *pixel = image + (ptrdiff_t)c * p->channel_step +
                                   (ptrdiff_t)(high + y * p->dilation[0]) * p->in_step[0] + (ptrdiff_t)wide * p->in_step[1] +
                                   (ptrdiff_t)left * next;
            const uint8_t *weight = weights + (ptrdiff_t)c * p->weight_step[0] + (ptrdiff_t)y * p->weight_step[1] +
                                    (ptrdiff_t)left * p->weight_step[2];
            for (x = left; x < right; ++x) {
              sum += *(const etk_f32 *)(const void *)pixel * *(const etk_f32 *)(const void *)weight;
              pixel += next;
              weight += p->weight_step[2];
            }
          }
        }
        *(etk_f32 *)(void *)(out + (ptrdiff_t)h * p->out_step[0] + (ptrdiff_t)w * p->out_step[1]) =
            (p->has_bias != 0) ? sum + *(const etk_f32 *)(const void *)bias : sum;
      }
    }
    out += step[0];
    image += step[1];
    weights += step[2];
    bias += step[3];
  }
}
