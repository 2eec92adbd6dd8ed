// Measures the memory that a method allocates, with ExecuTorch allocators that record their peak use.

#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>

#include "executor.h"

namespace {

using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::MemoryAllocator;
using executorch::runtime::MemoryManager;
using executorch::runtime::Method;
using executorch::runtime::Program;
using executorch::runtime::Result;
using executorch::runtime::Span;
using ethorch::buffer;
using ethorch::Buffer;
using ethorch::give_memory;
using ethorch::InMemory;

// An ExecuTorch allocator that records its peak use.
class Measured final : public MemoryAllocator {
 public:
  Measured(uint32_t size, uint8_t* base) : MemoryAllocator(size, base), base_(base) {}

  void* allocate(size_t size, size_t alignment) override {
    auto* start = static_cast<uint8_t*>(MemoryAllocator::allocate(size, alignment));
    if (start != nullptr) {
      const size_t end = static_cast<size_t>(start - base_) + size;
      highest_ = end > highest_ ? end : highest_;
    }
    return start;
  }

  uint64_t highest() const {
    return highest_;
  }

 private:
  uint8_t* base_;
  size_t highest_ = 0;
};

} // namespace

extern "C" {

// Loads a method of a program and runs it with zeros. Returns ExecuTorch's error code, or -1 after an exception.
//
// `used` is set to the bytes of the method allocator after loading, and the peak bytes of the temporary allocator while loading and
// while running. `stage` is set to the stage that was reached: 0 program, 1 method, 2 inputs, 3 run, 4 finished.
__attribute__((visibility("default"))) int ethorch_measure(
    const uint8_t* pte,
    size_t pte_bytes,
    const char* name,
    size_t planned_count,
    const uint64_t* planned_bytes,
    uint32_t method_bytes,
    uint32_t temporary_bytes,
    uint64_t* used,
    int* stage) {
  *stage = 0;
  try {
    Buffer file = buffer(pte_bytes);
    std::memcpy(file.get(), pte, pte_bytes);
    InMemory loader(file.get(), pte_bytes);
    Result<Program> program = Program::load(&loader, Program::Verification::InternalConsistency);
    if (!program.ok()) {
      return static_cast<int>(program.error());
    }
    *stage = 1;
    std::vector<Buffer> buffers;
    std::vector<Span<uint8_t>> planned;
    for (size_t i = 0; i < planned_count; ++i) {
      buffers.push_back(buffer(planned_bytes[i]));
      std::memset(buffers.back().get(), 0, planned_bytes[i]);
      planned.emplace_back(buffers.back().get(), planned_bytes[i]);
    }
    HierarchicalAllocator arenas({planned.data(), planned.size()});
    Buffer pool = buffer(method_bytes), temporary = buffer(temporary_bytes);
    Measured methods(method_bytes, pool.get()), temporaries(temporary_bytes, temporary.get());
    MemoryManager memory(&methods, &arenas, &temporaries);
    Result<Method> method = program->load_method(name, &memory);
    used[0] = methods.highest();
    used[1] = temporaries.highest();
    if (!method.ok()) {
      return static_cast<int>(method.error());
    }
    *stage = 2;
    for (size_t i = 0; i < method->inputs_size(); ++i) {
      EValue& input = method->mutable_input(i);
      give_memory(input, buffers);
      const Error error = method->set_input(input, i);
      if (error != Error::Ok) {
        return static_cast<int>(error);
      }
    }
    for (size_t i = 0; i < method->outputs_size(); ++i) {
      give_memory(method->mutable_output(i), buffers);
    }
    *stage = 3;
    const Error error = method->execute();
    used[0] = methods.highest();
    used[2] = temporaries.highest();
    if (error != Error::Ok) {
      return static_cast<int>(error);
    }
    *stage = 4;
    return 0;
  } catch (const std::exception&) {
    return -1;
  }
}
}
