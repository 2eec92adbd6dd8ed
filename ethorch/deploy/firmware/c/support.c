/* Functions that a C compiler can call implicitly. They are weak, so the functions of a C library take precedence. */
#include <stddef.h>
#include <stdint.h>

#define WEAK __attribute__((weak, used))

void *memcpy(void *restrict to, const void *restrict from, size_t count);
void *memmove(void *to, const void *from, size_t count);
void *memset(void *to, int value, size_t count);
int memcmp(const void *one, const void *other, size_t count);

/* Copies words if both addresses are aligned, because inputs such as images are large. */
WEAK void *memcpy(void *restrict to, const void *restrict from, size_t count) {
  uint8_t *out = (uint8_t *)to;
  const uint8_t *in = (const uint8_t *)from;

  if ((((uintptr_t)out | (uintptr_t)in) % 4u) == 0u) {
    while (count >= 4u) {
      *(volatile uint32_t *)(void *)out = *(const uint32_t *)(const void *)in; /* volatile, so that the compiler does not call memcpy */
      out += 4;
      in += 4;
      count -= 4u;
    }
  }
  while (count > 0u) {
    *(volatile uint8_t *)out = *in;
    out++;
    in++;
    count--;
  }
  return to;
}

WEAK void *memmove(void *to, const void *from, size_t count) {
  uint8_t *out = (uint8_t *)to;
  const uint8_t *in = (const uint8_t *)from;

  if ((uintptr_t)out <= (uintptr_t)in) {
    for (size_t i = 0u; i < count; i++) {
      ((volatile uint8_t *)out)[i] = in[i];
    }
  } else {
    for (size_t i = count; i > 0u; i--) {
      ((volatile uint8_t *)out)[i - 1u] = in[i - 1u];
    }
  }
  return to;
}

WEAK void *memset(void *to, int value, size_t count) {
  uint8_t *out = (uint8_t *)to;
  const uint32_t four = 0x01010101u * (uint32_t)(uint8_t)value;

  while ((((uintptr_t)out % 4u) != 0u) && (count > 0u)) {
    *(volatile uint8_t *)out = (uint8_t)value;
    out++;
    count--;
  }
  while (count >= 4u) {
    *(volatile uint32_t *)(void *)out = four;
    out += 4;
    count -= 4u;
  }
  while (count > 0u) {
    *(volatile uint8_t *)out = (uint8_t)value;
    out++;
    count--;
  }
  return to;
}

WEAK int memcmp(const void *one, const void *other, size_t count) {
  const uint8_t *a = (const uint8_t *)one;
  const uint8_t *b = (const uint8_t *)other;

  for (size_t i = 0u; i < count; i++) {
    if (a[i] != b[i]) {
      return (int)a[i] - (int)b[i];
    }
  }
  return 0;
}
