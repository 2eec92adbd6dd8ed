/* What a generated model says of itself. The same for every model of a project. */
#ifndef ETHOSU_MODEL_H
#define ETHOSU_MODEL_H

#include "ethosu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Puts a variable into a section of the linker script; a model's header has a macro for each of its parts. */
#if defined(__GNUC__) || defined(__clang__)
#define ETHOSU_SECTION(name) __attribute__((section(name)))
#define ETHOSU_ALIGNED(bytes) __attribute__((aligned(bytes)))
#else
#define ETHOSU_SECTION(name)
#define ETHOSU_ALIGNED(bytes) _Alignas(bytes)
#endif

/* An input or output. The bytes are row-major in the order of `shape`. */
typedef struct ethosu_tensor {
  const char *name;       /* "input 0" */
  const char *type;       /* "float32": torch's name of an element's type */
  uint32_t bytes;
  uint32_t elements;
  uint32_t rank;
  const uint32_t *shape;  /* as it lies in memory */
  const char *codes_type; /* of floats that have codes: "int8"; NULL where there are none */
  float scale;            /* value = (code - zero_point) * scale; 0 where nothing says it */
  int32_t zero_point;
} ethosu_tensor;

typedef struct ethosu_model_info {
  const char *name;
  const char *method;     /* "forward": of the program; sizes are of all methods together */
  const char *target;     /* "ethos-u55-128" */
  const char *made_by;    /* versions */
  const char *sha256;     /* of the .pte */
  uint32_t arena_bytes;
  uint32_t fast_bytes;
  uint32_t tensors_bytes;
  uint32_t weights_bytes;
  uint32_t commands_bytes;
  uint32_t constants_bytes;
  uint32_t delegates;     /* command streams of the method, run in order */
  uint32_t estimated_cycles; /* of the NPU in one run, by Vela; 0 where unknown */
  uint32_t input_count;
  uint32_t output_count;
  const ethosu_tensor *inputs;
  const ethosu_tensor *outputs;
} ethosu_model_info;

/* Two sums over 32-bit words, of which the second weighs each word by its place. */
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
