/* main.c of a test: hands the driver what is wrong, prints what it answers, and runs the model after each. */
#include <string.h>

#include "board.h"
#include "console.h"
#include "cortex_m.h"
#include "model.h"
#include "selftest.h"

extern const uint8_t model_commands_0[MODEL_COMMANDS_BYTES];
extern const uint8_t model_weights_0[MODEL_WEIGHTS_BYTES];

static ethosu npu;
static model_t model;
static uint8_t stream[MODEL_COMMANDS_BYTES] ETHOSU_ALIGNED(32) ETHOSU_SECTION(".bss.npu_arena");
static uint8_t small[MODEL_ARENA_BYTES] ETHOSU_ALIGNED(32); /* in a TCM, as all variables */

void NPU_Handler(void);
void NPU_Handler(void) { ethosu_irq(&npu); }

static uint32_t word(uint32_t at) {
  uint32_t value;
  (void)memcpy(&value, &stream[4u * at], 4u);
  return value;
}

static void put(uint32_t at, uint32_t value) { (void)memcpy(&stream[4u * at], &value, 4u); }

/* The model's own job, with its commands in memory that can be changed. */
static ethosu_job job(void) {
  ethosu_job made = {
      .commands = stream,
      .commands_bytes = MODEL_COMMANDS_BYTES,
      .region = {(void *)(uintptr_t)model_weights_0, model.arena, model.fast},
      .region_bytes = {MODEL_WEIGHTS_BYTES, MODEL_ARENA_BYTES, MODEL_FAST_BYTES},
      .region_config = REGIONS,
      .queue_config = QUEUE,
  };
  (void)memcpy(stream, model_commands_0, sizeof stream);
  return made;
}

static void say(const char *what, ethosu_status status) {
  const ethosu_model_info *info = model_info();
  ethosu_status after;

  console_text("[");
  console_text(what);
  console_text(" ");
  console_text(ethosu_text(status));
  if (model.arena == NULL) {
    console_text("]\n"); /* not initialized yet */
    return;
  }
  (void)memcpy(model_input(&model, 0u), selftest_data, info->inputs[0].bytes);
  after = model_run(&model);
  console_text(" ");
  console_text(ethosu_text(after));
  if (memcmp(model_output(&model, 0u), &selftest_data[SELFTEST_PADDED(info->inputs[0].bytes)], info->outputs[0].bytes) == 0) {
    console_text(" equal");
  }
  console_text("]\n");
}

int main(void) {
  model_memory_t memory = model_memory;
  ethosu_job made;
  ethosu other;

  console_init();
  cortex_m_init(FIRMWARE_INTERRUPT ? BOARD_NPU_INTERRUPT : CORTEX_M_POLLED);
  say("init", ethosu_init(&npu, BOARD_NPU_BASE, ETHOSU_PRIVILEGED | (FIRMWARE_INTERRUPT ? ETHOSU_INTERRUPT : 0u)));
  npu.patience = 20u;

  memory.arena_bytes = MODEL_ARENA_BYTES - 1u;
  say("small-arena", model_init(&model, &npu, &memory));
  memory = model_memory;
  memory.arena = (uint8_t *)memory.arena + 4;
  say("misaligned-arena", model_init(&model, &npu, &memory));
  say("good", model_init(&model, &npu, &model_memory));
  if (ONLY_GOOD) {
    return 0;
  }

  made = job();
  put(2u, word(2u) ^ 1u); /* CONFIG: another number of MACs */
  say("other-macs", ethosu_run(&npu, &made));
  made = job();
  put(2u, word(2u) ^ 0x10000000u); /* another product */
  say("other-product", ethosu_run(&npu, &made));
  made = job();
  put(3u, word(3u) + 0x00F00000u); /* ID: a newer architecture */
  say("newer-architecture", ethosu_run(&npu, &made));
  made = job();
  put(0u, 0u);
  say("no-header", ethosu_run(&npu, &made));
  made = job();
  put(7u, word(7u) + 0x00040000u); /* more words than there are */
  say("longer-than-it-is", ethosu_run(&npu, &made));
  made = job();
  made.commands_bytes -= 64u;
  say("cut-off", ethosu_run(&npu, &made));
  made = job();
  put(7u, word(7u) - 0x00040000u); /* the header says fewer words: the stop is missing */
  say("without-stop", ethosu_run(&npu, &made));
  made = job();
  put(8u, 0x000003FFu); /* no such command */
  say("no-command", ethosu_run(&npu, &made));
  made = job();
  made.region[0] = (void *)(uintptr_t)(model_weights_0 + 4);
  say("misaligned-weights", ethosu_run(&npu, &made));
  made = job();
  made.region[0] = NULL;
  say("no-weights", ethosu_run(&npu, &made));
  made = job();
  made.commands = stream + 4;
  say("misaligned-stream", ethosu_run(&npu, &made));
  made = job();
  made.region[1] = small;
  say("arena-in-tcm", ethosu_run(&npu, &made));
  made = job();
  made.region[1] = (void *)0x08000000u;
  say("arena-nowhere", ethosu_run(&npu, &made));
  say("finish-without-start", ethosu_finish(&npu));
  made = job();
  {
    const ethosu_status started = ethosu_start(&npu, &made);
    const ethosu_status again = ethosu_start(&npu, &made);
    const ethosu_status ended = ethosu_finish(&npu);
    say("started-twice", ((started == ETHOSU_OK) && (ended == ETHOSU_OK)) ? again : ETHOSU_OK);
  }
  say("no-npu-there", ethosu_init(&other, (uintptr_t)small, ETHOSU_PRIVILEGED));
  return 0;
}
