/* Functions that access elements selected by index tensors: embeddings, gathers and scatters. */

#include "kernels.h"

typedef struct {
  const etk_indexing *indexing;
  int status;
} call;

/* Computes the byte offset that the indices select. Returns 1 if an index is out of range. */
static int place_of(const etk_indexing *p, const uint8_t *const index[2], ptrdiff_t *place) {
  int32_t k;
  *place = 0;
  for (k = 0; k < p->indices; ++k) {
    int64_t at = (p->index_bytes == 8) ? *(const etk_i64 *)(const void *)index[k] : *(const etk_i32 *)(const void *)index[k];
    if (at < 0) {
      at += p->size[k];
    }
    if (at < 0 || at >= p->size[k]) {
      return 1;
    }
    *place += (ptrdiff_t)at * p->step[k];
  }
  return 0;
}

/* Row functions whose parameter describes a call of etk_map and receives the status of the call. */
#define ETK_INDEXED(NAME, STATEMENT)                                                                                     \
  static void NAME##_row(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,      \
                         const void *parameters) {                                                                       \
    call *const c = *(call *const *)parameters;                                                                          \
    const uint8_t *x = in[0];                                                                                            \
    const uint8_t *index[2] = {in[1], in[2]};                                                                            \
    int32_t i;                                                                                                           \
    for (i = 0; i < count; ++i) {                                                                                        \
      ptrdiff_t place;                                                                                                   \
      if (place_of(c->indexing, index, &place) != 0) {                                                                   \
        c->status = 1;                                                                                                   \
      } else {                                                                                                           \
        STATEMENT                                                                                                        \
      }                                                                                                                  \
      out += step[0];                                                                                                    \
      x += step[1];                                                                                                      \
      index[0] += step[2];                                                                                               \
      index[1] += step[3];                                                                                               \
    }                                                                                                                    \
  }                                                                                                                      \
  int NAME(const etk_indexing *indexing, const etk_axis *axes, uint32_t rank, void *out, const void *x,                  \
           const void *first, const void *second) {                                                                      \
    call here = {0, 0};                                                                                                  \
    call *const c = &here;                                                                                               \
    here.indexing = indexing;                                                                                            \
    etk_map(NAME##_row, &c, axes, rank, out, x, first, second);                                                          \
    return here.status;                                                                                                  \
  }

ETK_INDEXED(etk_take, memcpy(out, x + place, (size_t)c->indexing->run_bytes);)
ETK_INDEXED(etk_put, memcpy(out + place, x, (size_t)c->indexing->run_bytes);)
ETK_INDEXED(etk_put_sum_f32, *(etk_f32 *)(void *)(out + place) += *(const etk_f32 *)(const void *)x;)
ETK_INDEXED(etk_put_sum_i32, etk_u32 *const to = (etk_u32 *)(void *)(out + place); *to += *(const etk_u32 *)(const void *)x;)
ETK_INDEXED(etk_put_sum_i64, etk_u64 *const to = (etk_u64 *)(void *)(out + place); *to += *(const etk_u64 *)(const void *)x;)
