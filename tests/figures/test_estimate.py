"""The parts of an estimate: each is there, and the sum is of all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import ethorch
from ethorch import figures
from ethorch.figures.estimate import CALL_CYCLES, CALLS, CONVERSIONS, COPIES, CPU_OPERATORS, END_TRANSPOSES, NPU_OPERATORS, Estimate
from ethorch.figures.layer import CPU, NPU, TRANSPOSES
from ethorch.program.program import record_of


class _Split(nn.Module):
    """Two delegates with an operator of the CPU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.last(torch.copysign(y, y))


@pytest.fixture(scope="module")
def program() -> ethorch.Program:
    return ethorch.compile(_Split().eval(), torch.rand(1, 3, 12, 12), board="renesas-ra8p1")


def test_the_sum_is_of_all_parts(program: ethorch.Program) -> None:
    parts = {part.name: part for part in program.estimate.parts}
    assert list(parts) == [NPU_OPERATORS, END_TRANSPOSES, CONVERSIONS, CPU_OPERATORS, COPIES, CALLS]
    by_place = {
        where: sum(layer.cycles or 0 for layer in record_of(program).layers if layer.where == where) for where in (NPU, CPU)
    }
    assert program.estimate.npu_cycles == by_place[NPU] == parts[NPU_OPERATORS].cycles + parts[END_TRANSPOSES].cycles  # type: ignore[operator]
    assert program.estimate.cpu_cycles == by_place[CPU] == parts[CONVERSIONS].cycles + parts[CPU_OPERATORS].cycles  # type: ignore[operator]
    assert len(record_of(program).payloads) == 2 and parts[CALLS].cycles == 2 * CALL_CYCLES
    copied = sum(tensor.nbytes for payload in record_of(program).payloads for tensor in (*payload.inputs, *payload.outputs))
    assert parts[COPIES].cycles == round(0.5 * copied)
    assert program.estimate.milliseconds == pytest.approx(sum(part.milliseconds or 0 for part in parts.values()))
    clocks = {NPU: 500e6, CPU: 1e9}
    assert all(part.milliseconds == pytest.approx(1e3 * (part.cycles or 0) / clocks[part.where]) for part in parts.values())
    assert program.to_json()["estimate"] == program.estimate.to_json()


def test_each_part_says_where_its_figure_comes_from(program: ethorch.Program) -> None:
    sources = {part.name: part.source for part in program.estimate.parts}
    assert sources[NPU_OPERATORS] == sources[END_TRANSPOSES] == "Vela"
    assert sources[CONVERSIONS] == "dequantize (counted), quantize (counted)"
    assert sources[COPIES].startswith("assumed: ") and sources[CALLS].startswith("counted: ")
    assert "delegate calls" in str(program) and "NPU boundary transposes" in str(program)


def test_transposes_inside_are_operators(program: ethorch.Program) -> None:
    first = next(layer for layer in record_of(program).layers if layer.where == NPU)
    layers = [
        replace(first, index=number, delegate=0, bound=bound, cycles=cycles)
        for number, (bound, cycles) in enumerate(
            [("compute", 0), (TRANSPOSES, 3), ("compute", 5), (TRANSPOSES, 7), ("compute", 11)]
        )
    ]
    found = figures.estimate(layers, (), 1e6, 1e6)
    assert (found.cycles(END_TRANSPOSES), found.cycles(NPU_OPERATORS)) == (3, 23)


def test_what_is_unknown_is_none(program: ethorch.Program) -> None:
    file = ethorch.load(program.pte)
    assert file.estimate.npu_cycles is None and file.estimate.milliseconds is None and (file.estimate.cpu_cycles or 0) > 0
    assert file.estimate.overhead_cycles == program.estimate.overhead_cycles
    assert Estimate(()).milliseconds is None
