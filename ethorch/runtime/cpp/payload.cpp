#include "payload.h"

#include <cstring>

namespace ethorch {
namespace {

constexpr size_t kAlignment = 16;
constexpr size_t kHeaderBytes = 32; // name[16], length int32, external uint8, 11 zero bytes
constexpr size_t kKeyBytes = 64;
constexpr size_t kTensorBytes = 36; // nine int32

// Reads a little-endian word at any alignment.
uint32_t word(const uint8_t* at) {
  return uint32_t(at[0]) | uint32_t(at[1]) << 8 | uint32_t(at[2]) << 16 | uint32_t(at[3]) << 24;
}

uint32_t count(const Block& tensors) {
  return word(tensors.data);
}

IoTensor tensor(const Block& tensors, uint32_t index) {
  const uint8_t* at = tensors.data + 4 + size_t(index) * kTensorBytes;
  IoTensor t;
  t.nbytes = 1;
  for (uint32_t i = 0; i < kRank; ++i) {
    t.shape[i] = int32_t(word(at + 4 * i));
    t.nbytes *= uint32_t(t.shape[i]);
  }
  t.element_size = int32_t(word(at + 24));
  t.offset = int32_t(word(at + 28));
  t.region = int32_t(word(at + 32));
  t.nbytes *= uint32_t(t.element_size);
  return t;
}

// Checks that all tensors are inside the scratch region, without products that overflow. Returns an error message or nullptr.
const char* check_tensors(const Block& tensors, uint64_t scratch_bytes) {
  if (tensors.size < 4 || count(tensors) > (tensors.size - 4) / kTensorBytes ||
      tensors.size != 4 + size_t(count(tensors)) * kTensorBytes) {
    return "block inputs or outputs: the length does not match the number of tensors";
  }
  for (uint32_t index = 0; index < count(tensors); ++index) {
    const IoTensor t = tensor(tensors, index);
    if (t.element_size != 1 && t.element_size != 2 && t.element_size != 4 && t.element_size != 8) {
      return "an input or output: expected an element size of 1, 2, 4 or 8 bytes";
    }
    uint64_t nbytes = uint64_t(t.element_size);
    for (int32_t size : t.shape) {
      if (size < 1 || nbytes > scratch_bytes / uint32_t(size)) {
        return "an input or output: expected positive sizes that fit into the scratch region";
      }
      nbytes *= uint32_t(size);
    }
    if (t.region != kScratchRegion) {
      return "an input or output is not in the scratch region";
    }
    if (t.offset < 0 || uint64_t(t.offset) + nbytes > scratch_bytes) {
      return "an input or output extends beyond the scratch region";
    }
  }
  return nullptr;
}

} // namespace

uint32_t Payload::input_count() const {
  return count(inputs);
}

uint32_t Payload::output_count() const {
  return count(outputs);
}

IoTensor Payload::input(uint32_t index) const {
  return tensor(inputs, index);
}

IoTensor Payload::output(uint32_t index) const {
  return tensor(outputs, index);
}

const char* parse(const uint8_t* blob, size_t size, Payload* payload, FindNamed find, void* context) {
  Block scratch;
  struct Named {
    const char* name;
    Block* block;
  } const known[] = {
      {"cmd_data", &payload->commands},
      {"weight_data", &payload->weights},
      {"scratch_size", &scratch},
      {"inputs", &payload->inputs},
      {"outputs", &payload->outputs},
  };
  *payload = Payload();
  size_t position = 0;
  for (bool end = false; !end;) {
    if (size - position < kHeaderBytes) {
      return "truncated, or vela_end_stream is missing";
    }
    const uint8_t* header = blob + position;
    char name[17] = {};
    std::memcpy(name, header, 16);
    for (size_t i = std::strlen(name); i < 16; ++i) {
      if (name[i] != 0) {
        return "unknown block name";
      }
    }
    const bool external = header[20] == 1;
    for (size_t i = external ? 21 : 20; i < kHeaderBytes; ++i) {
      if (header[i] != 0) {
        return "the first of the 12 bytes after a block's length must be 0 or 1, and the others 0";
      }
    }
    const size_t length = word(header + 16);
    const size_t rest = size - position - kHeaderBytes;
    if (length > INT32_MAX || length > rest) {
      return "the length of a block exceeds the remaining bytes";
    }
    const bool begin = std::strcmp(name, "vela_bin_stream") == 0;
    end = std::strcmp(name, "vela_end_stream") == 0;
    if (begin != (position == 0)) {
      return "vela_bin_stream is not the first block";
    }
    if (begin || end) {
      if (length != 0) {
        return "vela_bin_stream or vela_end_stream is not empty";
      }
    } else {
      Block* block = nullptr;
      for (const Named& entry : known) {
        if (std::strcmp(name, entry.name) == 0) {
          block = entry.block;
        }
      }
      if (block == nullptr) {
        return "unknown block name";
      }
      if (block->data != nullptr) {
        return "a block occurs twice";
      }
      block->data = header + kHeaderBytes;
      block->size = length;
      if (external) {
        const char* key = reinterpret_cast<const char*>(block->data);
        if (length != kKeyBytes || find == nullptr || !find(context, key, length, block) || block->data == nullptr ||
            reinterpret_cast<uintptr_t>(block->data) % kAlignment != 0) {
          return "the data of an external block is not in the program, or is not aligned to 16 bytes";
        }
      }
    }
    const size_t padded = (length + kAlignment - 1) / kAlignment * kAlignment;
    position += kHeaderBytes + (padded > rest ? rest + 1 : padded); // if past the end, the next check fails
    if (position > size) {
      return "truncated inside the padding of a block";
    }
  }
  if (position != size) {
    return "bytes follow vela_end_stream";
  }
  for (const Named& entry : known) {
    if (entry.block->data == nullptr) {
      return "a block is missing";
    }
  }
  if (scratch.size != 4) {
    return "block scratch_size: expected 4 bytes";
  }
  payload->scratch_bytes = word(scratch.data);
  if (payload->commands.size < 4 || payload->commands.size % 4 != 0 ||
      (std::memcmp(payload->commands.data, "COP1", 4) != 0 && std::memcmp(payload->commands.data, "COP2", 4) != 0)) {
    return "block cmd_data: expected a driver payload that starts with COP1 or COP2";
  }
  if (const char* wrong = check_tensors(payload->inputs, payload->scratch_bytes)) {
    return wrong;
  }
  return check_tensors(payload->outputs, payload->scratch_bytes);
}

} // namespace ethorch
