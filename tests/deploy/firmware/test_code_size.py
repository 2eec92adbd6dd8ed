"""Estimated code sizes, compared with those of compiled projects."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from elftools.elf.elffile import ELFFile
from torch import nn

import ethorch
from ethorch.deploy.firmware import project_run
from ethorch.deploy.firmware.code_size import TABLE, estimate_code_size
from ethorch.formats import pte
from tests.helpers.code_sizes import SELF_TEST, measure
from tests.helpers.compiling import compile_with
from tests.helpers.firmware import Small, TwoDelegates


class Normalized(nn.Module):
    """A network whose normalization and activation run on the CPU in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.norm(self.linear(x)), -1)


def measure_code(folder: Path) -> int:
    """Build a project for a Cortex-M33 and return its code, without the self-test."""
    elf = project_run.build(folder, project_run.Options(cpu="cortex-m33"))
    with elf.open("rb") as file:
        symbols = list(ELFFile(file).get_section_by_name(".symtab").iter_symbols())
    replaced = sum(s["st_size"] for s in symbols if s["st_info"]["type"] == "STT_FUNC" and s.name.startswith(SELF_TEST))
    return project_run.code_bytes(elf) - replaced


@pytest.mark.parametrize(
    "model, shape, modules",
    [
        pytest.param(Small(), (1, 1, 8, 8), {}, marks=pytest.mark.long),
        (TwoDelegates(), (1, 3, 8, 8), {}),
        (Normalized(), (1, 4, 16), {"norm": "float"}),
    ],
    ids=["boundary", "two delegates", "float operators"],
)
def test_estimate_is_close_to_a_built_project(model, shape, modules, tmp_path):
    program = compile_with(model.eval(), torch.rand(shape), "ethos-u55-128", modules=modules)
    ethorch.firmware(program, tmp_path / "project")
    size = estimate_code_size(pte.read(program.pte))
    assert not size.missing
    assert size.size_bytes == pytest.approx(measure_code(tmp_path / "project"), rel=0.15)
    (component,) = [part for part in program.memory.components if part.name == "code"]
    assert component.flash_bytes == size.size_bytes
    assert program.memory.flash_bytes == size.size_bytes + len(program.pte)


def test_operators_without_a_kernel_are_named():
    class InverseCosine(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.acos(x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = InverseCosine()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(torch.relu(x))

    program = compile_with(Model(), torch.rand(1, 16), "ethos-u55-128", modules={"inner": "float"})
    assert estimate_code_size(pte.read(program.pte)).missing == ("aten::acos.out",)
    assert "excluding operators without a C kernel: aten::acos.out" in next(
        part.note for part in program.memory.components if part.name == "code"
    )


def test_table_is_current():
    assert TABLE.read_text(encoding="utf-8") == measure(), "run python -m tests.helpers.code_sizes"
