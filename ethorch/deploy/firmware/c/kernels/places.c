/* Functions for the index of the extreme along an axis, and for the k largest or smallest elements along an axis. */

#include "kernels.h"

/* parameters: axis size, bytes between elements. The first NaN is selected in preference to all values, as in PyTorch. */
#define ETK_PLACE(NAME, TYPE, BEFORE)                                                                                    \
  void etk_##NAME(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,             \
                  const void *parameters) {                                                                              \
    const int32_t *const p = parameters;                                                                                 \
    const uint8_t *start = in[0];                                                                                        \
    int32_t i, k;                                                                                                        \
    for (i = 0; i < count; ++i) {                                                                                        \
      const uint8_t *from = start;                                                                                       \
      TYPE y = *(const TYPE *)(const void *)from;                                                                        \
      int32_t place = 0;                                                                                                 \
      for (k = 1; k < p[0]; ++k) {                                                                                       \
        TYPE x;                                                                                                          \
        from += p[1];                                                                                                    \
        x = *(const TYPE *)(const void *)from;                                                                           \
        if (BEFORE) {                                                                                                    \
          y = x;                                                                                                         \
          place = k;                                                                                                     \
        }                                                                                                                \
      }                                                                                                                  \
      *(etk_i64 *)(void *)out = place;                                                                                   \
      out += step[0];                                                                                                    \
      start += step[1];                                                                                                  \
    }                                                                                                                    \
  }
#define ETK_PLACES(TYPE)                                                                                                 \
  ETK_PLACE(argmax_##TYPE, etk_##TYPE, x > y)                                                                            \
  ETK_PLACE(argmin_##TYPE, etk_##TYPE, x < y)

ETK_PLACES(i8)
ETK_PLACES(u8)
ETK_PLACES(b8)
ETK_PLACES(i16)
ETK_PLACES(i32)
ETK_PLACES(i64)
ETK_PLACE(argmax_f32, etk_f32, y == y && (x > y || x != x))
ETK_PLACE(argmin_f32, etk_f32, y == y && (x < y || x != x))

/* parameters: k, axis size, whether to select the largest, bytes between elements of values, indices and input. Inserts each element
 * into the k best elements so far, after equal elements. NaN is greater than all values. */
#define ETK_TOPK(SUFFIX, TYPE, GREATER)                                                                                  \
  static int greater_##SUFFIX(TYPE x, TYPE y) {                                                                          \
    return GREATER;                                                                                                      \
  }                                                                                                                      \
  void etk_topk_##SUFFIX(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,      \
                         const void *parameters) {                                                                       \
    const int32_t *const p = parameters;                                                                                 \
    etk_address places;                                                                                                  \
    const uint8_t *start = in[1];                                                                                        \
    int32_t i, k;                                                                                                        \
    places.read = in[0];                                                                                                 \
    for (i = 0; i < count; ++i) {                                                                                        \
      int32_t found = 0;                                                                                                 \
      for (k = 0; k < p[1]; ++k) {                                                                                       \
        const TYPE x = *(const TYPE *)(const void *)(start + (ptrdiff_t)k * p[5]);                                       \
        int32_t at = found;                                                                                              \
        while (at > 0) {                                                                                                 \
          const TYPE y = *(const TYPE *)(const void *)(out + (ptrdiff_t)(at - 1) * p[3]);                                \
          if ((p[2] != 0) ? !greater_##SUFFIX(x, y) : !greater_##SUFFIX(y, x)) {                                         \
            break;                                                                                                       \
          }                                                                                                              \
          if (at < p[0]) {                                                                                               \
            *(TYPE *)(void *)(out + (ptrdiff_t)at * p[3]) = y;                                                           \
            *(etk_i64 *)(void *)(places.write + (ptrdiff_t)at * p[4]) =                                                        \
                *(const etk_i64 *)(const void *)(places.write + (ptrdiff_t)(at - 1) * p[4]);                                   \
          }                                                                                                              \
          at -= 1;                                                                                                       \
        }                                                                                                                \
        if (at < p[0]) {                                                                                                 \
          *(TYPE *)(void *)(out + (ptrdiff_t)at * p[3]) = x;                                                             \
          *(etk_i64 *)(void *)(places.write + (ptrdiff_t)at * p[4]) = k;                                                       \
          found += (found < p[0]) ? 1 : 0;                                                                               \
        }                                                                                                                \
      }                                                                                                                  \
      out += step[0];                                                                                                    \
      places.write += step[1];                                                                                                 \
      start += step[2];                                                                                                  \
    }                                                                                                                    \
  }

ETK_TOPK(i8, etk_i8, x > y)
ETK_TOPK(u8, etk_u8, x > y)
ETK_TOPK(i16, etk_i16, x > y)
ETK_TOPK(i32, etk_i32, x > y)
ETK_TOPK(i64, etk_i64, x > y)
ETK_TOPK(f32, etk_f32, (x != x && y == y) || x > y)
