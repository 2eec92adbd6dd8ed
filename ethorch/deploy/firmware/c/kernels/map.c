/* Iterates over the rows of strided tensors. */

#include "kernels.h"

void etk_map(etk_row *row, const void *parameters, const etk_axis *axes, uint32_t rank, void *out, const void *a,
             const void *b, const void *c) {
  int32_t index[ETK_MAX_RANK] = {0};
  const etk_axis *const inner = &axes[rank - 1U];
  uint8_t *to = out;
  const uint8_t *from[3] = {a, b, c};
  for (;;) {
    uint32_t dim = rank - 1U;
    row(to, from, inner->step, inner->size, parameters);
    for (;;) { /* next row: step along the last axis that has not reached its end */
      const etk_axis *axis;
      int32_t back;
      if (dim == 0U) {
        return;
      }
      dim -= 1U;
      axis = &axes[dim];
      index[dim] += 1;
      if (index[dim] < axis->size) {
        to += axis->step[0];
        from[0] += axis->step[1];
        from[1] += axis->step[2];
        from[2] += axis->step[3];
        break;
      }
      back = axis->size - 1;
      index[dim] = 0;
      to -= (ptrdiff_t)back * axis->step[0];
      from[0] -= (ptrdiff_t)back * axis->step[1];
      from[1] -= (ptrdiff_t)back * axis->step[2];
      from[2] -= (ptrdiff_t)back * axis->step[3];
    }
  }
}

#define ETK_CHUNK 16 /* elements of a block: 512 bytes of stack */

void etk_converted(uint8_t *out, const uint8_t *const in[3], const int32_t step[ETK_OPERANDS], int32_t count,
                   const void *parameters) {
  const etk_conversion *const p = parameters;
  uint64_t space[ETK_OPERANDS][ETK_CHUNK];
  const uint8_t *const none[3] = {0, 0, 0};
  int32_t done = 0;
  while (done < count) {
    const int32_t some = (count - done < ETK_CHUNK) ? count - done : ETK_CHUNK;
    const uint8_t *from[3];
    int32_t steps[ETK_OPERANDS];
    uint8_t *const to = out + (ptrdiff_t)done * step[0];
    int i;
    for (i = 0; i < 3; ++i) {
      from[i] = in[i] + (ptrdiff_t)done * step[i + 1];
      steps[i + 1] = step[i + 1];
      if (p->load[i] != 0) {
        const int32_t item = p->item_bytes[i + 1];
        const int32_t steps_of_load[ETK_OPERANDS] = {item, step[i + 1], 0, 0};
        const uint8_t *const source[3] = {from[i], none[1], none[2]};
        p->load[i]((uint8_t *)space[i + 1], source, steps_of_load, (step[i + 1] == 0) ? 1 : some, 0);
        from[i] = (const uint8_t *)space[i + 1];
        steps[i + 1] = (step[i + 1] == 0) ? 0 : item;
      }
    }
    if (p->store == 0) {
      steps[0] = step[0];
      p->row(to, from, steps, some, p->parameters);
    } else {
      const int32_t steps_of_store[ETK_OPERANDS] = {step[0], p->item_bytes[0], 0, 0};
      const uint8_t *const result[3] = {(const uint8_t *)space[0], none[1], none[2]};
      steps[0] = p->item_bytes[0];
      p->row((uint8_t *)space[0], from, steps, some, p->parameters);
      p->store(to, result, steps_of_store, some, 0);
    }
    done += some;
  }
}
