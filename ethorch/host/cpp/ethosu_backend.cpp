// ExecuTorch's side: the delegate called "EthosUBackend".

#include <cstdio>
#include <new>
#include <vector>

#include <executorch/runtime/backend/interface.h>

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
using executorch::runtime::Result;
using executorch::runtime::Span;

constexpr size_t kScratchAlignment = 16; // of addresses that the NPU is given

struct Delegate {
  Payload payload; // points into ExecuTorch's buffer, which is kept until destroy()
  void* state = nullptr;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
};

// Bytes of an element that an NPU can take; 0 for types it cannot, such as floats.
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

// The address of an argument's bytes, or nullptr after a report: argument and payload have to agree to the byte,
// because bytes are copied as they lie, whatever the tensor's dimension order.
void* bytes_of(const EValue* value, const IoTensor& expected, const char* kind, uint32_t index) {
  char text[200];
  if (value == nullptr || !value->isTensor()) {
    std::snprintf(text, sizeof text, "delegate %s %u is not a tensor", kind, index);
    driver_report(text);
    return nullptr;
  }
  const auto& tensor = value->payload.as_tensor;
  const int32_t size = integer_size(tensor.scalar_type());
  const uint64_t nbytes = uint64_t(tensor.numel()) * uint32_t(size);
  if (size != expected.element_size || nbytes != expected.nbytes) {
    std::snprintf(
        text,
        sizeof text,
        "delegate %s %u: the program passes %lld elements of ScalarType %d, the payload expects %llu bytes in integers "
        "of %d bytes",
        kind,
        index,
        static_cast<long long>(tensor.numel()),
        static_cast<int>(tensor.scalar_type()),
        static_cast<unsigned long long>(expected.nbytes),
        static_cast<int>(expected.element_size));
    driver_report(text);
    return nullptr;
  }
  void* data = tensor.mutable_data_ptr();
  if (data == nullptr) {
    std::snprintf(text, sizeof text, "delegate %s %u has no memory", kind, index);
    driver_report(text);
  }
  return data;
}

// Gives the operators of a run to ExecuTorch's event tracer. A runtime built without ET_EVENT_TRACER_ENABLED, as the
// wheel's of 1.4 is, has a tracer that is handed to delegates but in which nobody has begun a block, so one is begun here.
// One built with it, as the wheel's of 1.5 is, has begun a block for the run and counts the instructions of the chain.
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

class EthosUBackend final : public executorch::runtime::BackendInterface {
 public:
  bool is_available() const override {
    return true;
  }

  Result<DelegateHandle*> init(BackendInitContext&, FreeableBuffer* processed, ArrayRef<CompileSpec>) const override {
    const auto* blob = static_cast<const uint8_t*>(processed->data());
    Payload payload;
    if (const char* wrong = parse(blob, processed->size(), &payload)) {
      char text[200];
      std::snprintf(text, sizeof text, "delegate payload: %s", wrong);
      driver_report(text);
      return Error::DelegateInvalidCompatibility;
    }
    void* state = driver_open(payload, blob, processed->size());
    if (state == nullptr) {
      return Error::DelegateInvalidCompatibility;
    }
    auto* delegate = new (std::nothrow) Delegate;
    if (delegate == nullptr) {
      driver_close(state);
      return Error::MemoryAllocationFailed;
    }
    delegate->payload = payload;
    delegate->state = state;
    delegate->inputs.resize(payload.input_count());
    delegate->outputs.resize(payload.output_count());
    return static_cast<DelegateHandle*>(delegate);
  }

  Error execute(BackendExecutionContext& context, DelegateHandle* handle, Span<EValue*> args) const override {
    auto* delegate = static_cast<Delegate*>(handle);
    if (delegate == nullptr) {
      return Error::DelegateInvalidHandle;
    }
    const size_t inputs = delegate->inputs.size();
    if (args.size() != inputs + delegate->outputs.size()) {
      driver_report("delegate: the program passes another number of arguments than the payload has inputs and outputs");
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
        delegate->inputs[index] = data;
      } else {
        delegate->outputs[index] = data;
      }
    }
    const size_t scratch_bytes = driver_scratch_bytes(delegate->payload);
    if (scratch_bytes != 0 && context.allocate(scratch_bytes, kScratchAlignment) == nullptr) {
      driver_report("delegate: the temporary allocator has no room for the scratch region");
      return Error::MemoryAllocationFailed;
    }
    const bool ran = driver_run(delegate->state, delegate->inputs.data(), delegate->outputs.data());
    if (ran && context.event_tracer() != nullptr) {
      trace(delegate->state, context.event_tracer());
    }
    return ran ? Error::Ok : Error::Internal;
  }

  void destroy(DelegateHandle* handle) const override {
    auto* delegate = static_cast<Delegate*>(handle);
    if (delegate != nullptr) {
      driver_close(delegate->state);
      delete delegate;
    }
  }
};

} // namespace

// The instance lives as long as the process: ExecuTorch keeps a pointer to it.
executorch::runtime::BackendInterface* ethosu_backend() {
  static EthosUBackend backend;
  return &backend;
}

} // namespace ethorch
