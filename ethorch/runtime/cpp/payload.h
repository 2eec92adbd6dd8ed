// The delegate payload, read in place: mirror of payload.py, which describes the format.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ethorch {

constexpr uint32_t kRank = 6;
constexpr int32_t kScratchRegion = 1;

// An input or output: row-major bytes at `offset` of the scratch region. Shapes are left-padded with ones.
struct IoTensor {
  int32_t shape[kRank];
  int32_t element_size;
  int32_t offset;
  int32_t region;
  uint64_t nbytes;
};

struct Block {
  const uint8_t* data = nullptr;
  size_t size = 0;
};

// Points into the blob it was parsed from, and into named data of the program, which have to outlive it.
struct Payload {
  Block commands;
  Block weights;
  uint32_t scratch_bytes = 0;
  Block inputs;
  Block outputs;

  uint32_t input_count() const;
  uint32_t output_count() const;
  // Only for index < count: parse() has checked each of them.
  IoTensor input(uint32_t index) const;
  IoTensor output(uint32_t index) const;
};

// Finds the program's named data of `key`, which is not terminated; false where there is none. The data stay where they are as
// long as the program.
using FindNamed = bool (*)(void* context, const char* key, size_t key_bytes, Block* data);

// Fills `payload` and returns nullptr, or returns what is wrong with the blob. Never reads outside [blob, blob + size) and what
// `find` gives for blocks that are named data; nullptr where there are none.
const char* parse(const uint8_t* blob, size_t size, Payload* payload, FindNamed find = nullptr, void* context = nullptr);

} // namespace ethorch
