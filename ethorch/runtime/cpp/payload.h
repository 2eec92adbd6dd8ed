// Parser for delegate payloads, without copies. See formats/payload.py for the format.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ethorch {

constexpr uint32_t kRank = 6;
constexpr int32_t kScratchRegion = 1;

// An input or output, stored row-major at `offset` in the scratch region. Shapes are padded on the left with ones.
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

// A parsed payload. It points into the parsed blob and into named data of the program, which must outlive the payload.
struct Payload {
  Block commands;
  Block weights;
  uint32_t scratch_bytes = 0;
  Block inputs;
  Block outputs;

  uint32_t input_count() const;
  uint32_t output_count() const;
  // Requires index < count. parse() has already checked all tensors.
  IoTensor input(uint32_t index) const;
  IoTensor output(uint32_t index) const;
};

// Finds the program's named data for `key`, which is not null-terminated. Returns false if the program does not contain it. The data must be
// valid as long as the program.
using FindNamed = bool (*)(void* context, const char* key, size_t key_bytes, Block* data);

// Parses a blob into `payload`. Returns nullptr on success, or else an error message. Reads only [blob, blob + size) and the named
// data returned by `find`, which can be nullptr if the program has no named data.
const char* parse(const uint8_t* blob, size_t size, Payload* payload, FindNamed find = nullptr, void* context = nullptr);

} // namespace ethorch
