/* The driver's hooks for a Cortex-M: data cache maintenance by address, a timeout measured with SysTick, and the NPU's interrupt. */
#include "cortex_m.h"

#include "board.h"

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define SYST_CSR REGISTER(0xE000E010u)
#define SYST_RVR REGISTER(0xE000E014u)
#define SYST_CVR REGISTER(0xE000E018u)
#define NVIC_ISER(line) REGISTER(0xE000E100u + (4u * ((line) / 32u)))
#define CCR REGISTER(0xE000ED14u)
#define DCIMVAC REGISTER(0xE000EF5Cu)
#define DCCMVAC REGISTER(0xE000EF68u)
#define DATA_CACHE 0x10000u
#define LINE ((uintptr_t)BOARD_CACHE_LINE_BYTES)

static volatile uint32_t ticks;

void SysTick_Handler(void);

void SysTick_Handler(void) { ticks++; }

void cortex_m_init(uint32_t npu_interrupt) {
  SYST_RVR = (BOARD_CPU_HZ / 1000u) - 1u; /* one millisecond */
  SYST_CVR = 0u;
  SYST_CSR = 7u;
  if (npu_interrupt != CORTEX_M_POLLED) {
    NVIC_ISER(npu_interrupt) = 1u << (npu_interrupt % 32u);
  }
}

/* Returns false after `patience` milliseconds. SysTick also ends WFE. */
bool ethosu_wait(ethosu *npu, uint32_t round) {
  static uint32_t started;

  if (round == 0u) {
    started = ticks;
  }
  if ((npu->flags & ETHOSU_INTERRUPT) != 0u) {
    __asm volatile("wfe" ::: "memory");
  }
  return (ticks - started) <= npu->patience;
}

void ethosu_clean(const void *address, size_t bytes) {
  if ((CCR & DATA_CACHE) != 0u) {
    const uintptr_t end = (uintptr_t)address + bytes;
    __asm volatile("dsb" ::: "memory");
    for (uintptr_t line = (uintptr_t)address & ~(LINE - 1u); line < end; line += LINE) {
      DCCMVAC = (uint32_t)line;
    }
  }
  __asm volatile("dsb" ::: "memory"); /* completes the CPU's writes before the NPU starts */
}

void ethosu_invalidate(void *address, size_t bytes) {
  if ((CCR & DATA_CACHE) != 0u) {
    const uintptr_t end = (uintptr_t)address + bytes;
    for (uintptr_t line = (uintptr_t)address & ~(LINE - 1u); line < end; line += LINE) {
      DCIMVAC = (uint32_t)line;
    }
  }
  __asm volatile("dsb" ::: "memory");
}
