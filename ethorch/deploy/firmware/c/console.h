/* Functions that print text or end the program, without a C library. */
#ifndef CONSOLE_H
#define CONSOLE_H

#include <stdint.h>

void console_init(void);
void console_text(const char *text);
void console_number(uint32_t value);
void console_signed(int32_t value);
void console_hex(uint32_t value);

/* Sends 0x04, and exits by semihosting with this status. Does not return. */
void firmware_exit(int status);

#endif
