/* Driver of Arm Ethos-U55, U65 and U85: one context for each NPU, no heap, no interrupts needed.
 *
 *     static ethosu npu;
 *     ethosu_init(&npu, 0x48102000u, ETHOSU_PRIVILEGED);
 *     status = ethosu_run(&npu, &job);
 *
 * With ETHOSU_INTERRUPT the interrupt's handler calls ethosu_irq(&npu); without it the driver polls STATUS.
 */
#ifndef ETHOSU_H
#define ETHOSU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ETHOSU_ALIGNMENT 16u /* of the command stream and of every region */
#define ETHOSU_REGIONS 8u
#define ETHOSU_COUNTERS 8u /* event counters at most: U55 and U65 have 4 */

/* What came of it. The names are what ethosu_text() says. */
typedef enum ethosu_status {
  ETHOSU_OK = 0,
  ETHOSU_NO_NPU,       /* no Ethos-U answers at this address: wrong base, or it has no clock */
  ETHOSU_NO_RESET,     /* the reset did not end */
  ETHOSU_PROTECTION,   /* the NPU did not take the privilege or security that was asked for */
  ETHOSU_BAD_STREAM,   /* no COP1 command stream, or it is cut off */
  ETHOSU_OTHER_NPU,    /* the stream was made for another product, number of MACs or ports */
  ETHOSU_OTHER_VERSION,/* the stream wants another or a newer architecture than the NPU has */
  ETHOSU_BAD_ADDRESS,  /* an address is missing, not a multiple of 16, or beyond the NPU's reach */
  ETHOSU_BUSY,         /* the NPU runs another job, or none was started */
  ETHOSU_TIMEOUT,      /* ethosu_wait() gave up; the NPU was stopped */
  ETHOSU_BUS_FAULT,    /* STATUS: an access was answered with an error */
  ETHOSU_PARSE_ERROR,  /* STATUS: a command is none */
  ETHOSU_WEIGHT_FAULT, /* STATUS: the weight decoder stopped (U55, U65) */
  ETHOSU_ECC_FAULT,    /* STATUS: a bit of the NPU's memory flipped */
  ETHOSU_BRANCH_FAULT, /* STATUS: a branch led nowhere (U85) */
  ETHOSU_NOT_ENDED,    /* STATUS: the NPU stopped before the stream's end */
  ETHOSU_SMALL_MEMORY, /* of a model: a buffer is smaller than it has to be */
  ETHOSU_CORRUPT_DATA, /* of a model: weights or commands are not what was generated */
  ETHOSU_BAD_VALUE     /* of a model: a CPU operator got a value that it cannot take, such as an index out of range */
} ethosu_status;

/* Flags of ethosu_init(). */
#define ETHOSU_PRIVILEGED 1u /* the NPU's accesses are privileged */
#define ETHOSU_NON_SECURE 2u /* ... are non-secure */
#define ETHOSU_INTERRUPT 4u  /* the interrupt's handler calls ethosu_irq() */
#define ETHOSU_COUNT 8u      /* count cycles and events of each run */

typedef struct ethosu {
  uintptr_t base;
  uint32_t flags;
  uint32_t config;             /* the NPU's CONFIG */
  uint32_t id;                 /* the NPU's ID */
  uint32_t patience;           /* calls of ethosu_wait() before its default gives up */
  volatile uint32_t status;    /* STATUS at the end of the last run */
  volatile bool done;
  bool running;
  void *region_1;              /* of the running job: what the NPU writes, and its size */
  uint32_t region_1_bytes;
  uint32_t queue_read;         /* bytes of the stream that the last run consumed */
  uint64_t cycles;             /* of the last run, with ETHOSU_COUNT */
  uint16_t events[ETHOSU_COUNTERS]; /* set them before a run: numbers of events */
  uint32_t counts[ETHOSU_COUNTERS]; /* of the last run, with ETHOSU_COUNT */
} ethosu;

/* One run of a command stream. Regions without bytes are not used. */
typedef struct ethosu_job {
  const void *commands; /* with its COP1 header; 16-aligned */
  uint32_t commands_bytes;
  void *region[ETHOSU_REGIONS]; /* 0 constants, 1 feature maps, 2 staging memory */
  uint32_t region_bytes[ETHOSU_REGIONS];
  uint32_t region_config; /* REGIONCFG: two bits for each region, the memory attribute it is read and written with */
  uint32_t queue_config;  /* QCONFIG: the same for the command stream */
} ethosu_job;

/* Resets the NPU and reads what it is. Has to be called before anything else. */
ethosu_status ethosu_init(ethosu *npu, uintptr_t base, uint32_t flags);

/* Starts a job and comes back. */
ethosu_status ethosu_start(ethosu *npu, const ethosu_job *job);

/* Waits for the end of what ethosu_start() began. After any error the NPU is reset and takes the next job. */
ethosu_status ethosu_finish(ethosu *npu);

/* ethosu_start() and ethosu_finish(). */
ethosu_status ethosu_run(ethosu *npu, const ethosu_job *job);

/* The interrupt's handler, of an NPU with ETHOSU_INTERRUPT. */
void ethosu_irq(ethosu *npu);

/* A name for people: "BUS_FAULT". In ethosu_text.c. */
const char *ethosu_text(ethosu_status status);

/* Hooks: weak in ethosu.c, to be replaced by functions of the same name. */

/* The CPU waits; `round` counts its calls for one job. Returns false to give up. By default WFE with ETHOSU_INTERRUPT, nothing
 * without it, and false after `patience` rounds. */
bool ethosu_wait(ethosu *npu, uint32_t round);

/* Write the data cache's lines of these bytes to memory; forget them. By default nothing: for a CPU without data cache, or memory
 * that is not cached. */
void ethosu_clean(const void *address, size_t bytes);
void ethosu_invalidate(void *address, size_t bytes);

/* The address by which the NPU sees what the CPU has at `address`. By default the same. */
uint64_t ethosu_address(const void *address);

#ifdef __cplusplus
}
#endif

#endif
