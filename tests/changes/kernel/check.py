"""Check that firmware has a kernel for `aten::atanh.out` whose results are near ExecuTorch's."""

import tempfile
from pathlib import Path

import torch

from ethorch.deploy.firmware.operators import KERNELS
from tests.helpers.c_kernels import Library, Program, Several, exported, steps_apart

assert "aten::atanh.out" in KERNELS, "firmware has no kernel for aten::atanh.out"

x = torch.cat([torch.linspace(-1, 1, 1001), torch.tensor([1e-20, -0.0, 2.0, float("nan")])])
program = Program.of("atanh", exported(Several(torch.atanh), [x]))
with tempfile.TemporaryDirectory() as folder:
    _, (result,) = Library([program], Path(folder)).run(program, [x])
(expected,) = program.run_in_runtime([x])
assert steps_apart(result, expected) <= 4, f"{steps_apart(result, expected)} units in the last place from ExecuTorch"
