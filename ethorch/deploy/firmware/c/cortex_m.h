#ifndef CORTEX_M_H
#define CORTEX_M_H

#include "ethosu.h"

#define CORTEX_M_POLLED 0xFFFFFFFFu

/* Starts SysTick with a period of one millisecond, and enables the NPU's interrupt. */
void cortex_m_init(uint32_t npu_interrupt);

#endif
