/* Prints on the board's UART, or by semihosting if board.h has no UART. All functions are weak and can be replaced by your own. */
#include "console.h"

#include "board.h"

#define WEAK __attribute__((weak))
#define SYS_WRITEC 0x03u
#define SYS_EXIT_EXTENDED 0x20u
#define APPLICATION_EXIT 0x20026u
#define END_OF_TRANSMISSION 0x04

#if BOARD_UART_CMSDK || BOARD_UART_PL011
#define UART(offset) (*(volatile uint32_t *)(uintptr_t)(BOARD_UART_BASE + (offset)))
#endif

static void semihost(uint32_t operation, const void *argument) {
#if defined(__ARM_ARCH)
  register uint32_t r0 __asm("r0") = operation;
  register const void *r1 __asm("r1") = argument;
  __asm volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory", "cc");
#else
  (void)operation;
  (void)argument;
#endif
}

WEAK void console_init(void) {
#if BOARD_UART_CMSDK
  UART(0x10u) = 16u; /* minimum divider */
  UART(0x08u) = 1u;  /* enable the transmitter */
#endif
}

WEAK void console_put(char character);

WEAK void console_put(char character) {
#if BOARD_UART_CMSDK
  while ((UART(0x04u) & 1u) != 0u) { /* the transmit buffer is full */
  }
  UART(0x00u) = (uint32_t)(uint8_t)character;
#elif BOARD_UART_PL011
  while ((UART(0x18u) & 0x20u) != 0u) {
  }
  UART(0x00u) = (uint32_t)(uint8_t)character;
#else
  semihost(SYS_WRITEC, &character);
#endif
}

WEAK void console_text(const char *text) {
  while (*text != '\0') {
    console_put(*text);
    text++;
  }
}

WEAK void console_number(uint32_t value) {
  char digits[11];
  uint32_t at = sizeof digits - 1u;
  uint32_t left = value;

  digits[at] = '\0';
  do {
    at--;
    digits[at] = (char)('0' + (char)(left % 10u));
    left /= 10u;
  } while (left != 0u);
  console_text(&digits[at]);
}

WEAK void console_signed(int32_t value) {
  if (value < 0) {
    console_put('-');
    console_number(0u - (uint32_t)value);
  } else {
    console_number((uint32_t)value);
  }
}

WEAK void console_hex(uint32_t value) {
  console_text("0x");
  for (uint32_t i = 0u; i < 8u; i++) {
    console_put("0123456789abcdef"[(value >> (28u - (4u * i))) & 0xFu]);
  }
}

WEAK void firmware_exit(int status) {
  const uint32_t block[2] = {APPLICATION_EXIT, (uint32_t)status};

  console_put((char)END_OF_TRANSMISSION);
  semihost(SYS_EXIT_EXTENDED, block);
  for (;;) {
#if defined(__ARM_ARCH)
    __asm volatile("wfi");
#endif
  }
}
