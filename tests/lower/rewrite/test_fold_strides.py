"""A strided convolution of few channels reads several places as channels of one, and no bit changes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from ethorch import EthosUCompileSpec
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.targets.npus import TUNING
from ethorch.tosa.ir import Graph, Op
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.ladder import machine, reference

#: (input NCHW, channels of the result, kernel, stride, padding top bottom left right, dtype): all fold on u55.
CASES = {
    "a picture": ((1, 3, 16, 24), 16, (3, 3), (2, 2), (1, 0, 1, 0), "INT8"),
    "a batch": ((2, 3, 16, 8), 16, (3, 3), (2, 2), (1, 0, 1, 0), "INT8"),
    "a large kernel": ((1, 3, 20, 16), 32, (7, 7), (2, 2), (3, 2, 3, 2), "INT8"),
    "no padding": ((1, 3, 17, 18), 24, (4, 4), (1, 2), (0, 0, 0, 0), "INT8"),
    "behind only": ((1, 3, 16, 16), 16, (3, 3), (2, 2), (0, 1, 0, 1), "INT8"),
    "one channel": ((1, 1, 14, 10), 16, (10, 4), (2, 2), (4, 4, 1, 1), "INT8"),
    "four channels": ((2, 4, 8, 12), 8, (5, 5), (2, 2), (2, 1, 2, 1), "INT8"),
    "stride 3": ((1, 1, 12, 15), 32, (5, 5), (3, 3), (1, 1, 1, 1), "INT8"),
    "two strides": ((2, 2, 12, 8), 32, (5, 5), (3, 2), (1, 1, 2, 1), "INT8"),
    "int16": ((1, 3, 16, 16), 32, (3, 3), (2, 2), (1, 0, 1, 0), "INT16"),
    "int16 a batch": ((2, 2, 8, 8), 48, (5, 3), (2, 2), (2, 1, 1, 0), "INT16"),
    "padding as wide as a fold": ((1, 2, 12, 12), 32, (5, 5), (2, 2), (4, 3, 4, 3), "INT8"),
}


def strided(case: tuple[Any, ...], crop: bool = False) -> Graph:
    """A CONV2D with random weights on the case's input brought to NHWC; with ``crop``, on all but its last row and column."""
    shape, outputs, kernel, stride, pad, dtype = case
    rng, b = np.random.default_rng(1), Builder()
    x = b.emit("TRANSPOSE", b.input("x", shape, dtype), perms=(0, 2, 3, 1))
    if crop:
        n, h, w, c = x.shape
        x = b.emit("SLICE", x, start=(0, 0, 0, 0), size=(n, h - 1, w - 1, c))
    zero = 7 if dtype == "INT8" else 0
    bias = rng.integers(-900, 900, outputs)
    acc = b.emit(
        "CONV2D",
        x,
        b.const(rng.integers(-127, 128, (outputs, *kernel, shape[1])).astype(np.int8)),
        b.const(bias.astype(np.int32)) if dtype == "INT8" else b.const(bias, "INT48"),
        pad=pad,
        stride=stride,
        dilation=(1, 1),
        input_zp=zero,
        weight_zp=0,
    )
    scale = 0.003 if dtype == "INT8" else 0.006
    b.graph.outputs.append(b.rescale(acc, [scale + 1e-5 * k for k in range(outputs)], output_zp=zero, dtype=dtype))
    return b.graph


def convolution(graph: Graph) -> Op:
    return next(op for op in graph.ops if op.name == "CONV2D")


def same_bits(before: Graph, target: str) -> Graph:
    """``before`` rewritten for the target, after the NPU machine and the reference model have agreed about it."""
    after = rewrite(copy.deepcopy(before), tuning=TUNING[target.split("-")[1]])
    verify(after)
    low = -128 if before.inputs[0].dtype == "INT8" else -32768
    codes = [np.random.default_rng(3).integers(low, -low, before.inputs[0].shape).astype(before.inputs[0].dtype.lower())]
    (wanted,), (found,) = reference(serialize(before), codes), machine(serialize(after), codes, EthosUCompileSpec(target))
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())
    assert np.unique(wanted).size > 50  # of saturated codes alone nothing would follow
    return after


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
@pytest.mark.parametrize("case", CASES)
def test_bits(case: str, target: str) -> None:
    after = same_bits(strided(CASES[case]), target)
    if target == "ethos-u55-128":
        assert convolution(after).attrs["stride"][1] == 1


@pytest.mark.parametrize("case", sorted(set(CASES) - {"no padding", "one channel", "int16 a batch"}))
def test_squares(case: str) -> None:
    """On U85 pictures that are large enough."""
    (n, channels, height, width), *rest = CASES[case]
    times = 5 if rest[-1] == "INT8" else 10
    after = same_bits(strided(((n, channels, height * times, width * times), *rest)), "ethos-u85-256")
    assert convolution(after).attrs["stride"] == (1, 1)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_crop(target: str) -> None:
    """Rows and columns that no window reads are no obstacle where columns fold; squares are for whole pictures."""
    case = ((1, 3, 16, 16), 16, (3, 3), (2, 2), (0, 0, 0, 0), "INT8")
    stride = convolution(same_bits(strided(case, crop=True), target)).attrs["stride"]
    assert stride == ((2, 1) if "u55" in target else (2, 2))


def of(shape: tuple[int, ...], outputs: int, kernel: tuple[int, int], stride: tuple[int, int]) -> tuple[int, int]:
    """The stride that is left on u55."""
    graph = strided((shape, outputs, kernel, stride, (0, 0, 0, 0), "INT8"))
    return convolution(rewrite(graph, tuning=TUNING["u55"])).attrs["stride"]


def test_not_worth_it() -> None:
    """Many channels, odd columns, too few results, or a kernel that has no fewer taps when folded."""
    assert of((1, 3, 9, 16), 32, (3, 2), (2, 2)) == (2, 1)
    assert of((1, 5, 9, 16), 32, (3, 2), (2, 2)) == (2, 2)
    assert of((1, 3, 9, 17), 32, (3, 3), (2, 2)) == (2, 2)
    assert of((1, 3, 9, 16), 16, (3, 2), (2, 2)) == (2, 2)
    assert of((1, 3, 9, 16), 64, (1, 2), (2, 2)) == (2, 2)


def test_padding_of_one_channel_reaches_the_convolution() -> None:
    """NCHW to NHWC of one channel is a RESHAPE: a PAD before it is as good as one behind."""
    b = Builder()
    x = b.input("x", (1, 1, 9, 10), "INT8")
    padded = b.emit("PAD", x, padding=(0, 0, 0, 0, 2, 3, 1, 1), pad_const=5)
    rng = np.random.default_rng(1)
    acc = b.emit(
        "CONV2D",
        b.reshape(padded, (1, 14, 12, 1)),
        b.const(rng.integers(-127, 128, (32, 4, 4, 1)).astype(np.int8)),
        b.const(np.zeros(32, np.int32)),
        pad=(0, 0, 0, 0),
        stride=(2, 2),
        dilation=(1, 1),
        input_zp=5,
        weight_zp=0,
    )
    b.graph.outputs.append(b.rescale(acc, 0.005))
    for target in ("ethos-u55-128", "ethos-u85-256"):
        assert "PAD" not in [op.name for op in same_bits(b.graph, target).ops]
