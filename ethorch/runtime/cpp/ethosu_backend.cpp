// The ExecuTorch delegate "EthosUBackend".

#include <new>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/named_data_map.h>

#include "driver.h"
#include "payload.h"

namespace ethorch {
namespace {

using executorch::aten::ScalarType;
using executorch::runtime::ArrayRef;
using executorch::runtime::BackendExecutionContext;
using executorch::runtime::BackendInitContext;
using executorch::runtime::CompileSpec;
using executorch::runtime::DelegateHandle;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::EventTracer;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::MemoryAllocator;
using executorch::runtime::Result;
using executorch::runtime::Span;

constexpr size_t kScratchAlignment = 16; // alignment of addresses that the NPU accesses

// A delegate. The arrays follow in the same allocation, because firmware has no heap and does not release memory.
struct Delegate {
  Payload payload; // points into ExecuTorch's buffer, which is valid until destroy()
  void* state;
  uint32_t input_count;
  uint32_t output_count;

  const void** inputs() {
    return reinterpret_cast<const void**>(this + 1);
  }
  void** outputs() {
    return reinterpret_cast<void**>(this + 1) + input_count;
  }
};

static_assert(sizeof(void*) != 4 || sizeof(Delegate) == 48, "ethorch/figures/pools.py must use the same size");

// A message that is formatted without a C library. Text that exceeds the buffer is truncated.
class Message {
 public:
  Message& operator<<(const char* text) {
    for (; *text != '\0' && used_ + 1 < sizeof text_; ++text) {
      text_[used_++] = *text;
    }
    return *this;
  }

  Message& operator<<(uint64_t number) {
    char digits[21];
    size_t at = sizeof digits - 1;
    digits[at] = '\0';
    do {
      digits[--at] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number != 0);
    return *this << digits + at;
  }

  void report() {
    text_[used_] = '\0';
    driver_report(text_);
  }

 private:
  char text_[200];
  size_t used_ = 0;
};

// Returns the element size of a type that the NPU supports, or 0 for other types, such as floats.
int32_t integer_size(ScalarType type) {
  switch (type) {
    case ScalarType::Char:
    case ScalarType::Byte:
    case ScalarType::Bool:
      return 1;
    case ScalarType::Short:
    case ScalarType::UInt16:
      return 2;
    case ScalarType::Int:
    case ScalarType::UInt32:
      return 4;
    case ScalarType::Long:
    case ScalarType::UInt64:
      return 8;
    default:
      return 0;
  }
}

// Returns the address of an argument's bytes, or reports an error and returns nullptr. The argument and the payload must have the
// same number of bytes, because the bytes are copied without regard to the tensor's dimension order.
void* bytes_of(const EValue* value, const IoTensor& expected, const char* kind, uint32_t index) {
  if (value == nullptr || !value->isTensor()) {
    (Message() << "delegate " << kind << " " << index << " is not a tensor").report();
    return nullptr;
  }
  const auto& tensor = value->payload.as_tensor;
  const int32_t size = integer_size(tensor.scalar_type());
  const uint64_t nbytes = uint64_t(tensor.numel()) * uint32_t(size);
  if (size != expected.element_size || nbytes != expected.nbytes) {
    (Message() << "delegate " << kind << " " << index << ": the program passes " << uint64_t(tensor.numel())
               << " elements of ScalarType " << uint64_t(tensor.scalar_type()) << ", but the payload expects " << expected.nbytes
               << " bytes in integers of " << uint64_t(expected.element_size) << " bytes")
        .report();
    return nullptr;
  }
  void* data = tensor.mutable_data_ptr();
  if (data == nullptr) {
    (Message() << "delegate " << kind << " " << index << " has no memory").report();
  }
  return data;
}

// Passes the operators of a run to ExecuTorch's event tracer. A runtime built without ET_EVENT_TRACER_ENABLED, such as the wheel of
// 1.4, passes a tracer to delegates but does not begin an event block, so this function begins one. A runtime built with
// ET_EVENT_TRACER_ENABLED, such as the wheel of 1.5, begins a block for the run and counts the instructions of the chain.
void trace(void* state, EventTracer* tracer) {
  if (tracer->current_chain_id() == executorch::runtime::kUnsetChainId) {
    tracer->create_event_block("Execute");
  }
  driver_events(
      state,
      [](void* context, const char* name, uint64_t start, uint64_t end) {
        constexpr auto unset = static_cast<executorch::runtime::DebugHandle>(-1);
        static_cast<EventTracer*>(context)->log_profiling_delegate(name, unset, start, end);
      },
      tracer);
}

// The data is part of the program in memory, so it is valid after the buffer object is destroyed.
bool find_named(void* context, const char* key, size_t key_bytes, Block* data) {
  const auto* map = static_cast<BackendInitContext*>(context)->get_named_data_map();
  if (map == nullptr) {
    return false;
  }
  auto found = map->get_data({key, key_bytes});
  if (!found.ok()) {
    return false;
  }
  data->data = static_cast<const uint8_t*>(found->data());
  data->size = found->size();
  return true;
}

class EthosUBackend final : public executorch::runtime::BackendInterface {
 public:
  bool is_available() const override {
    return true;
  }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed, ArrayRef<CompileSpec>) const override {
    const auto* blob = static_cast<const uint8_t*>(processed->data());
    Payload payload;
    if (const char* wrong = parse(blob, processed->size(), &payload, find_named, &context)) {
      (Message() << "delegate payload: " << wrong).report();
      return Error::DelegateInvalidCompatibility;
    }
    void* state = driver_open(payload, blob, processed->size());
    if (state == nullptr) {
      return Error::DelegateInvalidCompatibility;
    }
    const uint32_t inputs = payload.input_count(), outputs = payload.output_count();
    const auto allocate = [](void* allocator, size_t size) {
      return static_cast<MemoryAllocator*>(allocator)->allocate(size, alignof(Delegate));
    };
    void* memory =
        driver_memory(sizeof(Delegate) + (inputs + outputs) * sizeof(void*), allocate, context.get_runtime_allocator());
    if (memory == nullptr) {
      driver_close(state);
      return Error::MemoryAllocationFailed;
    }
    return static_cast<DelegateHandle*>(::new (memory) Delegate{payload, state, inputs, outputs});
  }

  Error execute(BackendExecutionContext& context, DelegateHandle* handle, Span<EValue*> args) const override {
    auto* delegate = static_cast<Delegate*>(handle);
    if (delegate == nullptr) {
      return Error::DelegateInvalidHandle;
    }
    const size_t inputs = delegate->input_count;
    if (args.size() != inputs + delegate->output_count) {
      driver_report("delegate: expected as many arguments as the payload has inputs and outputs");
      return Error::InvalidProgram;
    }
    for (uint32_t i = 0; i < args.size(); ++i) {
      const bool in = i < inputs;
      const uint32_t index = in ? i : i - static_cast<uint32_t>(inputs);
      const IoTensor expected = in ? delegate->payload.input(index) : delegate->payload.output(index);
      void* data = bytes_of(args.data()[i], expected, in ? "input" : "output", index);
      if (data == nullptr) {
        return Error::InvalidProgram;
      }
      if (in) {
        delegate->inputs()[index] = data;
      } else {
        delegate->outputs()[index] = data;
      }
    }
    const size_t scratch_bytes = driver_scratch_bytes(delegate->payload);
    void* scratch = scratch_bytes != 0 ? context.allocate(scratch_bytes, kScratchAlignment) : nullptr;
    if (scratch_bytes != 0 && scratch == nullptr) {
      driver_report("delegate: the temporary allocator is too small for the scratch region");
      return Error::MemoryAllocationFailed;
    }
    const bool ran = driver_run(delegate->state, delegate->payload, scratch, delegate->inputs(), delegate->outputs());
    if (ran && context.event_tracer() != nullptr) {
      trace(delegate->state, context.event_tracer());
    }
    return ran ? Error::Ok : Error::Internal;
  }

  void destroy(DelegateHandle* handle) const override {
    auto* delegate = static_cast<Delegate*>(handle);
    if (delegate != nullptr) {
      driver_close(delegate->state);
      driver_release(delegate);
    }
  }
};

} // namespace

// The instance is never destroyed, because ExecuTorch stores a pointer to it.
executorch::runtime::BackendInterface* ethosu_backend() {
  alignas(EthosUBackend) static unsigned char storage[sizeof(EthosUBackend)];
  static EthosUBackend* backend = nullptr;
  if (backend == nullptr) {
    backend = ::new (storage) EthosUBackend;
  }
  return backend;
}

} // namespace ethorch
