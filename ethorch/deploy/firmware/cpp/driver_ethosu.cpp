// EthosUBackend on a Cortex-M: implements runtime/cpp/driver.h with c/ethosu.c. ExecuTorch's temporary allocator provides
// the scratch region, and its method allocator provides a few words for each delegate. The code uses no heap and no exceptions, and
// has one static constructor.

#include <cstring>

#include <executorch/runtime/backend/interface.h>

#include "driver.h"
#include "ethosu.h"

extern "C" {

// Returns the NPU after ethosu_init(). The firmware must define this function. Delegates do not run concurrently.
ethosu* ethorch_npu(void);

// Returns the staging memory (region 2) that programs for Dedicated_Sram require. The NPU must be able to access it. The default
// returns no memory.
__attribute__((weak)) void* ethorch_fast_memory(uint32_t* bytes) {
  *bytes = 0;
  return nullptr;
}

// Returns the memory attributes of the regions (REGIONCFG, two bits for each region) and of the commands (QCONFIG). The defaults are
// those of Arm's driver: constants in external memory, feature maps in SRAM (U65: in external memory), and staging memory in SRAM.
// Programs for Sram_Only require 0x5551 and 0.
__attribute__((weak)) void ethorch_attributes(const ethosu* npu, uint32_t* regions, uint32_t* queue) {
  const bool is_u65 = (npu->config >> 28) == 1;
  *regions = is_u65 ? 0x555Bu : 0x5553u;
  *queue = 2;
}

// Prints a message. The default does nothing.
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

// Runs before main(), like the registration of ExecuTorch's own backends.
[[maybe_unused]] const auto registered =
    executorch::runtime::register_backend({"EthosUBackend", ethosu_backend()});

} // namespace
} // namespace ethorch
