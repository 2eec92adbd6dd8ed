/* Start-up code from reset to main() for Armv7-M and Armv8-M: vector table, FPU, caches, .data and .bss. */
#include "board.h"

#include <stdint.h>

extern uint32_t __stack_top, __data_load, __data_start, __data_end, __bss_start, __bss_end;

int main(void);
void firmware_exit(int status);
void Reset_Handler(void);
void Default_Handler(void);
void HardFault_Handler(void);
void SysTick_Handler(void);
void NPU_Handler(void);

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define VTOR REGISTER(0xE000ED08u)
#define CCR REGISTER(0xE000ED14u)
#define CPACR REGISTER(0xE000ED88u)
#define ICIALLU REGISTER(0xE000EF50u)
#define DCISW REGISTER(0xE000EF60u)
#define CCSIDR REGISTER(0xE000ED80u)
#define CSSELR REGISTER(0xE000ED84u)

__attribute__((weak)) void Default_Handler(void) {
  firmware_exit(3);
}

__attribute__((weak, alias("Default_Handler"))) void HardFault_Handler(void);
__attribute__((weak, alias("Default_Handler"))) void SysTick_Handler(void);
__attribute__((weak, alias("Default_Handler"))) void NPU_Handler(void);

typedef void (*handler)(void);

/* The sixteen vectors of the core, followed by the interrupts up to that of the NPU. */
__attribute__((section(".vectors"), used)) static const handler vectors[16 + BOARD_NPU_INTERRUPT + 1] = {
    [0] = (handler)(uintptr_t)&__stack_top,
    [1] = Reset_Handler,
    [2] = Default_Handler,
    [3] = HardFault_Handler,
    [4] = Default_Handler,
    [5] = Default_Handler,
    [6] = Default_Handler,
    [7] = Default_Handler,
    [11] = Default_Handler,
    [12] = Default_Handler,
    [14] = Default_Handler,
    [15] = SysTick_Handler,
    [16 + BOARD_NPU_INTERRUPT] = NPU_Handler,
};

#if FIRMWARE_CACHES
/* Invalidates and enables the caches. The Armv8-M manual, D1.2.25, defines the set and way fields of DCISW. */
static void enable_caches(void) {
  CSSELR = 0u;
  __asm volatile("dsb" ::: "memory");
  const uint32_t size = CCSIDR;
  const uint32_t sets = ((size >> 13) & 0x7FFFu) + 1u;
  const uint32_t ways = ((size >> 3) & 0x3FFu) + 1u;
  for (uint32_t set = 0u; set < sets; set++) {
    for (uint32_t way = 0u; way < ways; way++) {
      DCISW = (set << 5) | (way << 30);
    }
  }
  ICIALLU = 0u;
  __asm volatile("dsb\n isb" ::: "memory");
  CCR |= 0x30000u;
  __asm volatile("dsb\n isb" ::: "memory");
}
#endif

__attribute__((noreturn)) static void run(void) {
  const uint32_t *from = &__data_load;

  for (uint32_t *to = &__data_start; to < &__data_end; to++) {
    *(volatile uint32_t *)to = *from;
    from++;
  }
  for (uint32_t *to = &__bss_start; to < &__bss_end; to++) {
    *(volatile uint32_t *)to = 0u;
  }
  firmware_exit(main());
  for (;;) {
    __asm volatile("wfi");
  }
}

__attribute__((noreturn, used)) void Reset_Handler(void) {
  VTOR = (uint32_t)(uintptr_t)vectors;
  CPACR |= 0x00F00000u; /* enables the FPU: coprocessors 10 and 11 */
  __asm volatile("dsb\n isb" ::: "memory");
#if FIRMWARE_CACHES
  enable_caches();
#endif
  run();
}
