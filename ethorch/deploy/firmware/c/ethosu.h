/* Driver for Arm Ethos-U55, U65 and U85. It has one context for each NPU, uses no heap, and does not require interrupts.
 *
 *     static ethosu npu;
 *     ethosu_init(&npu, 0x48102000u, ETHOSU_PRIVILEGED);
 *     status = ethosu_run(&npu, &job);
 *
 * If ETHOSU_INTERRUPT is set, the NPU's interrupt handler must call ethosu_irq(&npu). Otherwise the driver polls STATUS.
 */
#ifndef ETHOSU_H
#define ETHOSU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ETHOSU_ALIGNMENT 16u /* alignment of the command stream and of every region */
#define ETHOSU_REGIONS 8u
#define ETHOSU_COUNTERS 8u /* maximum number of event counters; U55 and U65 have 4 */

/* Result of a call. ethosu_text() returns its name. */
typedef enum ethosu_status {
  ETHOSU_OK = 0,
  ETHOSU_NO_NPU,       /* no Ethos-U at this address: wrong base address, or no clock */
  ETHOSU_NO_RESET,     /* the reset did not end */
  ETHOSU_PROTECTION,   /* the NPU rejected the requested privilege or security */
  ETHOSU_BAD_STREAM,   /* not a COP1 command stream, or truncated */
  ETHOSU_OTHER_NPU,    /* the stream is for another product, number of MACs or number of ports */
  ETHOSU_OTHER_VERSION,/* the stream is for another architecture, or for a newer version of the NPU's architecture */
  ETHOSU_BAD_ADDRESS,  /* an address is NULL, not a multiple of 16, or too high for the NPU */
  ETHOSU_BUSY,         /* start: the NPU is running another job; finish: no job was started */
  ETHOSU_TIMEOUT,      /* ethosu_wait() returned false; the NPU was stopped */
  ETHOSU_BUS_FAULT,    /* STATUS: bus error */
  ETHOSU_PARSE_ERROR,  /* STATUS: invalid command */
  ETHOSU_WEIGHT_FAULT, /* STATUS: the weight decoder stopped (U55, U65) */
  ETHOSU_ECC_FAULT,    /* STATUS: bit error in the NPU's internal memory */
  ETHOSU_BRANCH_FAULT, /* STATUS: invalid branch target (U85) */
  ETHOSU_NOT_ENDED,    /* STATUS: the NPU stopped before the stream's end */
  ETHOSU_SMALL_MEMORY, /* model: a buffer is too small */
  ETHOSU_CORRUPT_DATA, /* model: a checksum of weights, commands or constants is wrong */
  ETHOSU_BAD_VALUE     /* model: invalid input of a CPU operator, such as an index out of range */
} ethosu_status;

/* Flags of ethosu_init(). */
#define ETHOSU_PRIVILEGED 1u /* the NPU's accesses are privileged */
#define ETHOSU_NON_SECURE 2u /* the NPU's accesses are non-secure */
#define ETHOSU_INTERRUPT 4u  /* the interrupt handler calls ethosu_irq() */
#define ETHOSU_COUNT 8u      /* the driver counts cycles and events of each run */

typedef struct ethosu {
  uintptr_t base;
  uint32_t flags;
  uint32_t config;             /* value of the NPU's CONFIG register */
  uint32_t id;                 /* value of the NPU's ID register */
  uint32_t patience;           /* rounds before the default ethosu_wait() returns false */
  volatile uint32_t status;    /* STATUS at the end of the last run */
  volatile bool done;
  bool running;
  void *region_1;              /* region 1 of the running job, which the NPU writes */
  uint32_t region_1_bytes;
  uint32_t queue_read;         /* bytes of the stream that the last run consumed */
  uint64_t cycles;             /* cycles of the last run, if ETHOSU_COUNT is set */
  uint16_t events[ETHOSU_COUNTERS]; /* numbers of the events to count; set before a run */
  uint32_t counts[ETHOSU_COUNTERS]; /* event counts of the last run, if ETHOSU_COUNT is set */
} ethosu;

/* One run of a command stream. Regions of 0 bytes are not used. */
typedef struct ethosu_job {
  const void *commands; /* command stream with its COP1 header, aligned to 16 bytes */
  uint32_t commands_bytes;
  void *region[ETHOSU_REGIONS]; /* 0 constants, 1 feature maps, 2 staging memory */
  uint32_t region_bytes[ETHOSU_REGIONS];
  uint32_t region_config; /* REGIONCFG: memory attributes, two bits for each region */
  uint32_t queue_config;  /* QCONFIG: memory attribute of the command stream */
} ethosu_job;

/* Resets the NPU and reads its configuration. Call it before all other functions. */
ethosu_status ethosu_init(ethosu *npu, uintptr_t base, uint32_t flags);

/* Starts a job without waiting for its end. */
ethosu_status ethosu_start(ethosu *npu, const ethosu_job *job);

/* Waits for the end of a started job. After an error, resets the NPU so that it accepts the next job. */
ethosu_status ethosu_finish(ethosu *npu);

/* Calls ethosu_start() and ethosu_finish(). */
ethosu_status ethosu_run(ethosu *npu, const ethosu_job *job);

/* Handles the NPU's interrupt. Call it from the interrupt handler if ETHOSU_INTERRUPT is set. */
void ethosu_irq(ethosu *npu);

/* Returns the name of a status, e.g. "BUS_FAULT". Defined in ethosu_text.c. */
const char *ethosu_text(ethosu_status status);

/* Hooks: weak functions in ethosu.c. To replace a hook, define a function of the same name. */

/* Waits once for the NPU. `round` counts the calls for one job. Returns false to stop the job. The default executes WFE if
 * ETHOSU_INTERRUPT is set, and returns false after `patience` rounds. */
bool ethosu_wait(ethosu *npu, uint32_t round);

/* Clean and invalidate the data cache lines of these bytes. The defaults do nothing, which is correct if the CPU has no data
 * cache or the memory is not cached. */
void ethosu_clean(const void *address, size_t bytes);
void ethosu_invalidate(void *address, size_t bytes);

/* Converts a CPU address to an NPU address. The default returns the same address. */
uint64_t ethosu_address(const void *address);

#ifdef __cplusplus
}
#endif

#endif
