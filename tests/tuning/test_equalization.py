"""Equalization keeps the float function, and gains where weights have one scale."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import ethorch
from ethorch.support.errors import QuantizationError
from tests.helpers.quantized import exported, prepared, quantizer
from tests.tuning.networks import CALIBRATION, PER_TENSOR, Uneven, quality

pytestmark = pytest.mark.core


def test_equalization_keeps_the_function_and_gains_with_per_tensor_weights() -> None:
    model = Uneven().eval()
    graph = ethorch.tuning.equalize(exported(copy.deepcopy(model), CALIBRATION[0]))
    assert quality(model, graph) > 100
    plain = convert_pt2e(prepared(copy.deepcopy(model), CALIBRATION, quantizer(PER_TENSOR)))

    equal = prepare_pt2e(graph, quantizer(PER_TENSOR))
    for x in CALIBRATION:
        equal(*x)
    assert quality(model, convert_pt2e(equal)) > quality(model, plain) + 3


def test_equalization_of_convolutions_over_three_axes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(2, 8, 2), nn.ReLU(), nn.Conv3d(8, 3, 2)).eval()
    with torch.no_grad():
        model[0].weight.mul_(torch.logspace(-1, 1, 8).reshape(-1, 1, 1, 1, 1))
    x = torch.randn(1, 2, 6, 6, 6)
    wanted = model(x)
    graph = ethorch.tuning.equalize(exported(copy.deepcopy(model), (x,)))
    ranges = next(p for p in graph.parameters() if p.dim() == 5).detach().abs().flatten(1).amax(1)
    assert ranges.max() / ranges.min() < 20  # from a hundred
    torch.testing.assert_close(graph(x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("between", [nn.ReLU(), nn.MaxPool2d(3, 1, 1)], ids=str)
@pytest.mark.parametrize("first", [nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 8)], ids=str)
def test_layers_whose_channels_lie_on_other_axes_are_left_alone(first: nn.Module, between: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(first, between, nn.Linear(8, 4)).eval()
    x = torch.randn(1, 3, 8, 8)
    wanted = model(x)
    torch.testing.assert_close(ethorch.tuning.equalize(exported(copy.deepcopy(model), (x,)))(x), wanted)


def test_equalization_wants_a_graph_module() -> None:
    with pytest.raises(QuantizationError, match=r"torch\.export.*\[equalize\.graph_module\]"):
        ethorch.tuning.equalize(Uneven())  # type: ignore[arg-type]
