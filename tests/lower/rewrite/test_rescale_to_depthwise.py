"""A RESCALE or CLAMP on its own is a depthwise convolution by one: the same bits, wherever it stands."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from ethorch import EthosUCompileSpec
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.targets.npus import TUNING
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.ladder import machine, reference

#: Zero points and scales: the extremes, more than 1, equal, tiny.
SCALES = [(-128, 127, 0.71), (127, -128, 1.93), (0, 0, 1.0), (5, -7, 0.0031), (-3, 9, 100.0)]


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("shape", [(1, 16, 16, 24), (2, 9, 7, 33), (3, 5000), (2, 2, 3, 16, 40), (4097,)], ids=str)
def test_bits(shape: tuple[int, ...], target: str) -> None:
    b = Builder()
    x = b.input("x", shape, "INT8")
    for zero, out, scale in SCALES:
        b.graph.outputs.append(b.rescale(x, scale, input_zp=zero, output_zp=out))
    limits = [(-128, 3), (-3, 127), (5, 5)]
    b.graph.outputs += [b.emit("CLAMP", x, min_val=low, max_val=high) for low, high in limits]
    after = rewrite(copy.deepcopy(b.graph), tuning=TUNING[target.split("-")[1]])
    verify(after)
    assert [op.name for op in after.ops].count("DEPTHWISE_CONV2D") == len(SCALES) + len(limits)
    codes = [np.random.default_rng(1).integers(-128, 128, shape).astype(np.int8)]
    expected = reference(serialize(b.graph), codes)
    for found, wanted in zip(machine(serialize(after), codes, EthosUCompileSpec(target)), expected, strict=True):
        np.testing.assert_array_equal(found.ravel(), wanted.ravel())


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_between_slices_and_concats(target: str) -> None:
    """Parts of a picture, rescaled and put together again, in two pictures and along two axes."""
    for axis, shape in ((3, (2, 12, 16, 48)), (1, (1, 40, 12, 24))):
        b = Builder()
        x = b.input("x", shape, "INT8")
        size = tuple(n // 2 if k == axis else n for k, n in enumerate(shape))
        starts = [tuple(start if k == axis else 0 for k in range(4)) for start in (0, shape[axis] // 2)]
        parts = [b.emit("SLICE", x, start=start, size=size) for start in starts]
        scaled = [b.rescale(part, 0.4 + 0.9 * number, input_zp=3, output_zp=-5) for number, part in enumerate(parts)]
        b.graph.outputs.append(b.emit("CONCAT", *scaled[::-1], axis=axis))
        after = rewrite(copy.deepcopy(b.graph), tuning=TUNING[target.split("-")[1]])
        assert "DEPTHWISE_CONV2D" in [op.name for op in after.ops]
        codes = [np.random.default_rng(1).integers(-128, 128, shape).astype(np.int8)]
        (found,), (wanted,) = machine(serialize(after), codes, EthosUCompileSpec(target)), reference(serialize(b.graph), codes)
        np.testing.assert_array_equal(found.ravel(), wanted.ravel())


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_more_places_than_channels_stay(target: str) -> None:
    b = Builder()
    b.graph.outputs.append(b.rescale(b.input("x", (2, 65_537), "INT8"), 0.7, input_zp=3))
    after = rewrite(copy.deepcopy(b.graph), tuning=TUNING[target.split("-")[1]])
    codes = [np.random.default_rng(1).integers(-128, 128, (2, 65_537)).astype(np.int8)]
    (found,), (wanted,) = machine(serialize(after), codes, EthosUCompileSpec(target)), reference(serialize(b.graph), codes)
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())


def test_a_clamp_that_vela_fuses_stays() -> None:
    b = Builder()
    values = [b.rescale(b.input(name, (1, 16, 16, 16), "INT8"), 1.0, dtype="INT32") for name in "xy"]
    total = b.rescale(b.emit("ADD", *values), 0.5)
    b.graph.outputs.append(b.emit("CLAMP", total, min_val=0, max_val=127))
    for family in ("u55", "u85"):
        assert "DEPTHWISE_CONV2D" not in {op.name for op in rewrite(copy.deepcopy(b.graph), tuning=TUNING[family]).ops}


def test_what_stays() -> None:
    """INT16, unsigned codes at a border, a scale per channel, a handful of elements."""
    b = Builder()
    x, y = b.input("x", (1, 32, 32, 4), "INT8"), b.input("y", (1, 32, 32, 4), "INT16")
    b.graph.outputs += [
        b.rescale(y, 0.5, dtype="INT16"),
        b.rescale(x, [0.5, 0.6, 0.7, 0.8]),
        b.rescale(b.input("z", (1, 4, 4, 8), "INT8"), 0.5),
        b.emit(
            "RESCALE",
            x,
            multiplier=(1 << 30,),
            shift=(30,),
            input_zp=0,
            output_zp=128,
            dtype="INT8",
            per_channel=False,
            input_unsigned=False,
            output_unsigned=True,
        ),
    ]
    for family in ("u55", "u85"):
        assert {op.name for op in rewrite(copy.deepcopy(b.graph), tuning=TUNING[family]).ops} == {"RESCALE"}


@pytest.mark.parametrize(
    ("shape", "folded"), [((1, 48, 48, 64), (1, 48, 192, 16)), ((5, 4, 1000), (1, 5, 250, 16)), ((999, 9), None)]
)
def test_channels_are_folded(shape: tuple[int, ...], folded: tuple[int, ...] | None) -> None:
    """With 16 channels, the convolution has few weights and scales. 999 * 9 is not a multiple of 16."""
    b = Builder()
    b.graph.outputs.append(b.rescale(b.input("x", shape, "INT8"), 0.7, input_zp=3))
    after = rewrite(b.graph, tuning=TUNING["u65"])
    (convolution,) = (op for op in after.ops if op.name == "DEPTHWISE_CONV2D")
    assert convolution.result.shape == (folded or (1, 1, *shape))


def test_operands_of_a_concat_are_not_folded() -> None:
    """Vela could not store a folded operand in the result of the CONCAT."""
    b = Builder()
    parts = [b.rescale(b.input(name, (1, 24, 24, 32), "INT8"), 0.7, input_zp=3) for name in "xy"]
    clamped = b.emit("CLAMP", b.input("z", (1, 24, 24, 32), "INT8"), min_val=0, max_val=99)
    b.graph.outputs.append(b.emit("CONCAT", *parts, clamped, axis=2))
    after = rewrite(b.graph, tuning=TUNING["u55"])
    shapes = [op.result.shape for op in after.ops if op.name == "DEPTHWISE_CONV2D"]
    assert shapes == [(1, 24, 24, 32)] * 2


def test_tables_on_u85() -> None:
    """A TABLE of a sum is fused with the sum. One of an input, or of a sum with other readers, would be a pool."""
    b = Builder(tuning=TUNING["u85"])
    x = b.input("x", (1, 16, 16, 24), "INT8")
    wide = b.rescale(x, 1.0, dtype="INT32")
    total = b.rescale(b.emit("ADD", wide, wide), 0.5)
    reverse = b.const(np.arange(-128, 128)[::-1].astype(np.int8))
    for value in (x, total, total, b.rescale(b.emit("MUL", wide, wide, shift=0), 0.01)):
        b.graph.outputs.append(b.emit("TABLE", value, reverse))
    after = rewrite(copy.deepcopy(b.graph), tuning=TUNING["u85"])
    assert [op.name for op in after.ops].count("DEPTHWISE_CONV2D") == 3
    codes = [np.random.default_rng(1).integers(-128, 128, x.shape).astype(np.int8)]
    expected = reference(serialize(b.graph), codes)
    for found, wanted in zip(machine(serialize(after), codes, EthosUCompileSpec("ethos-u85-256")), expected, strict=True):
        np.testing.assert_array_equal(found.ravel(), wanted.ravel())
