// The implementation of driver.h for the host. Every call is forwarded to Python, which simulates the NPU. ethorch.runtime loads
// this library.
//
// ExecuTorch's shared objects contain several copies of its core. Therefore, the addresses of functions in the core are passed to
// this library instead of linking the library to the core. The library defines hidden copies of all other required functions.

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/platform/platform.h>

#include "driver.h"

namespace executorch {
namespace runtime {

BackendInterface::~BackendInterface() = default;

void runtime_abort() {
  std::abort();
}

} // namespace runtime
} // namespace executorch

namespace ethorch {

executorch::runtime::BackendInterface* ethosu_backend();

namespace {

// The Python callbacks. A state is a nonzero integer from Python, converted to a pointer. All callbacks are null before
// ethorch.runtime sets them, and shortly before the interpreter ends.
struct Callbacks {
  size_t (*open)(const void* blob, size_t size);
  int (*run)(size_t state, const void* const* inputs, void* const* outputs); // returns 1 on success
  void (*close)(size_t state);
  void (*report)(const char* message);
  void (*events)(size_t state, EventSink sink, void* context);
};
Callbacks python = {};

thread_local bool scratch_allocated = false; // like firmware: set while ethorch.runtime measures memory
thread_local bool guarded = false; // true between ethorch_guard(1) and ethorch_guard(0), i.e. during a call by ethorch.runtime
pal_emit_log_message_method log_before = nullptr;

// ExecuTorch aborts the process if a kernel gets an unexpected value. During a call by ethorch.runtime, this function throws an
// exception instead, which ExecuTorch's Python bindings convert to a RuntimeError. Other calls still abort.
void abort_or_throw() {
  if (guarded) {
    throw std::runtime_error("ExecuTorch stopped at a failed check");
  }
  std::abort();
}

void emit_log(
    et_timestamp_t timestamp,
    et_pal_log_level_t level,
    const char* filename,
    const char* function,
    size_t line,
    const char* message,
    size_t length) {
  if (guarded) {
    if (level == kError || level == kFatal) {
      driver_report(std::string(message, length).c_str());
    }
  } else if (log_before != nullptr) {
    log_before(timestamp, level, filename, function, line, message, length);
  }
}

} // namespace

void* driver_open(const Payload&, const uint8_t* blob, size_t size) {
  return python.open != nullptr ? reinterpret_cast<void*>(python.open(blob, size)) : nullptr;
}

bool driver_run(void* state, const Payload&, void*, const void* const* inputs, void* const* outputs) {
  return python.run != nullptr && python.run(reinterpret_cast<size_t>(state), inputs, outputs) == 1;
}

void driver_close(void* state) {
  if (python.close != nullptr) {
    python.close(reinterpret_cast<size_t>(state));
  }
}

size_t driver_scratch_bytes(const Payload& payload) {
  return scratch_allocated ? payload.scratch_bytes : 0;
}

void* driver_memory(size_t size, void* (*)(void*, size_t), void*) {
  return std::malloc(size);
}

void driver_release(void* memory) {
  std::free(memory);
}

void driver_events(void* state, EventSink sink, void* context) {
  if (python.events != nullptr) {
    python.events(reinterpret_cast<size_t>(state), sink, context);
  }
}

void driver_report(const char* message) {
  if (python.report != nullptr) {
    python.report(message);
  }
}

} // namespace ethorch

extern "C" {

__attribute__((visibility("default"))) void ethorch_set_callbacks(
    size_t (*open)(const void*, size_t),
    int (*run)(size_t, const void* const*, void* const*),
    void (*close)(size_t),
    void (*report)(const char*),
    void (*events)(size_t, ethorch::EventSink, void*)) {
  ethorch::python = {open, run, close, report, events};
}

// Registers the backend with one copy of ExecuTorch's core, and returns ExecuTorch's error code.
__attribute__((visibility("default"))) uint32_t ethorch_register(void* register_backend) {
  const executorch::runtime::Backend backend{"EthosUBackend", ethorch::ethosu_backend()};
  using Register = executorch::runtime::Error (*)(const executorch::runtime::Backend&);
  return static_cast<uint32_t>(reinterpret_cast<Register>(register_backend)(backend));
}

// Replaces the abort and log functions in one copy of ExecuTorch's platform layer.
//
// Writes to the function table directly, because register_pal() prints a warning on stderr if it was called before. The Python
// bindings of 1.5 register their own log function when they are imported, so each call by ethorch.runtime checks the table again.
__attribute__((visibility("default"))) void ethorch_set_platform(void* get_pal_impl) {
  using Get = const executorch::runtime::PalImpl* (*)();
  auto* platform = const_cast<executorch::runtime::PalImpl*>(reinterpret_cast<Get>(get_pal_impl)());
  platform->abort = ethorch::abort_or_throw;
  if (platform->emit_log_message != ethorch::emit_log) {
    ethorch::log_before = platform->emit_log_message;
    platform->emit_log_message = ethorch::emit_log;
  }
}

__attribute__((visibility("default"))) void ethorch_guard(int on) {
  ethorch::guarded = on != 0;
}

// Sets whether runs in this thread allocate the scratch region from ExecuTorch's temporary allocator. The simulator does not use
// this memory.
__attribute__((visibility("default"))) void ethorch_allocate_scratch(int on) {
  ethorch::scratch_allocated = on != 0;
}

// Parses a payload, for tests. Returns nullptr if the blob is well formed, or else an error message.
__attribute__((visibility("default"))) const char* ethorch_parse(const uint8_t* blob, size_t size) {
  ethorch::Payload payload;
  return ethorch::parse(blob, size, &payload);
}
}
