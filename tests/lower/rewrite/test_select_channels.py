"""Channels that are shuffled, cut and joined between convolutions are picked by weights, and no bit changes."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ethorch import EthosUCompileSpec
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.targets.npus import TUNING
from ethorch.tosa.ir import Graph, Value
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.ladder import climb, machine, quantized, reference

SIDE = 6


def convolved(b: Builder, x: Value, outputs: int, seed: int, depthwise: bool = False) -> Value:
    """A pointwise convolution of an NCHW value, or a 3x3 depthwise one; the result is NCHW, too."""
    rng = np.random.default_rng(seed)
    c = x.shape[1]
    x = b.emit("TRANSPOSE", x, perms=(0, 2, 3, 1))
    shape = (3, 3, c, 1) if depthwise else (outputs, 1, 1, c)
    pad = (1, 1, 1, 1) if depthwise else (0, 0, 0, 0)
    acc = b.emit(
        "DEPTHWISE_CONV2D" if depthwise else "CONV2D",
        x,
        b.const(rng.integers(-127, 128, shape).astype(np.int8)),
        b.const(rng.integers(-900, 900, outputs).astype(np.int32)),
        pad=pad,
        stride=(1, 1),
        dilation=(1, 1),
        input_zp=4,
        weight_zp=0,
    )
    result = b.rescale(acc, [0.002 + 1e-5 * k for k in range(outputs)], output_zp=4)
    return b.emit("TRANSPOSE", result, perms=(0, 3, 1, 2))


def shuffled(b: Builder, x: Value, groups: int) -> Value:
    n, c, h, w = x.shape
    x = b.emit("TRANSPOSE", b.reshape(x, (n, groups, c // groups, h, w)), perms=(0, 2, 1, 3, 4))
    return b.reshape(x, (n, c, h, w))


def cut(b: Builder, x: Value, first: int, count: int) -> Value:
    n, _, h, w = x.shape
    return b.emit("SLICE", x, start=(0, first, 0, 0), size=(n, count, h, w))


def units(batch: int, groups: int, rescaled: bool) -> Graph:
    """Units of ShuffleNet V2: one half of the channels passes by, the other is convolved, both are joined and shuffled."""
    b = Builder()
    x = convolved(b, b.input("x", (batch, 12, SIDE, SIDE), "INT8"), 24, 0)
    for unit in range(3):
        x = shuffled(b, x, groups)
        kept, other = cut(b, x, 0, 12), cut(b, x, 12, 12)
        for layer in (1, 2, 3):
            other = convolved(b, other, 12, 3 * unit + layer, depthwise=layer == 2)
        if rescaled:
            kept = b.rescale(kept, 0.9 + 0.1 * unit, input_zp=4, output_zp=4)
        x = b.emit("CONCAT", kept, other, axis=1)
    x = shuffled(b, x, groups)
    b.graph.outputs += [convolved(b, convolved(b, x, 24, 20, depthwise=True), 10, 22), convolved(b, x, 8, 21)]
    return b.graph


def drawn(seed: int) -> Graph:
    """Convolutions with whatever moves of channels and pixels between them."""
    r, b = random.Random(seed), Builder()
    values = [convolved(b, b.input("x", (r.choice((1, 2)), 8, SIDE, SIDE), "INT8"), 16, 0)]
    for step in range(12):
        x = r.choice(values[-3:])
        c = x.shape[1]
        kind = r.choice(("shuffle", "cut", "join", "convolve", "depthwise", "rescale", "turn", "mirror"))
        if kind == "shuffle" and c % 4 == 0:
            values.append(shuffled(b, x, r.choice((2, 4))))
        elif kind == "cut" and c > 4:
            first = r.randrange(c // 2)
            values.append(cut(b, x, first, r.randint(2, c - first)))
        elif kind == "join" and c <= 24:
            values.append(b.emit("CONCAT", x, r.choice(values[-3:]), axis=1))
        elif kind == "rescale":
            values.append(b.rescale(x, r.uniform(0.5, 1.5), input_zp=4, output_zp=4))
        elif kind == "turn":  # more than channels
            values.append(b.emit("TRANSPOSE", x, perms=(0, 1, 3, 2)))
        elif kind == "mirror":
            values.append(b.reshape(b.emit("TRANSPOSE", b.reshape(x, (x.shape[0], c, SIDE * SIDE)), perms=(0, 2, 1)), x.shape))
        else:
            deep = kind == "depthwise"
            values.append(convolved(b, x, c if deep else r.choice((6, 8, 16)), step + 1, depthwise=deep))
    b.graph.outputs += [convolved(b, values[-1], 8, 30), convolved(b, values[-2], 5, 31)]
    return b.graph


def same_bits(before: Graph, target: str) -> Graph:
    after = rewrite(copy.deepcopy(before), tuning=TUNING[target.split("-")[1]])
    verify(after)
    codes = [np.random.default_rng(7).integers(-128, 128, before.inputs[0].shape).astype(np.int8)]
    expected = reference(serialize(before), codes)
    for found, wanted in zip(machine(serialize(after), codes, EthosUCompileSpec(target)), expected, strict=True):
        np.testing.assert_array_equal(found.ravel(), wanted.ravel())
    return after


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("rescaled", [False, True])
def test_units(batch: int, groups: int, rescaled: bool, target: str) -> None:
    """Nothing is transposed but the input and the outputs."""
    after = same_bits(units(batch, groups, rescaled), target)
    assert [op.name for op in after.ops].count("TRANSPOSE") == 3


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("seed", range(8))
def test_drawn(seed: int, target: str) -> None:
    same_bits(drawn(seed), target)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8, 150))
def test_many_drawn(seed: int) -> None:
    same_bits(drawn(seed), ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")[seed % 3])


def test_a_chain_of_joins_takes_a_step_each() -> None:
    """Two operands of one origin, forty times: a walk over every way would have 2**40 ends."""
    b = Builder()
    x = convolved(b, b.input("x", (1, 8, SIDE, SIDE), "INT8"), 8, 0)
    for _ in range(40):
        first, last = (b.emit("SLICE", x, start=(0, 0, row, 0), size=(1, 8, SIDE // 2, SIDE)) for row in (0, SIDE // 2))
        x = b.emit("CONCAT", last, first, axis=2)
    b.graph.outputs.append(convolved(b, x, 5, 1))
    same_bits(b.graph, "ethos-u55-128")


class Shuffling(nn.Module):
    """A unit as users write it, with PyTorch's own shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch = nn.Conv2d(3, 24, 3, 2, 1), nn.Sequential(nn.Conv2d(12, 12, 1), nn.ReLU(), nn.Conv2d(12, 12, 1))
        self.shuffle, self.last = nn.ChannelShuffle(2), nn.Conv2d(24, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(2):
            kept, other = self.shuffle(x).chunk(2, 1)
            x = torch.cat([kept, self.branch(other)], 1)
        return self.last(self.shuffle(x))


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_module(target: str) -> None:
    from ethorch.arm.quantizer import get_symmetric_quantization_config

    torch.manual_seed(0)
    samples = [(torch.randn(1, 3, 16, 16),) for _ in range(2)]
    climb(quantized(Shuffling().eval(), samples, get_symmetric_quantization_config(), target), samples[0], target)
