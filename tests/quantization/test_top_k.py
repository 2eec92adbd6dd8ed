"""topk of a few, whose places are read or written along their own dim, is amax, argmax and marks; any other stays topk."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec, EthosUQuantizer
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from tests.helpers import ladder
from tests.helpers.quantized import Function, quantized, samples

ROWS, EXPERTS, WIDTH = 6, 4, 16


class Grouped(nn.Module):
    """Weights of the two experts of the greatest scores, out of the better group of experts; zeros for the others."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2 * EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x).sigmoid()
        groups = scores.view(ROWS, 2, EXPERTS).topk(2, -1)[0].sum(-1)
        better = torch.zeros_like(groups).scatter_(1, torch.topk(groups, 1, -1)[1], 1)
        allowed = better.unsqueeze(-1).expand(ROWS, 2, EXPERTS).reshape(ROWS, -1)
        chosen = torch.topk(scores.masked_fill(~allowed.bool(), float("-inf")), 2, -1)[1]
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        return torch.full_like(scores, 0.0).scatter(1, chosen, weights)


class First(nn.Module):
    """The greatest score of each row, and minus infinity beside it."""

    def forward(self, x: Tensor) -> Tensor:
        value, place = torch.topk(torch.sin(x), 1, -1)
        return torch.full_like(x, float("-inf")).scatter_(1, place, value).sigmoid()


def drawn(module: nn.Module, x: Tensor) -> torch.fx.GraphModule:
    """The module as it is quantized."""
    graph = torch.export.export(module, (x,)).module(check_guards=False)
    quantizer = EthosUQuantizer(EthosUCompileSpec("ethos-u55-128")).set_global(get_symmetric_quantization_config())
    return quantizer.transform_for_annotation(graph)


def has_topk(graph: torch.fx.GraphModule) -> bool:
    return any("topk" in str(node.target) for node in graph.graph.nodes)


@pytest.mark.parametrize("model", [Grouped, First])
def test_places_that_are_read_along_their_own_dim_are_no_indices(model):
    module, inputs = model().eval(), samples((ROWS, WIDTH))
    q = quantized(module, inputs)
    assert ladder.refusal_ids(q.converted, "ethos-u55-128") == set()


@pytest.mark.parametrize(
    "function",
    [
        Grouped(),
        First(),
        lambda x: x.gather(1, x.topk(3, -1)[1]),
        lambda x: x.neg().gather(1, x.topk(3, -1)[1]),
        lambda x: x.scatter(-1, x.topk(2, 1)[1], x.neg().topk(2, 1)[0]),
        lambda x: x.scatter(1, x.topk(2)[1], -5.0),
        lambda x: x.masked_fill(x < 1, float("-inf")).gather(1, x.masked_fill(x < 1, float("-inf")).topk(1)[1]),
    ],
    ids=["groups", "one", "its own", "another's", "written", "a number", "masked"],
)
def test_marks_say_the_same_as_places(function):
    module, x = Function(function).eval(), torch.randn(ROWS, WIDTH)
    x[:, 7] = 1.5  # no row is masked as a whole
    graph = drawn(module, x)
    assert not has_topk(graph)
    assert torch.allclose(graph(x), module(x), atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.topk(2, -1)[1],
        lambda x: x[0][x.topk(2, -1)[1]],
        lambda x: torch.cat([x, x], 1).gather(1, x.topk(2, -1)[1]),
        lambda x: x.topk(2, 1)[1].gather(1, x.topk(2, 1)[1].clamp(max=1)),
        lambda x: x.gather(0, x.topk(2, -1)[1].clamp(max=ROWS - 1)),
        lambda x: x.gather(1, x.topk(2, -1, largest=False)[1]),
        lambda x: x.gather(0, x.topk(2, 0)[1]),
        lambda x: x.gather(1, x.topk(9, 1)[1]),
        lambda x: x.topk(2, -1)[0],
    ],
    ids=["result", "index", "of longer rows", "of ints", "of another dim", "least", "of columns", "nine", "values alone"],
)
def test_any_other_stays(function):
    module, x = Function(function).eval(), torch.randn(ROWS, WIDTH)
    graph = drawn(module, x)
    assert has_topk(graph)
    assert torch.equal(graph(x), module(x))


def test_of_equal_values_the_first_places_count():
    x = torch.zeros(2, 5)
    x[1, 2:4] = 1
    graph = drawn(Function(lambda x: torch.zeros_like(x).scatter(1, x.topk(2)[1], 1.0)), x)
    assert graph(x).tolist() == [[1, 1, 0, 0, 0], [0, 0, 1, 1, 0]]


@pytest.mark.parametrize("config", [get_symmetric_quantization_config(), get_symmetric_a16w8_quantization_config()])
@pytest.mark.parametrize("k", [2, 4])
def test_each_place_is_chosen_once_if_values_saturate(k, config):
    module = Function(lambda x: torch.zeros_like(x).scatter(1, x.topk(k)[1], 1.0))
    q = quantized(module, samples((ROWS, WIDTH)), config)
    x = 5 * samples((ROWS, WIDTH))[0][0]
    x[0], x[1], x[2] = 20 + torch.arange(WIDTH), -20 - torch.arange(WIDTH), -50
    x[2, 5] = 1
    assert q.module(x).sum(1).tolist() == [k] * ROWS
    ladder.climb(q, (x,))


def test_weights_of_experts_that_others_outweigh():
    """The second weight rounds to 0, as do those of experts that are not chosen."""

    def gate(x: Tensor) -> Tensor:
        weights, places = torch.softmax(x, -1).topk(2, -1)
        return torch.zeros_like(x).scatter(1, places, weights)

    calibration = [(4 * x,) for (x,) in samples((ROWS, WIDTH))]
    q = quantized(Function(gate), calibration)
    x = 9 * torch.eye(ROWS, WIDTH)
    assert (q.module(x) - gate(x)).abs().max() < 0.02
