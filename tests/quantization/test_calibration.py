"""Calibrating: under any grad mode, from samples of the shapes that the export knows."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ethorch import EthosUCompileSpec, sqnr_db
from ethorch.arm.quantizer import get_uint8_io_quantization_config
from ethorch.backend.build import build_pte
from ethorch.quantization.passes.cleanup import freeze_parameters
from ethorch.quantization.passes.context import PassContext
from ethorch.support.errors import QuantizationError
from tests.helpers.quantized import Small, exported, quantizer, samples

# --- grad mode -----------------------------------------------------------------------------------------------------------


class Cache(nn.Module):
    """A state that is written in place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(3, 4))

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        self.cache.index_copy_(0, i, self.linear(x))
        return self.cache.sum(0) * 2


class Mean(nn.Module):
    """A state that is replaced."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.mean * 0.5 + self.linear(x)
        return self.mean.tanh()


STATEFUL: dict[str, tuple[Callable[[], nn.Module], list[tuple[Any, ...]]]] = {
    "cache": (Cache, [(x, torch.tensor([i])) for i, (x,) in enumerate(samples((1, 4), count=3))]),
    "mean": (Mean, samples((1, 4), count=3)),
}


def calibrated(graph: GraphModule, data: list[tuple[Any, ...]], mode: Any) -> GraphModule:
    prepared: GraphModule = prepare_pt2e(graph, quantizer())
    with mode:
        for inputs in data:
            prepared(*inputs)
    return prepared


@pytest.mark.parametrize("name", STATEFUL)
def test_a_state_is_written_under_any_grad_mode(name: str) -> None:
    make, data = STATEFUL[name]
    graph = calibrated(exported(make(), data[0]), data, contextlib.nullcontext())
    copy.deepcopy(graph)
    assert not any(buffer.requires_grad for buffer in graph.buffers())
    converted = convert_pt2e(graph)
    assert build_pte(converted, data[0], EthosUCompileSpec("ethos-u85-256")).delegates
    same = convert_pt2e(calibrated(exported(make(), data[0]), data, torch.no_grad()))
    for ours, theirs in zip(converted.buffers(), same.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_samples_may_require_gradients() -> None:
    _, data = STATEFUL["mean"]
    graph = calibrated(exported(Mean(), data[0]), [(x.clone().requires_grad_(),) for (x,) in data], contextlib.nullcontext())
    assert not any(buffer.requires_grad for buffer in graph.buffers())


def test_the_users_parameters_keep_their_gradients_and_their_memory() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    graph = prepare_pt2e(exported(model, (torch.ones(1, 4),)), quantizer())
    assert all(parameter.requires_grad for parameter in model.parameters())
    for mine, its in zip(model.parameters(), graph.parameters(), strict=True):
        assert mine.data_ptr() == its.data_ptr() and not its.requires_grad


def test_tied_parameters_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    freeze_parameters(graph := torch.fx.symbolic_trace(model), PassContext())
    first, second = (getattr(graph, name).weight for name in ("0", "1"))
    assert first is second and not first.requires_grad


# --- shapes --------------------------------------------------------------------------------------------------------------


class Two(nn.Module):
    def forward(self, image: Tensor, index: Tensor) -> Tensor:
        return image[:, index].relu() * 2


def test_a_sample_of_another_shape_is_an_error_that_names_the_input() -> None:
    graph = prepare_pt2e(exported(Two(), (torch.ones(1, 3, 8, 8), torch.tensor([0, 2]))), quantizer())
    graph(torch.randn(1, 3, 8, 8), torch.tensor([0, 2]))
    wanted = r"input image of a calibration sample: expected shape \[1, 3, 8, 8\], got \[1, 3, 8, 9\].*\[calibration\.shape\]"
    with pytest.raises(QuantizationError, match=wanted):
        graph(torch.randn(1, 3, 8, 9), torch.tensor([0, 2]))
    with pytest.raises(QuantizationError, match=r"input index .* \[2\], got \[3\]"):
        graph(torch.randn(1, 3, 8, 8), torch.tensor([0, 1, 2]))
    with pytest.raises(QuantizationError, match=r"input image .* got \[3, 8, 8\]"):
        graph(torch.randn(3, 8, 8), torch.tensor([0, 2]))


def test_shapes_that_the_export_leaves_open_stay_open() -> None:
    dynamic = {"x": {0: torch.export.Dim("batch", min=1, max=16)}}
    graph = torch.export.export(Small().eval(), (torch.ones(2, 3, 10, 10),), dynamic_shapes=dynamic).module(check_guards=False)
    prepared = prepare_pt2e(graph, quantizer())
    for batch in (2, 5):
        prepared(torch.randn(batch, 3, 10, 10))
    with pytest.raises(QuantizationError, match=r"\[any, 3, 10, 10\], got \[2, 3, 9, 10\]"):
        prepared(torch.randn(2, 3, 9, 10))


def test_the_check_of_shapes_is_gone_when_calibration_is_over() -> None:
    (x,) = samples((1, 3, 10, 10))[0]
    plain = quantizer().set_io(get_uint8_io_quantization_config())
    prepared = prepare_pt2e(exported(Small(), (x,)), plain)
    prepared(x)
    copy.deepcopy(prepared)(x)
    converted = convert_pt2e(prepared)
    assert not any(node.op == "call_module" for node in converted.graph.nodes)
    assert not any("shape" in name for name, _ in converted.named_modules())
    assert sqnr_db(Small().eval()(x), converted(x)) > 20
    torch.export.export(converted, (x,))
