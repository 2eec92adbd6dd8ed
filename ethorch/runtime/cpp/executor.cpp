// Runs a program in ExecuTorch's runtime without PyTorch, with inputs and outputs as bytes. Called by ethorch.runtime.executor.

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include "executor.h"

namespace {

using ethorch::buffer;
using ethorch::Buffer;
using ethorch::give_memory;
using ethorch::InMemory;
using executorch::aten::ScalarType;
using executorch::aten::TensorImpl;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::MemoryAllocator;
using executorch::runtime::MemoryManager;
using executorch::runtime::Method;
using executorch::runtime::Program;
using executorch::runtime::Result;
using executorch::runtime::Span;

constexpr int kException = -1; // returned in place of an ExecuTorch error code

// An input or output. Must match _Item in ethorch/runtime/executor.py.
enum Kind : int32_t { kNone, kInt, kDouble, kBool, kTensor, kString, kOther };
struct Item {
  int32_t kind;
  int32_t dtype;
  int32_t rank;
  int32_t reserved;
  int64_t integer;
  double real;
  const int32_t* sizes;
  const uint8_t* order;
  const void* data;
  uint64_t bytes;
};
static_assert(sizeof(Item) == 64, "_Item in ethorch/runtime/executor.py must have the same size");

// An allocator that grows on demand and releases all memory together.
class Growing final : public MemoryAllocator {
 public:
  Growing() : MemoryAllocator(0, nullptr) {}

  void* allocate(size_t size, size_t alignment) override {
    alignment = std::max(alignment, alignof(std::max_align_t));
    void* memory = std::aligned_alloc(alignment, (size / alignment + 1) * alignment);
    if (memory != nullptr) {
      blocks_.emplace_back(static_cast<uint8_t*>(memory));
    }
    return memory;
  }

  void reset() override {
    blocks_.clear();
  }

 private:
  std::vector<Buffer> blocks_;
};

struct Loaded {
  Growing pool, temporary;
  MemoryManager memory;
  std::vector<Buffer> unplanned;
  std::unique_ptr<Method> method;

  explicit Loaded(HierarchicalAllocator* arenas) : memory(&pool, arenas, &temporary) {}
  ~Loaded() {
    method.reset(); // destroy the method before the memory that contains it
  }
};

// A program, its loaded methods, and the memories that the methods share.
struct Executor {
  Buffer file;
  std::unique_ptr<InMemory> loader;
  std::unique_ptr<Program> program;
  std::vector<Buffer> buffers;
  std::vector<Span<uint8_t>> planned;
  std::unique_ptr<HierarchicalAllocator> arenas;
  std::map<std::string, Loaded> methods;
};

EValue value_of(const Item& item) {
  switch (item.kind) {
    case kInt:
      return EValue(item.integer);
    case kDouble:
      return EValue(item.real);
    case kBool:
      return EValue(item.integer != 0);
    default:
      return EValue();
  }
}

// Sets an input to a tensor. The runtime copies the bytes, or refers to them until the next call.
Error set_tensor(Method& method, size_t index, const Item& item) {
  std::vector<int32_t> sizes(item.sizes, item.sizes + item.rank), strides(item.rank);
  std::vector<uint8_t> order(item.order, item.order + item.rank);
  int32_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= std::max(sizes[order[i]], 1);
  }
  TensorImpl impl(
      static_cast<ScalarType>(item.dtype),
      item.rank,
      sizes.data(),
      const_cast<void*>(item.data),
      order.data(),
      strides.data());
  return method.set_input(EValue(executorch::aten::Tensor(&impl)), index);
}

Item item_of(const EValue& value) {
  Item item = {};
  if (value.isTensor()) {
    const auto tensor = value.toTensor();
    item.kind = kTensor;
    item.dtype = static_cast<int32_t>(tensor.scalar_type());
    item.rank = static_cast<int32_t>(tensor.dim());
    item.sizes = tensor.sizes().data();
    item.order = tensor.dim_order().data();
    item.data = tensor.const_data_ptr();
    item.bytes = tensor.nbytes();
  } else if (value.isInt()) {
    item.kind = kInt;
    item.integer = value.toInt();
  } else if (value.isDouble()) {
    item.kind = kDouble;
    item.real = value.toDouble();
  } else if (value.isBool()) {
    item.kind = kBool;
    item.integer = value.toBool();
  } else if (value.isString()) {
    item.kind = kString;
    item.data = value.toString().data();
    item.bytes = value.toString().size();
  } else {
    item.kind = value.isNone() ? kNone : kOther;
  }
  return item;
}

} // namespace

extern "C" {

// Loads a program, and sets `error` to 0 on success. The result must be passed to ethorch_executor_free even if loading fails.
__attribute__((visibility("default"))) void* ethorch_executor_load(
    const uint8_t* pte,
    size_t pte_bytes,
    size_t planned_count,
    const uint64_t* planned_bytes,
    int* error) {
  auto* executor = new Executor;
  *error = kException;
  try {
    executor->file = buffer(pte_bytes);
    std::memcpy(executor->file.get(), pte, pte_bytes);
    executor->loader = std::make_unique<InMemory>(executor->file.get(), pte_bytes);
    Result<Program> program = Program::load(executor->loader.get(), Program::Verification::InternalConsistency);
    if (!program.ok()) {
      *error = static_cast<int>(program.error());
      return executor;
    }
    executor->program = std::make_unique<Program>(std::move(program.get()));
    for (size_t i = 0; i < planned_count; ++i) {
      executor->buffers.push_back(buffer(planned_bytes[i]));
      std::memset(executor->buffers.back().get(), 0, planned_bytes[i]);
      executor->planned.emplace_back(executor->buffers.back().get(), planned_bytes[i]);
    }
    executor->arenas = std::make_unique<HierarchicalAllocator>(Span<Span<uint8_t>>(executor->planned.data(), executor->planned.size()));
    *error = 0;
  } catch (const std::exception&) {
  }
  return executor;
}

// Loads a method of the program, and returns ExecuTorch's error code.
__attribute__((visibility("default"))) int ethorch_executor_load_method(void* handle, const char* name) {
  auto* executor = static_cast<Executor*>(handle);
  try {
    auto [entry, _] = executor->methods.try_emplace(name, executor->arenas.get());
    Result<Method> method = executor->program->load_method(name, &entry->second.memory);
    if (!method.ok()) {
      return static_cast<int>(method.error());
    }
    entry->second.method = std::make_unique<Method>(std::move(method.get()));
    for (size_t i = 0; i < entry->second.method->outputs_size(); ++i) {
      give_memory(entry->second.method->mutable_output(i), entry->second.unplanned);
    }
    return 0;
  } catch (const std::exception&) {
    return kException;
  }
}

// Runs a method, and returns ExecuTorch's error code. `outputs` point into the runtime's memory and are valid until the next call.
__attribute__((visibility("default"))) int
ethorch_executor_run(void* handle, const char* name, const Item* inputs, size_t input_count, Item* outputs) {
  try {
    Method& method = *static_cast<Executor*>(handle)->methods.at(name).method;
    for (size_t i = 0; i < input_count; ++i) {
      const Error error =
          inputs[i].kind == kTensor ? set_tensor(method, i, inputs[i]) : method.set_input(value_of(inputs[i]), i);
      if (error != Error::Ok) {
        return static_cast<int>(error);
      }
    }
    const Error error = method.execute();
    if (error != Error::Ok) {
      return static_cast<int>(error);
    }
    for (size_t i = 0; i < method.outputs_size(); ++i) {
      outputs[i] = item_of(method.get_output(i));
    }
    return 0;
  } catch (const std::exception&) {
    return kException;
  }
}

__attribute__((visibility("default"))) void ethorch_executor_free(void* handle) {
  delete static_cast<Executor*>(handle);
}

// Return the names of all operators that have a kernel, or of all backends, with one name on each line.
__attribute__((visibility("default"))) const char* ethorch_executor_operators() {
  static std::string names;
  names.clear();
  for (const auto& kernel : executorch::runtime::get_registered_kernels()) {
    names += kernel.name_;
    names += '\n';
  }
  return names.c_str();
}

__attribute__((visibility("default"))) const char* ethorch_executor_backends() {
  static std::string names;
  names.clear();
  for (size_t i = 0; i < executorch::runtime::get_num_registered_backends(); ++i) {
    const auto name = executorch::runtime::get_backend_name(i);
    if (name.ok()) {
      names += name.get();
      names += '\n';
    }
  }
  return names.c_str();
}
}
