"""INT32 with more than 32,768 places along its last axis, on U55 and U65: nothing of it is cut off (vela.wide-int32-*)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ethorch import EthosUCompileSpec
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.targets.npus import TARGETS
from ethorch.tosa.ir import Value
from ethorch.tosa.serialize import serialize
from tests.helpers.ladder import climb
from tests.helpers.quantized import quantized
from tests.helpers.tosa_runs import machine, reference

WIDE = 40_000


def joined(b: Builder, x: Value) -> Value:
    return b.emit("CONCAT", x, b.input("y", x.shape, "INT32"), axis=x.rank - 1)


def stacked(b: Builder, x: Value) -> Value:
    return b.emit("CONCAT", x, b.input("y", x.shape, "INT32"), axis=0)


def padded(b: Builder, x: Value) -> Value:
    return b.emit("PAD", x, padding=(0,) * (2 * x.rank - 2) + (1, 2), pad_const=7)


def cut(b: Builder, x: Value) -> Value:
    return b.emit("SLICE", x, start=(0,) * (x.rank - 1) + (3,), size=(*x.shape[:-1], x.shape[-1] - 4))


def cut_and_folded(b: Builder, x: Value) -> Value:
    return b.reshape(cut(b, x), (*x.shape[:-1], 4, (x.shape[-1] - 4) // 4))


def transposed(b: Builder, x: Value) -> Value:
    return b.emit("TRANSPOSE", x, perms=(*range(1, x.rank), 0))


MOVES: dict[str, Callable[[Builder, Value], Value]] = {
    "identity": lambda b, x: b.emit("IDENTITY", x),
    "joined": joined,
    "stacked": stacked,
    "padded": padded,
    "cut": cut,
    "cut and folded": cut_and_folded,
    "tiled": lambda b, x: b.emit("TILE", x, multiples=(2,) * x.rank),
    "folded": lambda b, x: b.reshape(x, (*x.shape[:-1], 4, x.shape[-1] // 4)),
    "transposed": transposed,
    "joined, plus one": lambda b, x: b.emit("ADD", joined(b, x), b.const(np.ones((1,) * x.rank, np.int32))),
}


def differing(move: Callable[[Builder, Value], Value], shape: tuple[int, ...], target: str) -> int:
    """How many elements of simulator and reference model differ."""
    b = Builder(TARGETS[target].limits, tuning=TARGETS[target].tuning)
    b.graph.outputs.append(move(b, b.input("x", shape, "INT32")))
    graph = rewrite(b.graph, TARGETS[target].tuning)
    rng = np.random.default_rng(0)
    codes = [rng.integers(-(2**31), 2**31, value.shape).astype(np.int32) for value in graph.inputs]
    tosa = serialize(graph)
    (found,), (wanted,) = machine(tosa, codes, EthosUCompileSpec(target)), reference(tosa, codes)
    return int(np.sum(found.ravel() != wanted.ravel()))


def plus_nothing(b: Builder, x: Value) -> Value:
    return b.emit("ADD", x, b.const(np.zeros((1,) * x.rank, np.int32)))


OF_FOUR_AXES: dict[str, Callable[[Builder, Value], Value]] = {
    "padded": lambda b, x: b.emit("PAD", plus_nothing(b, x), padding=(0, 0, 0, 0, 0, 1, 1, 2), pad_const=3),
    "padded on all sides": lambda b, x: b.emit("PAD", plus_nothing(b, x), padding=(1, 0, 0, 1, 2, 1, 1, 2), pad_const=0),
    "cut": lambda b, x: b.emit("SLICE", plus_nothing(b, x), start=(0, 1, 0, 3), size=(1, 1, 1, x.shape[-1] - 4)),
    "tiled": lambda b, x: b.emit("TILE", plus_nothing(b, x), multiples=(1, 2, 1, 2)),
    "joined": lambda b, x: b.emit("CONCAT", plus_nothing(b, x), b.input("y", x.shape, "INT32"), axis=1),
}


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256"])
@pytest.mark.parametrize("move", OF_FOUR_AXES)
def test_moves_of_four_axes_that_are_computed(move: str, target: str) -> None:
    """A PAD of four axes, and one of extent 1 more, was cut off again."""
    assert differing(OF_FOUR_AXES[move], (1, 2, 2, WIDE), target) == 0


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256"])
@pytest.mark.parametrize("move", MOVES)
def test_moves(move: str, target: str) -> None:
    assert differing(MOVES[move], (2, WIDE), target) == 0


@pytest.mark.long
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
@pytest.mark.parametrize("extent", [32_764, 32_768, 32_772, WIDE, 65_532, 65_536, 65_540, 70_000, 131_076])
@pytest.mark.parametrize("place", ["last", "rows", "channels", "width", "height"])
@pytest.mark.parametrize("move", MOVES)
def test_moves_everywhere(move: str, place: str, extent: int, target: str) -> None:
    shapes = {"last": (extent,), "rows": (2, extent), "channels": (1, 2, 3, extent), "width": (1, 2, extent, 4)}
    assert differing(MOVES[move], shapes.get(place, (1, extent, 2, 4)), target) == 0


class MeanOfChannels(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1, keepdim=True)


class SumOfProducts(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).sum(1)


@pytest.mark.parametrize(
    ("module", "shapes"),
    [(MeanOfChannels(), [(1, 16, 300, 300)]), (MeanOfChannels(), [(1, 4, 257, 256)]), (SumOfProducts(), [(1, 8, 300, 300)] * 2)],
    ids=["mean", "mean, of 65,792 places", "sum of products"],
)
def test_sums_over_channels_of_large_maps(module: torch.nn.Module, shapes: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.rand(*shape, generator=generator) for shape in shapes)
    climb(quantized(module, [inputs]), inputs)
