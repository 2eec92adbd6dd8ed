"""A scatter to the place of a row's extreme is a choice by a mark; any other scatter stays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.helpers import ladder
from tests.helpers.quantized import Function, exported, quantized, quantizer, samples

SHAPE = (2, 6, 5)


class Assigned(nn.Module):
    """Which of six groups each of five tokens belongs to, and the groups' means, as GroupViT writes it."""

    def forward(self, scores: Tensor) -> Tensor:
        soft = scores.softmax(-2)
        place = soft.max(-2, keepdim=True)[1]
        hard = torch.zeros_like(scores).scatter_(-2, place, 1.0)
        hard = hard - soft.detach() + soft
        return hard / (hard.sum(-1, keepdim=True) + 1)


def drawn(module: nn.Module, x: Tensor) -> torch.fx.GraphModule:
    """The module as it is quantized."""
    return quantizer().transform_for_annotation(exported(module, (x,)))


def has_scatter(graph: torch.fx.GraphModule) -> bool:
    return any("scatter" in str(node.target) for node in graph.graph.nodes)


def test_a_hard_assignment_runs_on_the_npu():
    q = quantized(Assigned().eval(), samples(SHAPE), quantizer())
    assert ladder.refusal_ids(q.converted, "ethos-u55-128") == set()


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_the_npu_chooses_what_pytorch_chooses(target):
    calibration = samples(SHAPE)
    function = Function(lambda x: torch.zeros_like(x).scatter(1, x.argmax(1, keepdim=True), 1.0) * x)
    ladder.climb(ladder.quantized(function, calibration, target=target), calibration[0], target)


@pytest.mark.parametrize(
    "function",
    [
        Assigned(),
        lambda x: torch.zeros_like(x).scatter(1, x.argmax(1, keepdim=True), 1.0),
        lambda x: torch.full_like(x, 2.0).scatter(-1, x.argmin(2).unsqueeze(2), -5),
        lambda x: x.scatter(1, x.min(1, True)[1], x.amax(1, keepdim=True)),
        lambda x: torch.cat([x, x], 1).scatter(1, x.argmax(1, keepdim=True), 7.0),
    ],
    ids=["assigned", "ones", "least", "written", "longer"],
)
def test_a_mark_says_the_same_as_a_place(function):
    module, x = Function(function).eval(), torch.randn(SHAPE)
    graph = drawn(module, x)
    assert not has_scatter(graph)
    assert torch.allclose(graph(x), module(x), atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.scatter(1, x.argmax(1, keepdim=True).clamp(max=2), 1.0),
        lambda x: x.scatter(2, x.argmax(1, keepdim=True).clamp(max=4), 1.0),
        lambda x: x.scatter(2, x.argmax(2, keepdim=True)[:, :3], 1.0),
        lambda x: torch.zeros(SHAPE, dtype=torch.int32).scatter(1, x.argmax(1, keepdim=True), 1),
        lambda x: x.scatter(1, x.argmax(1, keepdim=True), x),
    ],
    ids=["computed with", "of another dim", "of some rows", "ints", "longer source"],
)
def test_any_other_stays(function):
    module, x = Function(function).eval(), torch.randn(SHAPE)
    graph = drawn(module, x)
    assert has_scatter(graph)
    assert torch.equal(graph(x), module(x))


def test_of_equal_values_the_first_is_chosen():
    x = torch.zeros(2, 5)
    x[1, 2:4] = 1
    graph = drawn(Function(lambda x: torch.zeros_like(x).scatter(1, x.argmax(1, keepdim=True), 1.0)), x)
    assert graph(x).tolist() == [[1, 0, 0, 0, 0], [0, 0, 1, 0, 0]]
