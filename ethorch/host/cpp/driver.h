// The one seam between ExecuTorch and an NPU: run a payload, inputs in, outputs out. A platform implements these six.
#pragma once

#include <cstddef>
#include <cstdint>

#include "payload.h"

namespace ethorch {

// Prepares to run a payload and returns the state for it; nullptr on failure, after driver_report(). `blob` holds the
// payload and outlives the state.
void* driver_open(const Payload& payload, const uint8_t* blob, size_t size);

// One inference: inputs[i] and outputs[i] point to as many bytes as the payload's tensors have. False on failure.
bool driver_run(void* state, const void* const* inputs, void* const* outputs);

void driver_close(void* state);

// Bytes of ExecuTorch's temporary allocator that a run is to take for the payload's scratch region, as Arm's delegate for
// firmware does; 0 where the platform has the region elsewhere.
size_t driver_scratch_bytes(const Payload& payload);

// The operators of the state's last run, in order, for ExecuTorch's event tracer: calls sink(context, name, start, end)
// for each, times in nanoseconds. None where the platform does not measure them.
using EventSink = void (*)(void* context, const char* name, uint64_t start, uint64_t end);
void driver_events(void* state, EventSink sink, void* context);

// Tells the user what went wrong, before an error code is returned to ExecuTorch.
void driver_report(const char* message);

} // namespace ethorch
