/* Conversions between dtypes, with one row function for each pair. A program links only the functions that it calls. */

#include "arithmetic.h"

#define ETK_CAST(TO, FROM, VALUE)                                                                                        \
  void etk_cast_##TO##_##FROM(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count, \
                              const void *parameters) {                                                                  \
    const uint8_t *from = in[0];                                                                                         \
    int32_t i;                                                                                                           \
    (void)parameters;                                                                                                    \
    for (i = 0; i < count; ++i) {                                                                                        \
      const etk_##FROM x = *(const etk_##FROM *)(const void *)from;                                                      \
      *(etk_##TO *)(void *)out = (etk_##TO)(VALUE);                                                                      \
      out += step[0];                                                                                                    \
      from += step[1];                                                                                                   \
    }                                                                                                                    \
  }

#define ETK_CASTS_OF(FROM, NARROW, WIDE)                                                                                 \
  ETK_CAST(i8, FROM, NARROW)                                                                                             \
  ETK_CAST(u8, FROM, NARROW)                                                                                             \
  ETK_CAST(i16, FROM, NARROW)                                                                                            \
  ETK_CAST(u16, FROM, NARROW)                                                                                            \
  ETK_CAST(i32, FROM, NARROW)                                                                                            \
  ETK_CAST(u32, FROM, WIDE)                                                                                              \
  ETK_CAST(i64, FROM, WIDE)                                                                                              \
  ETK_CAST(f32, FROM, x)                                                                                                 \
  ETK_CAST(f64, FROM, x)                                                                                                 \
  ETK_CAST(b8, FROM, (x != 0) ? 1 : 0)

ETK_CASTS_OF(i8, x, x)
ETK_CASTS_OF(u8, x, x)
ETK_CASTS_OF(i16, x, x)
ETK_CASTS_OF(u16, x, x)
ETK_CASTS_OF(i32, x, x)
ETK_CASTS_OF(u32, x, x)
ETK_CASTS_OF(i64, x, x)
ETK_CASTS_OF(b8, x, x)
ETK_CASTS_OF(f32, etk_to_i32(x), etk_to_i64(x))
ETK_CASTS_OF(f64, etk_f64_to_i32(x), etk_f64_to_i64(x))
