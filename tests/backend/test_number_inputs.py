"""Programs with number inputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ethorch
from ethorch.program.program import record_of


class Sum(nn.Module):
    def forward(self, number: float, x: torch.Tensor) -> torch.Tensor:
        return number + x


@pytest.mark.parametrize("number", [3, 1.5])
def test_a_number_before_the_tensors(number: float) -> None:
    """ExecuTorch lifts the number to a constant, which it cannot do in front of such an input."""
    inputs = (number, torch.linspace(-1, 1, 9))
    quantizer = ethorch.EthosUQuantizer(ethorch.EthosUCompileSpec("ethos-u55-128"))
    quantizer.set_global(ethorch.arm.quantizer.get_symmetric_quantization_config())
    exported = torch.export.export(Sum(), inputs).module(check_guards=False)
    converted = quantizer.quantize_with_submodules(exported, [inputs])
    program = ethorch.compile(converted, inputs, "ethos-u55-128")
    assert not record_of(program).build.partition.refusals
    result = program(*inputs)
    assert ethorch.sqnr_db(Sum()(*inputs), result) > 40
