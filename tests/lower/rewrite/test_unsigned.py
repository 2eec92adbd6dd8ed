"""uint8 at the ends of a graph: RESCALEs that read and give it, by themselves and merged, over every code."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from ethorch import EthosUCompileSpec
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.targets.npus import TUNING
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from tests.helpers.ladder import machine, reference

TARGETS = ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"]
EVERY_CODE = np.arange(256, dtype=np.uint8).reshape(1, 8, 8, 4)
#: Zero points of int8 before and behind, and the scale: the extremes, more than 1, equal, ties, tiny.
SCALES = [(-128, 127, 0.71), (127, -128, 1.93), (0, 0, 1.0), (5, -7, 0.5), (-3, 9, 100.0), (-128, -128, 0.0031)]


def checked(b: Builder, target: str, codes: np.ndarray = EVERY_CODE) -> tuple[np.ndarray, Graph]:
    """The reference model's result as uint8, the same as the simulator's after rewriting; and what rewriting left."""
    after = rewrite(copy.deepcopy(b.graph), tuning=TUNING[target.split("-")[1]])
    (wanted,) = reference(serialize(b.graph), [codes.view(np.int8)])
    (found,) = machine(serialize(after), [codes.view(np.int8)], EthosUCompileSpec(target))
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())
    return np.asarray(wanted).view(np.uint8), after


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(256,), (), (3, 5, 7, 9), (2, 3, 4, 5, 6), (1, 70_000)], ids=str)
def test_uint8_and_int8_are_128_apart(shape: tuple[int, ...], target: str) -> None:
    b = Builder()
    b.graph.outputs.append(b.from_unsigned(b.input("x", shape, "INT8")))
    codes = np.resize(EVERY_CODE.ravel(), shape)
    found, _ = checked(b, target, codes)
    np.testing.assert_array_equal(found.view(np.int8).astype(int), codes.astype(int) - 128)
    b = Builder()
    b.graph.outputs.append(b.to_unsigned(b.input("x", shape, "INT8")))
    found, _ = checked(b, target, codes)
    np.testing.assert_array_equal(found.astype(int), codes.view(np.int8).astype(int) + 128)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("zero", "out", "scale"), SCALES)
def test_requantized_uint8_is_one_rescale(zero: int, out: int, scale: float, target: str) -> None:
    """Half away from zero, as TOSA rounds, is what the float way gives, or on a tie the other side of it."""
    for unsigned_input in (True, False):
        b = Builder()
        x = b.input("x", EVERY_CODE.shape, "INT8")
        if unsigned_input:
            y = b.rescale(b.from_unsigned(x), scale, input_zp=zero, output_zp=out)
        else:
            y = b.to_unsigned(b.rescale(x, scale, input_zp=zero, output_zp=out))
        b.graph.outputs.append(y)
        found, after = checked(b, target)
        if scale != 1:
            assert [op.name for op in after.ops].count("RESCALE") == 1 and "DEPTHWISE_CONV2D" not in {op.name for op in after.ops}
        codes = EVERY_CODE.astype(float) - 128 if unsigned_input else EVERY_CODE.view(np.int8).astype(float)
        real = (codes - zero) * scale
        wanted = np.clip(np.rint(real) + out, -128, 127)
        got = found.view(np.int8).astype(float) if unsigned_input else found.astype(float) - 128
        tie = np.abs(real - np.floor(real) - 0.5) < 1e-6
        np.testing.assert_array_equal(got[~tie], wanted[~tie])
        assert np.abs(got - wanted).max() <= 1


@pytest.mark.parametrize("target", TARGETS)
def test_each_reader_of_uint8_rescales_it(target: str) -> None:
    """Two scales of one input, joined: neither goes over the other's rounding, and the result is uint8 again."""
    b = Builder()
    x = b.from_unsigned(b.input("x", EVERY_CODE.shape, "INT8"))
    parts = [b.rescale(x, scale, input_zp=3, output_zp=-5) for scale in (0.4, 1.7)]
    b.graph.outputs.append(b.to_unsigned(b.emit("CONCAT", *parts, x, axis=3)))
    found, _ = checked(b, target)
    np.testing.assert_array_equal(found[..., 8:], EVERY_CODE)


def test_a_rescale_that_others_read_too_is_not_merged() -> None:
    b = Builder()
    y = b.rescale(b.input("x", EVERY_CODE.shape, "INT8"), 0.3)
    b.graph.outputs += [b.to_unsigned(y), b.clamp(y, -5, 5)]
    after = rewrite(b.graph)
    assert [op.name for op in after.ops].count("RESCALE") == 2
