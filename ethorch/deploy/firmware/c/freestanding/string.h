/* The four functions of support.c, for compilers without a C library. */
#ifndef ETHORCH_STRING_H
#define ETHORCH_STRING_H

#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t count);
void *memmove(void *to, const void *from, size_t count);
void *memset(void *to, int value, size_t count);
int memcmp(const void *one, const void *other, size_t count);

#endif
