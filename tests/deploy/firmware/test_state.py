"""State: kept between runs, begun anew by the reset, with the contents that the file says it begins with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ethorch
from ethorch import runtime
from ethorch.deploy.firmware import project_run
from ethorch.deploy.firmware.firmware import firmware
from ethorch.deploy.firmware.plan import plan
from ethorch.deploy.firmware.project_run import Options
from ethorch.deploy.firmware.steps import ARENA, Run
from ethorch.formats import pte
from ethorch.formats.pte_types import Extra
from ethorch.formats.pte_writer import write
from tests.helpers.firmware import built_and_run, program
from tests.helpers.states import CASES

MAIN = """
#include <string.h>
#include "board.h"
#include "console.h"
#include "cortex_m.h"
#include "model.h"

static ethosu npu;
static model_t model;
void NPU_Handler(void);
void NPU_Handler(void) { ethosu_irq(&npu); }

static bool run(void) {
  static const uint8_t input[sizeof(model_input_0_t)] = {%s};
  (void)memcpy(model_input_0(&model), input, sizeof input);
  if (model_run(&model) != ETHOSU_OK) {
    return false;
  }
  for (uint32_t i = 0u; i < sizeof(model_output_0_t); i++) {
    console_number(((const uint8_t *)model_output_0(&model))[i]);
    console_text(" ");
  }
  console_text("\\n");
  return true;
}

int main(void) {
  console_init();
  cortex_m_init(BOARD_NPU_INTERRUPT);
  if ((ethosu_init(&npu, BOARD_NPU_BASE, ETHOSU_PRIVILEGED | ETHOSU_INTERRUPT) != ETHOSU_OK) ||
      (model_init(&model, &npu, &model_memory) != ETHOSU_OK) || !run() || !run()) {
    return 1;
  }
  model_reset(&model);
  return run() ? 0 : 1;
}
"""


def with_initial_contents(data: bytes, contents: torch.Tensor) -> bytes:
    """The file with contents for the first state that its method keeps."""
    parsed = pte.read(data)
    method = parsed.methods["forward"]
    at = next(i for i, v in enumerate(method.values) if v.planned and v.dtype == "float32" and i not in method.inputs)
    values = list(method.values)
    values[at] = replace(values[at], data=1, extra=Extra(segment=0))
    methods = {**parsed.methods, "forward": replace(method, values=tuple(values))}
    return write(replace(parsed, methods=methods, mutable=((b"", contents.numpy().tobytes()),)))


def test_state_is_kept_and_reset_to_what_the_file_says(tmp_path: Path) -> None:
    data = program("state", "ethos-u55-128").pte
    x = torch.randn(1, 8)
    found = {}
    for name, one in (("zeros", data), ("contents", with_initial_contents(data, torch.linspace(-0.5, 0.5, 8)[None]))):
        folder = tmp_path / name
        firmware(one, folder)
        (folder / "firmware" / "main.c").write_text(MAIN % ", ".join(map(str, x.numpy().tobytes())))
        lines = project_run.run(folder, project_run.build(folder)).check().text.splitlines()
        runs = [bytes(map(int, line.split())) for line in lines[:3]]
        desk = runtime.load(one)
        wanted = [desk(x)[0].clone().numpy().tobytes() for _ in range(2)]
        assert runs == [*wanted, wanted[0]]
        assert runs[0] != runs[1]
        found[name] = runs[0]
    assert found["zeros"] != found["contents"]


@pytest.mark.parametrize(
    ("name", "copied"),
    [
        pytest.param("denoiser", 0, marks=pytest.mark.long),  # is stored where the delegate reads and writes it
        pytest.param("mean", 0, marks=pytest.mark.long),
        pytest.param("spotter", 0, marks=pytest.mark.long),
        ("delayed", 8),  # its input, which the CPU puts into a buffer
        ("lstm", 0),
        ("attention", 4),  # its position, which the CPU reads too
        ("slots", 0),
        pytest.param("ring", 0, marks=pytest.mark.long),
    ],
)
def test_state_of_codes_runs_on_the_board_and_the_npu_reads_it_where_it_lies(name: str, copied: int, tmp_path: Path) -> None:
    case = CASES[name]
    steps = case.steps(8)
    made = ethorch.compile(case.model().eval(), steps[0], case.target, calibration=steps, progress=False)
    parsed = pte.read(made.pte)
    found = plan(parsed, parsed.methods["forward"])
    names = {i: v.extra.name for i, v in enumerate(found.method.values) if v.extra and v.extra.name}
    assert set(names) <= set(found.states_in_arena) and {found.places[index].buffer for index in names} == {ARENA}
    assert sum(moved.nbytes for step in found.body if isinstance(step, Run) for moved in step.before) == copied
    firmware(made, tmp_path)
    assert "Do not share the arena with another model" in (tmp_path / "model" / "model.h").read_text()
    assert not built_and_run(tmp_path, Options(caches=True)).faults  # the outputs of three runs are the desk's
