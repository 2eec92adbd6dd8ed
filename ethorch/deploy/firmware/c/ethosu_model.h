/* Types that describe a generated model. All models in a project share this file. */
#ifndef ETHOSU_MODEL_H
#define ETHOSU_MODEL_H

#include "ethosu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Places a variable in a section of the linker script. The header of a model defines a macro for each section name. */
#if defined(__GNUC__) || defined(__clang__)
#define ETHOSU_SECTION(name) __attribute__((section(name)))
#define ETHOSU_ALIGNED(bytes) __attribute__((aligned(bytes)))
#else
#define ETHOSU_SECTION(name)
#define ETHOSU_ALIGNED(bytes) _Alignas(bytes)
#endif

/* An input or output. Its elements are in row-major order of `shape`. */
typedef struct ethosu_tensor {
  const char *name;       /* "input 0" */
  const char *type;       /* PyTorch's name of the dtype, e.g. "float32" */
  uint32_t bytes;
  uint32_t elements;
  uint32_t rank;
  const uint32_t *shape;  /* in memory order */
  const char *codes_type; /* dtype of the integer values, e.g. "int8", or NULL */
  float scale;            /* value = (code - zero_point) * scale; 0 if unknown */
  int32_t zero_point;
} ethosu_tensor;

typedef struct ethosu_model_info {
  const char *name;
  const char *method;     /* e.g. "forward"; the sizes below are for all methods */
  const char *target;     /* NPU, e.g. "ethos-u55-128" */
  const char *made_by;    /* versions of ethorch and Vela */
  const char *sha256;     /* SHA-256 of the .pte */
  uint32_t arena_bytes;
  uint32_t fast_bytes;
  uint32_t tensors_bytes;
  uint32_t weights_bytes;
  uint32_t commands_bytes;
  uint32_t constants_bytes;
  uint32_t delegates;     /* number of command streams in the method */
  uint32_t estimated_cycles; /* Vela's estimate of the NPU cycles of one run, or 0 if unknown */
  uint32_t input_count;
  uint32_t output_count;
  const ethosu_tensor *inputs;
  const ethosu_tensor *outputs;
} ethosu_model_info;

/* Checksums: the sum of the 32-bit words, and the sum of the running sums. */
typedef struct ethosu_sums {
  uint32_t plain;
  uint32_t weighted;
} ethosu_sums;

static inline ethosu_sums ethosu_sum(const void *data, uint32_t bytes) {
  const uint32_t *words = (const uint32_t *)data;
  ethosu_sums sums = {0u, 0u};

  for (uint32_t i = 0u; i < (bytes / 4u); i++) {
    sums.plain += words[i];
    sums.weighted += sums.plain;
  }
  return sums;
}

#ifdef __cplusplus
}
#endif

#endif
