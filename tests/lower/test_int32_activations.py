"""Activations quantized to int32, as the Arm backend's tests of sigmoid ask for: on ethos-u85; refused elsewhere."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.export import export
from torchao.quantization.pt2e import HistogramObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import QuantizationSpec

import ethorch
from ethorch.errors import QuantizationError
from ethorch.quantizer.config import QuantizationConfig


class Gates(nn.Module):
    """A table, a sum of two tables in int32 that a third one reads, a difference, and a sum and a product of int32 inputs."""

    def __init__(self):
        super().__init__()
        self.sigmoid = nn.Sigmoid()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, two = self.sigmoid(x), self.sigmoid(y)
        return one, self.sigmoid(one + two), self.sigmoid(x) - 2 * self.sigmoid(y), x + y, x * y


def converted_gates(target: str, scheme: torch.qscheme = torch.per_tensor_symmetric):
    spec = partial(QuantizationSpec, observer_or_fake_quant_ctr=HistogramObserver, qscheme=scheme)
    wide, narrow = spec(dtype=torch.int32), QuantizationSpec(torch.int16, HistogramObserver, qscheme=torch.per_tensor_symmetric)
    quantizer = ethorch.EthosUQuantizer(ethorch.EthosUCompileSpec(target))
    quantizer.set_global(QuantizationConfig(wide, wide, None, None))
    quantizer.set_module_type(nn.Sigmoid, QuantizationConfig(narrow, wide, None, None))
    inputs = torch.arange(-16, 16, 0.2), torch.linspace(-3, 9, 160)
    prepared = prepare_pt2e(export(Gates().eval(), inputs).module(), quantizer)
    prepared(*inputs)
    return convert_pt2e(prepared), inputs


def test_sums_and_tables_of_int32_run_on_u85():
    converted, inputs = converted_gates("ethos-u85-256")
    program = ethorch.compile(converted, inputs, "ethos-u85-256")
    operators = [name for group in program.build.partition.delegated.values() for name in group]
    assert sum("sigmoid" in name for name in operators) == 5 and sum("add" in name or "sub" in name for name in operators) == 3
    assert {refusal.reason.id for refusal in program.build.partition.refusals} == {"graph.int32_operand"}  # the product of inputs
    for found, wanted in zip(program(*inputs), converted(*inputs), strict=True):
        assert ethorch.sqnr_db(wanted, found) > 80
    for found, wanted in zip(program(*inputs), Gates()(*inputs), strict=True):
        assert ethorch.sqnr_db(wanted, found) > 70


@pytest.mark.parametrize("target", ["ethos-u55-128", pytest.param("ethos-u65-256", marks=pytest.mark.long)])
def test_they_stay_on_the_cpu_elsewhere_and_are_right(target):
    converted, inputs = converted_gates(target)
    program = ethorch.compile(converted, inputs, target)
    assert not program.build.partition.delegated
    assert "graph.int32_activation" in {refusal.reason.id for refusal in program.build.partition.refusals}
    for found, wanted in zip(program(*inputs), converted(*inputs), strict=True):
        assert ethorch.sqnr_db(wanted, found) > 120


def test_a_zero_point_of_int32_is_refused():
    with pytest.raises(QuantizationError, match=r"config\.int32_zero_point"):
        converted_gates("ethos-u85-256", torch.per_tensor_affine)
