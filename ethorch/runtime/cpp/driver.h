// The one seam between ExecuTorch and an NPU: run a payload, inputs in, outputs out. A platform implements these eight:
// driver_host.cpp for the desk, deploy/firmware/cpp/driver_ethosu.cpp for a Cortex-M.
#pragma once

#include <cstddef>
#include <cstdint>

#include "payload.h"

namespace ethorch {

// Prepares to run a payload and returns the state for it; nullptr on failure, after driver_report(). `blob` holds the
// payload and outlives the state.
void* driver_open(const Payload& payload, const uint8_t* blob, size_t size);

// One inference: inputs[i] and outputs[i] point to as many bytes as the payload's tensors have, `scratch` to as many as
// driver_scratch_bytes() said, or nowhere. False on failure.
bool driver_run(
    void* state, const Payload& payload, void* scratch, const void* const* inputs, void* const* outputs);

void driver_close(void* state);

// Bytes of ExecuTorch's temporary allocator that a run is to take for the payload's scratch region, as Arm's delegate for
// firmware does; 0 where the platform has the region elsewhere.
size_t driver_scratch_bytes(const Payload& payload);

// Memory for as long as a delegate lives, aligned for pointers: the platform's own, or what allocate(context, size) gives,
// ExecuTorch's allocator of the method; nullptr where there is none. driver_release() takes it back.
void* driver_memory(size_t size, void* (*allocate)(void* context, size_t size), void* context);
void driver_release(void* memory);

// The operators of the state's last run, in order, for ExecuTorch's event tracer: calls sink(context, name, start, end)
// for each, times in nanoseconds. None where the platform does not measure them.
using EventSink = void (*)(void* context, const char* name, uint64_t start, uint64_t end);
void driver_events(void* state, EventSink sink, void* context);

// Tells the user what went wrong, before an error code is returned to ExecuTorch.
void driver_report(const char* message);

} // namespace ethorch
