// The interface between EthosUBackend and an NPU, which runs a payload. Each platform implements these functions:
// driver_host.cpp for the host, deploy/firmware/cpp/driver_ethosu.cpp for a Cortex-M.
#pragma once

#include <cstddef>
#include <cstdint>

#include "payload.h"

namespace ethorch {

// Prepares to run a payload and returns a state. On failure, reports the error and returns nullptr. `blob` contains the payload and
// must outlive the state.
void* driver_open(const Payload& payload, const uint8_t* blob, size_t size);

// Runs one inference and returns true on success. inputs[i] and outputs[i] point to buffers with the sizes of the payload's
// tensors. `scratch` points to driver_scratch_bytes() bytes, or is nullptr if that is 0.
bool driver_run(
    void* state, const Payload& payload, void* scratch, const void* const* inputs, void* const* outputs);

void driver_close(void* state);

// Returns the bytes that a run must allocate from ExecuTorch's temporary allocator for the payload's scratch region, as in Arm's
// firmware delegate, or 0 if the platform allocates the region.
size_t driver_scratch_bytes(const Payload& payload);

// Returns pointer-aligned memory for the lifetime of a delegate, or nullptr on failure. The platform allocates the memory, or calls
// allocate(context, size), which uses ExecuTorch's method allocator. driver_release() releases the memory.
void* driver_memory(size_t size, void* (*allocate)(void* context, size_t size), void* context);
void driver_release(void* memory);

// Calls sink(context, name, start, end) for each operator in the state's last run, in order, for ExecuTorch's event tracer. Times
// are in nanoseconds. Platforms that do not measure operators do not call it.
using EventSink = void (*)(void* context, const char* name, uint64_t start, uint64_t end);
void driver_events(void* state, EventSink sink, void* context);

// Reports an error message to the user, before an error code is returned to ExecuTorch.
void driver_report(const char* message);

} // namespace ethorch
