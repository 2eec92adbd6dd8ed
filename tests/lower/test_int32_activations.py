"""Activations quantized to int32, as the Arm backend's tests of sigmoid ask for: on ethos-u85; refused elsewhere."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import export
from torchao.quantization.pt2e import HistogramObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import QuantizationSpec

import ethorch
from ethorch.program.program import record_of
from ethorch.quantization.config import QuantizationConfig
from ethorch.support.errors import QuantizationError
from ethorch.targets.npus import TARGETS
from tests.helpers.ladder import climbed
from tests.helpers.quantized import quantized


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
    operators = [name for group in record_of(program).build.partition.delegated.values() for name in group]
    assert sum("sigmoid" in name for name in operators) == 5 and sum("add" in name or "sub" in name for name in operators) == 3
    assert {refusal.reason.id for refusal in record_of(program).build.partition.refusals} == {
        "graph.int32_operand"
    }  # the product of inputs
    for found, wanted in zip(program(*inputs), converted(*inputs), strict=True):
        assert ethorch.sqnr_db(wanted, found) > 80
    for found, wanted in zip(program(*inputs), Gates()(*inputs), strict=True):
        assert ethorch.sqnr_db(wanted, found) > 70


class Exponential(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (5.2 * x).exp()


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        self.exponential = Exponential()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + y, x - y, self.exponential(x)


def test_sums_of_int32_beyond_their_range_saturate_on_every_configuration():
    """Calibration cancels x against y. On fresh inputs the sums are up to 200 times as large, and they overflowed."""
    spec = partial(QuantizationSpec, observer_or_fake_quant_ctr=HistogramObserver, qscheme=torch.per_tensor_symmetric)
    wide, narrow = spec(dtype=torch.int32), spec(dtype=torch.int16)
    quantizer = ethorch.EthosUQuantizer(ethorch.EthosUCompileSpec("ethos-u85-256"))
    quantizer.set_global(QuantizationConfig(wide, wide, None, None))
    quantizer.set_module_type(Exponential, QuantizationConfig(narrow, wide, None, None))
    ramp = torch.linspace(-1, 1, 101)
    q = quantized(Sums(), [(ramp, -0.99 * ramp)], quantizer)
    targets = [name for name, target in TARGETS.items() if target.tuning.int32_activations]
    assert len(targets) == 5
    for target in targets:
        for inputs in ((ramp, ramp), (ramp, ramp.flip(0)), (100 * ramp, -100 * ramp)):
            climb = climbed(q, inputs, target)
            for wanted, reference, found in zip(climb.fake_quantized, climb.reference, climb.simulated, strict=True):
                np.testing.assert_array_equal(found.ravel(), reference.ravel())
                assert np.abs(wanted - reference.astype(np.int64)).max() < 2**18  # of 2**31, since tables have 16 bits


@pytest.mark.parametrize("target", ["ethos-u55-128", pytest.param("ethos-u65-256", marks=pytest.mark.long)])
def test_they_stay_on_the_cpu_elsewhere_and_are_right(target):
    converted, inputs = converted_gates(target)
    program = ethorch.compile(converted, inputs, target)
    assert not record_of(program).build.partition.delegated
    assert "graph.int32_activation" in {refusal.reason.id for refusal in record_of(program).build.partition.refusals}
    for found, wanted in zip(program(*inputs), converted(*inputs), strict=True):
        assert ethorch.sqnr_db(wanted, found) > 120


def test_a_zero_point_of_int32_is_refused():
    with pytest.raises(QuantizationError, match=r"config\.int32_zero_point"):
        converted_gates("ethos-u85-256", torch.per_tensor_affine)
