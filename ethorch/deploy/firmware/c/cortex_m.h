#ifndef CORTEX_M_H
#define CORTEX_M_H

#include "ethosu.h"

#define CORTEX_M_POLLED 0xFFFFFFFFu

/* Starts SysTick, once a millisecond, and lets the NPU's interrupt through. */
void cortex_m_init(uint32_t npu_interrupt);

#endif
