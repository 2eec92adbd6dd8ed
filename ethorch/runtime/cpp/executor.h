// Data loader and memory for a program that runs in this process.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include <executorch/runtime/core/data_loader.h>
#include <executorch/runtime/core/evalue.h>

namespace ethorch {

using executorch::runtime::DataLoader;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::Result;

constexpr size_t kAlignment = 64; // alignment of every buffer, which is sufficient for all contents

struct Free {
  void operator()(void* memory) const {
    std::free(memory);
  }
};
using Buffer = std::unique_ptr<uint8_t, Free>;

// Allocates a buffer of at least one byte with arbitrary contents. Unused pages do not occupy memory.
inline Buffer buffer(size_t size) {
  return Buffer(static_cast<uint8_t*>(std::aligned_alloc(kAlignment, (size / kAlignment + 1) * kAlignment)));
}

// A data loader that returns pointers into a program in memory. The wheel of ExecuTorch 1.4 does not include such a header.
class InMemory final : public DataLoader {
 public:
  InMemory(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo&) const override {
    if (offset > size_ || size > size_ - offset) {
      return Error::InvalidArgument;
    }
    return FreeableBuffer(data_ + offset, size, static_cast<FreeableBuffer::FreeFn>(nullptr));
  }

  Error load_into(size_t offset, size_t size, const SegmentInfo&, void* target) const override {
    if (offset > size_ || size > size_ - offset) {
      return Error::InvalidArgument;
    }
    std::memcpy(target, data_ + offset, size);
    return Error::Ok;
  }

  Result<size_t> size() const override {
    return size_;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// Allocates zeroed memory for a tensor without memory, such as an unplanned input.
inline void give_memory(EValue& value, std::vector<Buffer>& buffers) {
  if (!value.isTensor()) {
    return;
  }
  auto* tensor = value.toTensor().unsafeGetTensorImpl();
  if (tensor->data() == nullptr) {
    buffers.push_back(buffer(tensor->nbytes()));
    std::memset(buffers.back().get(), 0, tensor->nbytes());
    tensor->set_data(buffers.back().get());
  }
}

} // namespace ethorch
