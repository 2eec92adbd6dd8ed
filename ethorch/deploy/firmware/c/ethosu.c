/* Driver for Arm Ethos-U55, U65 and U85. See ethosu.h. Register offsets are bytes from the NPU's base address. */
#include "ethosu.h"

#define ID 0x000u
#define STATUS 0x004u
#define CMD 0x008u
#define RESET 0x00Cu
#define QBASE 0x010u
#define QREAD 0x018u
#define QCONFIG 0x01Cu
#define QSIZE 0x020u
#define PROT 0x024u
#define CONFIG 0x028u
#define REGIONCFG 0x03Cu
#define AXI_LIMIT 0x040u /* 4 registers in U55 and U65 */
#define MEM_ATTR 0x040u  /* 4 registers in U85 */
#define AXI_SRAM 0x050u
#define AXI_EXT 0x054u
#define BASEP 0x080u /* 8 registers of 8 bytes */

/* Performance counters. On U85, the offsets are 0x1000 higher. */
#define PMCR 0x180u
#define PMCNTENSET 0x184u
#define PMCCNTR 0x1A0u
#define PMEVCNTR 0x300u
#define PMEVTYPER 0x380u

#define STATUS_IRQ 0x002u
#define STATUS_BUS 0x004u
#define STATUS_RESETTING 0x008u
#define STATUS_PARSE 0x010u
#define STATUS_END 0x020u
#define STATUS_WEIGHTS 0x080u
#define STATUS_ECC 0x100u
#define STATUS_BRANCH 0x200u

#define CMD_RUN 0x1u
#define CMD_CLEAR_IRQ 0x2u
#define CMD_MAY_SLEEP 0xCu /* clock and power may be switched off */
#define CMD_STOP 0x10u

#define U65 1u
#define U85 2u
#define COP1 0x31504F43u
#define TAG_CONFIG 1u
#define TAG_STREAM 2u
#define TAG_NOP 5u
#define RESET_POLLS 1000000u
#define PATIENCE 100000000u

#define WEAK __attribute__((weak))

static uint32_t get(const ethosu *npu, uint32_t offset) { return *(const volatile uint32_t *)(npu->base + offset); }

static void put(const ethosu *npu, uint32_t offset, uint32_t value) { *(volatile uint32_t *)(npu->base + offset) = value; }

static uint32_t product(const ethosu *npu) { return npu->config >> 28; }

WEAK bool ethosu_wait(ethosu *npu, uint32_t round) {
#if defined(__ARM_ARCH)
  if ((npu->flags & ETHOSU_INTERRUPT) != 0u) {
    __asm volatile("wfe" ::: "memory");
  }
#endif
  return round < npu->patience;
}

WEAK void ethosu_clean(const void *address, size_t bytes) {
  (void)address;
  (void)bytes;
}

WEAK void ethosu_invalidate(void *address, size_t bytes) {
  (void)address;
  (void)bytes;
}

WEAK uint64_t ethosu_address(const void *address) { return (uint64_t)(uintptr_t)address; }

/* Resets the NPU and initializes the registers that a reset clears. */
static ethosu_status reset(ethosu *npu) {
  const uint32_t wanted = npu->flags & (ETHOSU_PRIVILEGED | ETHOSU_NON_SECURE);
  uint32_t polls = RESET_POLLS;

  npu->running = false;
  put(npu, RESET, wanted);
  while ((get(npu, STATUS) & STATUS_RESETTING) != 0u) {
    if (polls == 0u) {
      return ETHOSU_NO_RESET;
    }
    polls--;
  }
  if ((get(npu, PROT) & 3u) != wanted) {
    return ETHOSU_PROTECTION;
  }
  for (uint32_t i = 0u; i < 4u; i++) {
    if (product(npu) == U85) {
      put(npu, MEM_ATTR + (4u * i), (i < 2u) ? 0u : 4u); /* 0 and 1 select the SRAM ports, 2 and 3 the EXT port */
    } else {
      put(npu, AXI_LIMIT + (4u * i), (product(npu) == U65) ? 0x1F3F0000u : 0x0F1F0000u); /* maximum number of outstanding accesses */
    }
  }
  if (product(npu) == U85) {
    put(npu, AXI_SRAM, 0x00020F0Bu);
    put(npu, AXI_EXT, 0x00021F3Fu);
  }
  return ETHOSU_OK;
}

ethosu_status ethosu_init(ethosu *npu, uintptr_t base, uint32_t flags) {
  *npu = (ethosu){.base = base, .flags = flags, .patience = PATIENCE};
  npu->config = get(npu, CONFIG);
  npu->id = get(npu, ID);
  if ((npu->config == 0u) || (product(npu) > U85) || (npu->id == 0u)) {
    return ETHOSU_NO_NPU;
  }
  return reset(npu);
}

/* Returns ETHOSU_OK if a stream for this CONFIG and ID can run on the NPU. */
static ethosu_status compare(const ethosu *npu, uint32_t config, uint32_t id) {
  const uint32_t same = (product(npu) == U85) ? 0xF00007FFu : 0xF00000FFu; /* product, stream version, MACs; on U85, also ports */
  const uint32_t custom_dma = 0x08000000u;

  if ((((config ^ npu->config) & same) != 0u) || ((config & ~npu->config & custom_dma) != 0u)) {
    return ETHOSU_OTHER_NPU;
  }
  if (((id ^ npu->id) >> 28 != 0u) || ((id & 0x0FF00000u) > (npu->id & 0x0FF00000u))) {
    return ETHOSU_OTHER_VERSION;
  }
  return ETHOSU_OK;
}

/* Reads the header, checks the configuration, and finds the commands after it. */
static ethosu_status find_stream(const ethosu *npu, const ethosu_job *job, const uint32_t **stream, uint32_t *bytes) {
  const uint32_t *words = (const uint32_t *)job->commands;
  const uint32_t count = job->commands_bytes / 4u;
  bool compared = false;
  uint32_t at = 1u;

  if ((count == 0u) || (words[0] != COP1)) {
    return ETHOSU_BAD_STREAM;
  }
  while (at < count) {
    const uint32_t tag = words[at];
    const uint32_t left = count - at - 1u;

    at++;
    if ((tag & 0xFFu) == TAG_CONFIG) {
      ethosu_status status = (left < 2u) ? ETHOSU_BAD_STREAM : compare(npu, words[at], words[at + 1u]);
      if (status != ETHOSU_OK) {
        return status;
      }
      compared = true;
      at += 2u;
    } else if ((tag & 0xFFu) == TAG_STREAM) {
      const uint32_t length = (tag >> 16) | ((tag & 0xFF00u) << 8);
      if ((!compared) || (length > left)) {
        return ETHOSU_BAD_STREAM;
      }
      *stream = &words[at];
      *bytes = 4u * length;
      return ETHOSU_OK;
    } else if ((tag & 0xFFu) != TAG_NOP) {
      return ETHOSU_BAD_STREAM;
    } else {
      /* nothing to do */
    }
  }
  return ETHOSU_BAD_STREAM;
}

/* Writes an address to a pair of registers. U55 has only the low register. */
static bool put_address(const ethosu *npu, uint32_t offset, const void *pointer) {
  const uint64_t address = ethosu_address(pointer);
  const uint32_t high = (uint32_t)(address >> 32);

  put(npu, offset, (uint32_t)address);
  if (product(npu) >= U65) {
    put(npu, offset + 4u, high);
  }
  return ((address % ETHOSU_ALIGNMENT) == 0u) && (high <= ((product(npu) >= U65) ? 0xFFu : 0u));
}

static uint32_t counters_at(const ethosu *npu) { return (product(npu) == U85) ? 0x1000u : 0u; }

static uint32_t counters(const ethosu *npu) { return (product(npu) == U85) ? 8u : 4u; }

ethosu_status ethosu_start(ethosu *npu, const ethosu_job *job) {
  const uint32_t *stream = NULL;
  uint32_t bytes = 0u;
  ethosu_status status;
  bool reachable;

  if (npu->running) {
    return ETHOSU_BUSY;
  }
  status = (((uintptr_t)job->commands % ETHOSU_ALIGNMENT) != 0u) ? ETHOSU_BAD_ADDRESS : find_stream(npu, job, &stream, &bytes);
  if (status == ETHOSU_OK) {
    status = reset(npu);
  }
  if (status != ETHOSU_OK) {
    return status;
  }
  put(npu, CMD, 0u); /* leave clock and power on */
  reachable = put_address(npu, QBASE, stream);
  put(npu, QSIZE, bytes);
  put(npu, QCONFIG, job->queue_config);
  for (uint32_t i = 0u; i < ETHOSU_REGIONS; i++) {
    reachable = put_address(npu, BASEP + (8u * i), job->region[i]) && reachable;
    reachable = reachable && ((job->region[i] != NULL) || (job->region_bytes[i] == 0u));
  }
  put(npu, REGIONCFG, job->region_config);
  if (!reachable) {
    put(npu, CMD, CMD_MAY_SLEEP);
    return ETHOSU_BAD_ADDRESS;
  }
  if ((npu->flags & ETHOSU_COUNT) != 0u) {
    const uint32_t at = counters_at(npu);
    for (uint32_t i = 0u; i < counters(npu); i++) {
      put(npu, at + PMEVTYPER + (4u * i), npu->events[i]);
    }
    put(npu, at + PMCNTENSET, 0x800000FFu);
    put(npu, at + PMCR, 7u); /* enable and reset the counters */
  }
  npu->region_1 = job->region[1];
  npu->region_1_bytes = job->region_bytes[1];
  ethosu_clean(npu->region_1, npu->region_1_bytes);
  npu->done = false;
  npu->running = true;
  put(npu, CMD, CMD_RUN);
  return ETHOSU_OK;
}

void ethosu_irq(ethosu *npu) {
  npu->status = get(npu, STATUS);
  put(npu, CMD, CMD_CLEAR_IRQ);
  npu->done = true;
}

/* Returns the result that the NPU's STATUS encodes. */
static ethosu_status decode(const ethosu *npu) {
  const uint32_t found = npu->status & ~((product(npu) == U85) ? STATUS_WEIGHTS : STATUS_BRANCH); /* each product has only one of the two bits */

  return ((found & STATUS_BUS) != 0u)       ? ETHOSU_BUS_FAULT
         : ((found & STATUS_PARSE) != 0u)   ? ETHOSU_PARSE_ERROR
         : ((found & STATUS_WEIGHTS) != 0u) ? ETHOSU_WEIGHT_FAULT
         : ((found & STATUS_ECC) != 0u)     ? ETHOSU_ECC_FAULT
         : ((found & STATUS_BRANCH) != 0u)  ? ETHOSU_BRANCH_FAULT
         : ((found & STATUS_END) != 0u)     ? ETHOSU_OK
                                            : ETHOSU_NOT_ENDED;
}

ethosu_status ethosu_finish(ethosu *npu) {
  ethosu_status status = ETHOSU_OK;
  uint32_t round = 0u;

  if (!npu->running) {
    return ETHOSU_BUSY;
  }
  while ((!npu->done) && (status == ETHOSU_OK)) {
    if (((npu->flags & ETHOSU_INTERRUPT) == 0u) && ((get(npu, STATUS) & STATUS_IRQ) != 0u)) {
      ethosu_irq(npu);
    } else if (!ethosu_wait(npu, round)) {
      npu->status = get(npu, STATUS);
      put(npu, CMD, CMD_STOP);
      status = ETHOSU_TIMEOUT;
    } else {
      round++;
    }
  }
  npu->queue_read = get(npu, QREAD);
  if ((npu->flags & ETHOSU_COUNT) != 0u) {
    const uint32_t at = counters_at(npu);
    npu->cycles = get(npu, at + PMCCNTR) | ((uint64_t)(get(npu, at + PMCCNTR + 4u) & 0xFFFFu) << 32);
    for (uint32_t i = 0u; i < counters(npu); i++) {
      npu->counts[i] = get(npu, at + PMEVCNTR + (4u * i));
    }
  }
  if (status == ETHOSU_OK) {
    status = decode(npu);
  }
  npu->running = false;
  if (status != ETHOSU_OK) {
    (void)reset(npu);
  }
  put(npu, CMD, CMD_MAY_SLEEP);
  ethosu_invalidate(npu->region_1, npu->region_1_bytes);
  return status;
}

ethosu_status ethosu_run(ethosu *npu, const ethosu_job *job) {
  const ethosu_status status = ethosu_start(npu, job);
  return (status == ETHOSU_OK) ? ethosu_finish(npu) : status;
}
