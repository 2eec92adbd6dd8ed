// ExecuTorch's delegate on a Cortex-M: runtime/cpp/driver.h over c/ethosu.c. The scratch region is of ExecuTorch's temporary
// allocator, a delegate's own few words of its method allocator: no heap, no exceptions, one static constructor.

#include <cstring>

#include <executorch/runtime/backend/interface.h>

#include "driver.h"
#include "ethosu.h"

extern "C" {

// What a firmware defines: its NPU, after ethosu_init(). Runs of the delegates are one after the other.
ethosu* ethorch_npu(void);

// The staging memory (region 2) of programs for Dedicated_Sram, where the NPU reaches it; by default there is none.
__attribute__((weak)) void* ethorch_fast_memory(uint32_t* bytes) {
  *bytes = 0;
  return nullptr;
}

// Through which port each region is read and written (REGIONCFG) and the commands are read (QCONFIG): two bits each. By default as
// Arm's driver has it: constants outside, feature maps in SRAM, of U65 outside, staging memory in SRAM. A program for Sram_Only wants
// 0x5551 and 0.
__attribute__((weak)) void ethorch_attributes(const ethosu* npu, uint32_t* regions, uint32_t* queue) {
  const bool is_u65 = (npu->config >> 28) == 1;
  *regions = is_u65 ? 0x555Bu : 0x5553u;
  *queue = 2;
}

// Where messages go; by default nowhere.
__attribute__((weak)) void ethorch_report(const char*) {}
}

namespace ethorch {

executorch::runtime::BackendInterface* ethosu_backend();

void* driver_open(const Payload&, const uint8_t*, size_t) {
  return ethorch_npu();
}

bool driver_run(
    void* state, const Payload& payload, void* scratch, const void* const* inputs, void* const* outputs) {
  auto* npu = static_cast<ethosu*>(state);
  auto* bytes = static_cast<uint8_t*>(scratch);
  ethosu_job job = {};
  job.commands = payload.commands.data;
  job.commands_bytes = static_cast<uint32_t>(payload.commands.size);
  job.region[0] = const_cast<uint8_t*>(payload.weights.data);
  job.region_bytes[0] = static_cast<uint32_t>(payload.weights.size);
  job.region[1] = scratch;
  job.region_bytes[1] = payload.scratch_bytes;
  job.region[2] = ethorch_fast_memory(&job.region_bytes[2]);
  ethorch_attributes(npu, &job.region_config, &job.queue_config);
  for (uint32_t i = 0; i < payload.input_count(); ++i) {
    const IoTensor tensor = payload.input(i);
    std::memcpy(bytes + tensor.offset, inputs[i], static_cast<size_t>(tensor.nbytes));
  }
  const ethosu_status status = ethosu_run(npu, &job);
  if (status != ETHOSU_OK) {
    driver_report(ethosu_text(status));
    return false;
  }
  for (uint32_t i = 0; i < payload.output_count(); ++i) {
    const IoTensor tensor = payload.output(i);
    std::memcpy(outputs[i], bytes + tensor.offset, static_cast<size_t>(tensor.nbytes));
  }
  return true;
}

void driver_close(void*) {}

size_t driver_scratch_bytes(const Payload& payload) {
  return payload.scratch_bytes;
}

void* driver_memory(size_t size, void* (*allocate)(void* context, size_t size), void* context) {
  return allocate(context, size);
}

void driver_release(void*) {}

void driver_events(void*, EventSink, void*) {}

void driver_report(const char* message) {
  ethorch_report(message);
}

namespace {

// Before main(), as ExecuTorch's own backends are.
[[maybe_unused]] const auto registered =
    executorch::runtime::register_backend({"EthosUBackend", ethosu_backend()});

} // namespace
} // namespace ethorch
