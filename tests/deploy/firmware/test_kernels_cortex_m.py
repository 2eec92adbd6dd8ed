"""Operators that ExecuTorch's Arm backend leaves on the CPU: those without weights in C, beside the definitions in its wheel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ethorch.deploy.firmware.kernels import list_kernels
from ethorch.formats.pte_types import Call
from tests.helpers.c_kernels import PLATFORMS, Program, compiled, same_bits


@pytest.mark.parametrize("platform", PLATFORMS)
def test_kernels_equal_their_definitions_bit_for_bit(platform: str, cortex_m_operators: Path, tmp_path: Path) -> None:
    program = Program.of("operators", (cortex_m_operators / "operators.pte").read_bytes())
    known, given, steps = set(list_kernels()), set(program.method.inputs), []
    for step in program.method.calls:  # without the operators that have no kernel, and what reads their outputs
        needed = [index for index in step.args[:-1] if program.method.values[index].place is not None]
        if step.operator in known and all(index in given for index in needed if index != step.args[-1]):
            given.add(step.args[-1])
            steps.append(step)
    names, runs = torch.load(cortex_m_operators / "cases.pt")
    (chain,) = program.method.chains
    program.method = replace(program.method, chains=(replace(chain, instructions=tuple(steps)),))
    library = compiled(platform, [program], tmp_path)
    computed = [number for number, index in enumerate(program.method.outputs) if index in given]
    called = {step.operator for step in steps if isinstance(step, Call)}
    assert {name for name in called if name.startswith("cortex_m::")} == {name for name in known if name.startswith("cortex_m::")}
    for inputs, wanted in runs:
        status, found = library.run(program, inputs)
        assert status == 0
        assert [names[n] for n in computed if not same_bits(found[n], wanted[n])] == []
