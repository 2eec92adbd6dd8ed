"""Elementwise operators keep the shape of the convolutions around them, and no bit changes."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from ethorch import EthosUCompileSpec
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.targets.npus import TUNING
from ethorch.tosa.ir import Graph, Value
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.ladder import machine, reference

ROWS, CHANNELS = 12, 24
#: Of INT32 sums, as ``Builder`` scales them.
ONE = float(1 << 20)


def convolved(b: Builder, x: Value, shape: tuple[int, ...], seed: int) -> Value:
    """A linear layer on ``x`` as four axes of ``shape``; its result has two axes."""
    rng = np.random.default_rng(seed)
    acc = b.emit(
        "CONV2D",
        b.reshape(x, (*shape, CHANNELS)),
        b.const(rng.integers(-127, 128, (CHANNELS, 1, 1, CHANNELS)).astype(np.int8)),
        b.const(rng.integers(-900, 900, CHANNELS).astype(np.int32)),
        pad=(0, 0, 0, 0),
        stride=(1, 1),
        dilation=(1, 1),
        input_zp=4,
        weight_zp=0,
    )
    return b.reshape(b.rescale(acc, [0.002 + 1e-5 * k for k in range(CHANNELS)], output_zp=4), (ROWS, CHANNELS))


def added(b: Builder, x: Value, y: Value) -> Value:
    total = b.emit("ADD", b.rescale(x, ONE, input_zp=4, dtype="INT32"), b.rescale(y, 0.7 * ONE, input_zp=4, dtype="INT32"))
    return b.rescale(total, 0.6 / ONE, output_zp=4)


def residual(shape: tuple[int, ...]) -> Graph:
    """Two residual blocks, a table, a sum with a row of constants."""
    b = Builder()
    x = convolved(b, b.input("x", (ROWS, CHANNELS), "INT8"), shape, 1)
    for seed in (2, 3):
        x = added(b, x, convolved(b, x, shape, seed))
    x = b.emit("TABLE", x, b.const(np.arange(127, -129, -1).astype(np.int8)))
    row = b.const(np.random.default_rng(5).integers(-99, 99, (1, CHANNELS)).astype(np.int8))
    b.graph.outputs.append(added(b, x, row))
    b.graph.outputs.append(b.emit("CLAMP", added(b, x, convolved(b, x, shape, 6)), min_val=-90, max_val=90))
    return b.graph


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("shape", [(1, 1, ROWS), (1, ROWS, 1)], ids=str)
def test_residual(shape: tuple[int, ...], target: str) -> None:
    before = residual(shape)
    after = rewrite(copy.deepcopy(before), tuning=TUNING[target.split("-")[1]])
    verify(after)
    ranks = {op.result.rank for op in after.ops if op.name == "ADD"}
    assert ranks == {4}
    codes = [np.random.default_rng(1).integers(-128, 128, (ROWS, CHANNELS)).astype(np.int8)]
    expected = reference(serialize(before), codes)
    for found, wanted in zip(machine(serialize(after), codes, EthosUCompileSpec(target)), expected, strict=True):
        np.testing.assert_array_equal(found.ravel(), wanted.ravel())
        assert np.unique(wanted).size > 30


def test_other_shapes_stay() -> None:
    """A RESHAPE that joins axes is none of these."""
    b = Builder()
    x = b.input("x", (1, 2, 6, 24), "INT8")
    b.graph.outputs.append(b.rescale(b.reshape(x, (12, 24)), 0.5))
    assert [op.name for op in rewrite(b.graph).ops] == ["RESHAPE", "RESCALE"]
