/* Functions that copy strided elements or contiguous runs of bytes, or fill a tensor. */

#include "kernels.h"

/* Elements are copied as integers of the same size, so that no bit of a NaN changes. */
#define ETK_COPY(BYTES, TYPE)                                                                                            \
  void etk_copy_##BYTES(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,       \
                        const void *parameters) {                                                                        \
    const uint8_t *from = in[0];                                                                                         \
    int32_t i;                                                                                                           \
    (void)parameters;                                                                                                    \
    for (i = 0; i < count; ++i) {                                                                                        \
      *(TYPE *)(void *)out = *(const TYPE *)(const void *)from;                                                          \
      out += step[0];                                                                                                    \
      from += step[1];                                                                                                   \
    }                                                                                                                    \
  }                                                                                                                      \
  void etk_fill_##BYTES(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,       \
                        const void *parameters) {                                                                        \
    const TYPE value = *(const TYPE *)parameters;                                                                        \
    int32_t i;                                                                                                           \
    (void)in;                                                                                                            \
    for (i = 0; i < count; ++i) {                                                                                        \
      *(TYPE *)(void *)out = value;                                                                                      \
      out += step[0];                                                                                                    \
    }                                                                                                                    \
  }

ETK_COPY(1, etk_u8)
ETK_COPY(2, etk_u16)
ETK_COPY(4, etk_u32)
ETK_COPY(8, etk_u64)

static void copy_run(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                     const void *parameters) {
  const size_t bytes = *(const size_t *)parameters;
  const uint8_t *from = in[0];
  int32_t i;
  for (i = 0; i < count; ++i) {
    memcpy(out, from, bytes);
    out += step[0];
    from += step[1];
  }
}

void etk_copy_runs(size_t bytes, const etk_axis *axes, uint32_t rank, void *out, const void *in) {
  etk_map(copy_run, &bytes, axes, rank, out, in, in, in);
}
