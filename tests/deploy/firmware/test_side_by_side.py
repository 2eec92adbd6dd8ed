"""Two NPUs on one board, a U55 and a U85, each with a model of its own: they work at the same time."""

from __future__ import annotations

from pathlib import Path

import torch

from ethorch.deploy import virtual_board
from ethorch.deploy.firmware import project_run
from ethorch.deploy.firmware.firmware import firmware
from ethorch.targets.boards.loading import FOLDER
from tests.helpers.firmware import program

MAIN = """
#include <string.h>
#include "board.h"
#include "console.h"
#include "cortex_m.h"
#include "slow.h"
#include "fast.h"

static ethosu u55;
static ethosu u85;
static slow_t a;
static fast_t b;

static void bytes(const void *data, uint32_t count) {
  for (uint32_t i = 0u; i < count; i++) {
    console_number(((const uint8_t *)data)[i]);
    console_text(" ");
  }
  console_text("\\n");
}

int main(void) {
  static const uint8_t input[sizeof(slow_input_0_t)] = {%s};
  console_init();
  if ((ethosu_init(&u55, 0x%xu, ETHOSU_PRIVILEGED) != ETHOSU_OK) || (ethosu_init(&u85, 0x%xu, ETHOSU_PRIVILEGED) != ETHOSU_OK) ||
      (slow_init(&a, &u55, &slow_memory) != ETHOSU_OK) || (fast_init(&b, &u85, &fast_memory) != ETHOSU_OK)) {
    return 1;
  }
  (void)memcpy(slow_input_0(&a), input, sizeof input);
  (void)memcpy(fast_input_0(&b), input, sizeof input);
  if ((fast_run(&b) != ETHOSU_OK) || (slow_run(&a) != ETHOSU_OK)) {
    return 1;
  }
  bytes(slow_output_0(&a), sizeof(slow_output_0_t));
  bytes(fast_output_0(&b), sizeof(fast_output_0_t));
  console_text((slow_init(&a, &u85, &slow_memory) == ETHOSU_OK) ? ethosu_text(slow_run(&a)) : "");
  return 0;
}
"""


def test_two_npus_and_two_models(tmp_path: Path) -> None:
    text = (FOLDER / "corstone-300.toml").read_text().replace('name = "corstone-300"', 'name = "two-npus"')
    place = tmp_path / "two-npus.toml"
    place.write_text(
        text + "\n[[npu]]\nfamily = 'u85'\nmacs = [256]\nbase = 0x48200000\naliases = [0x58200000]\ninterrupt = 57\n"
        "clock_hz = 500_000_000\nsource = 'assumed'\n"
    )
    folder = tmp_path / "project"
    slow, fast = program("small", "ethos-u55-128"), program("small", "ethos-u85-256")
    firmware(slow, folder, name="slow", board=place)
    firmware(fast, tmp_path / "more", name="fast", board=place)
    assert (folder / "board.toml").read_bytes() == place.read_bytes()
    for path in (tmp_path / "more" / "model").glob("fast*"):
        path.rename(folder / "model" / path.name)
    x = torch.randn(1, 1, 8, 8)
    main = MAIN % (", ".join(map(str, x.numpy().tobytes())), 0x58102000, 0x58200000)
    (folder / "firmware" / "main.c").write_text(main)
    more = [f"model/{path.name}" for path in (folder / "model").glob("fast*") if path.suffix in (".c", ".S")]
    elf = project_run.build(folder, sources=[*project_run.read_description(folder)["sources"], *sorted(more)])
    done = virtual_board.run(elf, board=place, npu=["ethos-u55-128", "ethos-u85-256"]).check()
    lines = done.text.splitlines()
    for line, one in zip(lines, (slow, fast), strict=False):
        assert bytes(map(int, line.split())) == one(x).numpy().tobytes()
    assert lines[2].strip("\x04") == "OTHER_NPU"
