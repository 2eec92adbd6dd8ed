"""Every rewrite rule fires where it should, and never changes a bit."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ethorch import EthosUCompileSpec, vela
from ethorch.limits import FORMS
from ethorch.tosa.builder import Builder
from ethorch.tosa.flatbuffer import serialize
from ethorch.tosa.ir import Graph
from ethorch.tosa.rewrite import rewrite
from tests.ladder import machine, reference, run_compiled

SHAPE = (1, 6, 5, 4)


def table(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, 256).astype(np.int8)


def convolution(b: Builder, x, zp: int):
    weight = b.const(np.random.default_rng(2).integers(-127, 128, (3, 3, 3, x.shape[3])).astype(np.int8))
    acc = b.emit(
        "CONV2D", x, weight, b.const(np.zeros(3, np.int32)), pad=(1, 0, 0, 1), stride=(1, 1), dilation=(1, 1),
        input_zp=zp, weight_zp=0,
    )  # fmt: skip
    return b.rescale(acc, 0.003, output_zp=2)


def reshapes(b, x):
    return b.emit("RESHAPE", b.emit("RESHAPE", b.emit("RESHAPE", x, shape=(30, 4)), shape=(120,)), shape=SHAPE[::-1])


def transposes(b, x):
    return b.emit("TRANSPOSE", b.emit("TRANSPOSE", x, perms=(0, 3, 1, 2)), perms=(0, 1, 3, 2))


def cancelling_transposes(b, x):
    y = b.emit("TRANSPOSE", b.emit("TRANSPOSE", x, perms=(0, 3, 1, 2)), perms=(0, 2, 3, 1))
    return b.emit("CLAMP", y, min_val=-9, max_val=44)


def clamps(b, x):
    return b.emit("CLAMP", b.emit("CLAMP", x, min_val=-100, max_val=30), min_val=-20, max_val=90)


def disjoint_clamps(b, x):
    return b.emit("CLAMP", b.emit("CLAMP", x, min_val=-100, max_val=-30), min_val=20, max_val=90)


def tables(b, x):
    return b.emit("TABLE", b.emit("TABLE", x, b.const(table(0))), b.const(table(1)))


def pad_convolution(b, x):
    return convolution(b, b.emit("PAD", x, padding=(0, 0, 0, 1, 1, 0, 0, 0), pad_const=7), 7)


def pad_with_another_value(b, x):
    return convolution(b, b.emit("PAD", x, padding=(0, 0, 0, 1, 1, 0, 0, 0), pad_const=8), 7)


CASES = {
    reshapes: 1, transposes: 1, cancelling_transposes: 1, clamps: 1, disjoint_clamps: 2, tables: 1, pad_convolution: 2,
    pad_with_another_value: 3,
}  # fmt: skip


def built(*parts) -> Graph:
    b = Builder()
    value = b.input("x", SHAPE, "INT8")
    for part in parts:
        value = part(b, value)
    b.graph.outputs.append(value)
    return b.graph


@pytest.mark.parametrize("part", CASES, ids=lambda part: part.__name__)
def test_rule(part) -> None:
    before, after = built(part), rewrite(built(part))
    after.verify()
    assert len(after.ops) == CASES[part], after.to_text()
    x = np.random.default_rng(3).integers(-128, 128, SHAPE).astype(np.int8)
    np.testing.assert_array_equal(reference(serialize(after), [x])[0], reference(serialize(before), [x])[0])


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("axes", [(0,), (2,), (4,), (1, 3), (0, 2, 4)])
def test_slice_of_five_axes_is_slices_of_three(target: str, axes: tuple[int, ...]) -> None:
    """As it stands, Vela 5.2 dies of some of these on U55 and U65: SLICE, RESHAPE, CONCAT."""
    b = Builder()
    x = b.input("x", (2, 3, 4, 3, 4), "INT8")
    size = tuple(1 if k in axes else extent for k, extent in enumerate(x.shape))
    parts = [b.emit("SLICE", x, start=tuple(first if k in axes else 0 for k in range(5)), size=size) for first in (1, 0)]
    parts = [b.reshape(part, (size[0] * size[1], *size[2:])) for part in parts]
    b.graph.outputs.append(b.emit("CONCAT", *parts, axis=1))
    before, after = serialize(b.graph), rewrite(copy.deepcopy(b.graph))
    after.verify()
    assert [op.result.rank for op in after.ops if op.name == "SLICE"] == [3] * 2 * len(axes)
    codes = [np.random.default_rng(3).integers(-128, 128, x.shape).astype(np.int8)]
    (wanted,) = reference(before, codes)
    np.testing.assert_array_equal(reference(serialize(after), codes)[0], wanted)
    compiled = vela.compile(serialize(after), EthosUCompileSpec(target), timeout_seconds=60)
    (found,) = run_compiled(compiled, codes)
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("axis", range(5))
def test_concat_of_five_axes_is_one_of_four(target: str, axis: int) -> None:
    """As it stands, Vela 5.2 reads wrong rows for some of these: SLICE, RESHAPE, CONCAT."""
    b = Builder()
    x = b.input("x", (2, 3, 4, 6), "INT8")
    cut = max(axis - 1, 0)
    size = tuple(1 if k == cut else extent for k, extent in enumerate(x.shape))
    starts = [tuple(first if k == cut else 0 for k in range(4)) for first in (1, 0)]
    parts = [b.reshape(b.emit("SLICE", x, start=start, size=size), (1, *size)) for start in starts]
    b.graph.outputs.append(b.emit("CONCAT", *parts, axis=axis))
    before, after = serialize(b.graph), rewrite(copy.deepcopy(b.graph))
    after.verify()
    assert max(op.result.rank for op in after.ops if op.name == "CONCAT") == 4
    codes = [np.random.default_rng(3).integers(-128, 128, x.shape).astype(np.int8)]
    (wanted,) = reference(before, codes)
    np.testing.assert_array_equal(reference(serialize(after), codes)[0], wanted)
    (found,) = machine(serialize(after), codes, EthosUCompileSpec(target))
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_tables_pass_transposes_and_meet(target: str) -> None:
    """As it stands, Vela 5.2 loses the second table on U85."""
    b = Builder()
    value = x = b.input("x", (1, 6, 5, 4), "INT8")
    for seed in (0, 1):
        value = b.emit("TRANSPOSE", b.emit("TABLE", value, b.const(table(seed))), perms=(0, 2, 1, 3))
        value = b.reshape(b.reshape(value, (120,)), value.shape)
    b.graph.outputs.append(b.emit("TRANSPOSE", value, perms=(0, 3, 1, 2)))
    before, after = serialize(b.graph), rewrite(copy.deepcopy(b.graph))
    after.verify()
    assert [op.name for op in after.ops if op.name == "TABLE"] == ["TABLE"]
    codes = [np.random.default_rng(3).integers(-128, 128, x.shape).astype(np.int8)]
    (wanted,) = reference(before, codes)
    (found,) = machine(serialize(after), codes, EthosUCompileSpec(target))
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())


def whole(b, dtype="INT8"):
    return b.input("x", (1, 10, 11, 6), dtype)


def cut(b, dtype="INT8"):
    return b.emit("SLICE", whole(b, dtype), start=(0, 1, 2, 1), size=(1, 9, 9, 4))


def beside(b, value):
    return b.emit("CONCAT", b.input("z", (*value.shape[:-1], 3), value.dtype), value, axis=value.rank - 1)


def within(b, value):
    return b.emit("PAD", value, padding=(0, 0) * (value.rank - 2) + (2, 1, 1, 1), pad_const=0)


def constant(b, *shape, dtype=np.int8):
    return b.const(np.random.default_rng(5).integers(-50, 50, shape).astype(dtype))


def convolved(b, x, name, dilation=1, per_channel=1):
    c = x.shape[3]
    shape = (3, 3, c, per_channel) if name == "DEPTHWISE_CONV2D" else (6, 3, 3, c)
    bias = constant(b, c * per_channel if name == "DEPTHWISE_CONV2D" else 6, dtype=np.int32)
    where = {"out_pad": (0, 0, 0, 0)} if name == "TRANSPOSE_CONV2D" else {"pad": (dilation,) * 4, "dilation": (dilation,) * 2}
    value = b.emit(name, x, constant(b, *shape), bias, stride=(1, 1), input_zp=0, weight_zp=0, **where)
    return b.rescale(value, 0.002)


def multiplied(b, x):
    return b.rescale(b.emit("MATMUL", x, b.input("y", (2, x.shape[2], 6), "INT8"), a_zp=0, b_zp=0), 0.01)


def by_constants(b, x):
    return b.rescale(
        b.emit("MUL", b.rescale(x, 1.0, dtype="INT32"), constant(b, 1, 1, 1, x.shape[3], dtype=np.int32), shift=0), 0.03
    )


def summed(b, x, y):
    return b.rescale(b.emit("ADD", b.rescale(x, 2.0**19, dtype="INT32"), b.rescale(y, 2.0**19, dtype="INT32")), 2.0**-20)


#: What Vela 5.2 gets wrong as it stands: (the graph, the families it is wrong on).
APART = {
    "dilated convolution of a slice": (lambda b: convolved(b, cut(b), "CONV2D", dilation=3), "u55 u65 u85"),
    "transposed convolution of a slice": (lambda b: convolved(b, cut(b), "TRANSPOSE_CONV2D"), "u55 u65 u85"),
    "transposed convolution, placed": (lambda b: beside(b, convolved(b, whole(b), "TRANSPOSE_CONV2D")), "u55 u65"),
    "two outputs per channel of a slice": (lambda b: convolved(b, cut(b), "DEPTHWISE_CONV2D", per_channel=2), "u55 u65 u85"),
    "two outputs per channel, placed": (
        lambda b: within(b, convolved(b, whole(b), "DEPTHWISE_CONV2D", dilation=3, per_channel=2)), "u55 u65 u85"),
    "matmul of a slice": (
        lambda b: multiplied(b, b.emit("SLICE", b.input("x", (2, 5, 9), "INT8"), start=(0, 0, 1), size=(2, 5, 8))), "u55 u65"),
    "matmul, reshaped and placed": (
        lambda b: within(b, b.reshape(multiplied(b, b.input("x", (2, 5, 8), "INT8")), (1, 2, 5, 6))), "u55 u65"),
    "times a constant, placed": (lambda b: beside(b, by_constants(b, whole(b))), "u55 u65"),
    "plain integers, placed": (lambda b: beside(b, b.rescale(whole(b, "INT32"), 0.7)), "u55 u65"),
    "plain integers, cut": (lambda b: b.rescale(cut(b, "INT32"), 0.7, dtype="INT16"), "u55 u65"),
    "plain integers side by side": (lambda b: b.rescale(beside(b, whole(b, "INT32")), 0.7), "u55 u65"),
    "joined, rescaled, joined": (lambda b: beside(b, b.rescale(beside(b, whole(b)), 0.7, input_zp=3, output_zp=-5)), "u55 u65 u85"),
    "padded, rescaled, padded": (lambda b: within(b, b.rescale(within(b, whole(b)), 90.7, dtype="INT16")), "u55 u65 u85"),
    "tiled, rescaled, joined": (
        lambda b: beside(b, b.rescale(b.emit("TILE", whole(b), multiples=(1, 1, 2, 1)), 0.7)), "u55 u65 u85"),
    "transposed, clamped, joined": (
        lambda b: beside(b, b.emit("CLAMP", b.emit("TRANSPOSE", whole(b), perms=(0, 3, 1, 2)), min_val=-9, max_val=9)), "u55 u65"),
    "five axes of a slice, tiled": (
        lambda b: b.emit("TILE", b.reshape(cut(b), (1, 9, 1, 9, 4)), multiples=(2, 1, 1, 1, 1)), "u55 u65 u85"),
    "six axes of a slice, broadcast": (
        lambda b: summed(b, b.emit("SLICE", b.input("x", (1, 2, 3, 2, 3, 5), "INT8"), start=(0,) * 5 + (1,),
                                   size=(1, 2, 3, 2, 3, 4)),
                         b.reshape(b.emit("SLICE", b.input("y", (3, 5), "INT8"), start=(0, 1), size=(3, 4)), (1, 1, 1, 1, 3, 4))),
        "u55 u65 u85"),
    "padded convolution of a slice of two pictures": (
        lambda b: convolved(b, b.emit("SLICE", b.input("x", (2, 9, 9, 6), "INT8"), start=(0, 0, 0, 1), size=(2, 9, 9, 4)),
                            "CONV2D"),
        "u55 u65 u85"),
    "sum along the last axis of a slice": (
        lambda b: b.rescale(b.emit("REDUCE_SUM", b.rescale(cut(b), 1.0, dtype="INT32"), axis=3), 0.1), "u55 u65 u85"),
    "maximum of a slice": (lambda b: b.emit("REDUCE_MAX", cut(b), axis=1), "u55 u65 u85"),
    "maximum along the last axis, placed": (lambda b: beside(b, b.emit("REDUCE_MAX", whole(b), axis=3)), "u55 u65 u85"),
    "tiled and widened": (
        lambda b: b.rescale(b.emit("TILE", b.input("x", (96,), "INT8"), multiples=(5,)), 1.0, dtype="INT32"), "u55 u65"),
    "tiled to a long row and widened": (
        lambda b: b.rescale(b.emit("TILE", b.input("x", (9000,), "INT8"), multiples=(9,)), 1.0, dtype="INT32"), "u55 u65"),
    "widened and placed": (lambda b: within(b, b.rescale(whole(b), 0.7, dtype="INT32")), "u55 u65"),
}  # fmt: skip


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("name", APART)
def test_what_loses_offsets_is_kept_apart(name: str, target: str) -> None:
    make, families = APART[name]
    forms = FORMS[target.split("-")[1]]
    b = Builder(forms=forms)
    b.graph.outputs.append(make(b))
    before, after = serialize(b.graph), rewrite(copy.deepcopy(b.graph), forms=forms)
    after.verify()
    if target.split("-")[1] not in families:
        assert len(after.ops) == len(b.graph.ops), "a copy that this family does not need"
    types = {"INT8": np.int8, "INT16": np.int16, "INT32": np.int32}
    codes = [np.random.default_rng(3).integers(-60, 60, v.shape).astype(types[v.dtype]) for v in b.graph.inputs]
    (wanted,) = reference(before, codes)
    (found,) = machine(serialize(after), codes, EthosUCompileSpec(target))
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize(("shape", "other"), [((12,), (3, 4)), ((2, 3, 4), (2, 12)), ((1, 4, 6, 8), (1, 24, 8))])
@pytest.mark.parametrize("name", ["SUB", "MUL"])
def test_squares_of_what_is_rescaled_and_reshaped(name: str, shape: tuple[int, ...], other: tuple[int, ...], target: str) -> None:
    """Vela 5.2 reads one of the operands in the shape before, and writes the result over itself."""
    b = Builder()
    x = b.reshape(b.rescale(b.input("x", shape, "INT8"), 0.5, input_zp=7), other)
    wide = [b.rescale(x, 1.0, dtype="INT32") for _ in range(2)]
    b.graph.outputs.append(b.emit(name, *wide, **({"shift": 0} if name == "MUL" else {})))
    before, after = serialize(b.graph), rewrite(copy.deepcopy(b.graph))
    after.verify()
    codes = [np.random.default_rng(3).integers(-128, 128, shape).astype(np.int8)]
    (wanted,), (found,) = reference(before, codes), machine(serialize(after), codes, EthosUCompileSpec(target))
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
@pytest.mark.parametrize("dtype", ["INT8", "INT16"])
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 48), (1, 32, 48)], ids=["scalar", "channels", "whole"])
def test_constants_of_elementwise_operators_stay_narrow_and_near(shape, name: str, dtype: str, target: str) -> None:
    """A product of codes is one operation; on U55 and U65 a constant that is broadcast is copied out of flash first."""
    forms = FORMS[target.split("-")[1]]
    b = Builder(forms=forms)
    x = b.input("x", (1, 32, 48), dtype)
    kind, zero = (np.int8, 3) if dtype == "INT8" else (np.int16, 0)
    factor = b.const(np.random.default_rng(5).integers(-90, 90, shape).astype(kind))
    units = (1.0, 1.0) if name == "MUL" else (2.0**16, 51_000.0)
    wide = [b.rescale(v, unit, input_zp=zero, dtype="INT32") for v, unit in zip((x, factor), units, strict=True)]
    acc = b.emit(name, *wide, **({"shift": 0} if name == "MUL" else {}))
    b.graph.outputs.append(b.rescale(acc, 0.013 if name == "MUL" else 0.7 * 2.0**-16, output_zp=zero and -2, dtype=dtype))
    before, after = serialize(b.graph), rewrite(copy.deepcopy(b.graph), forms=forms)
    after.verify()
    copies = [op for op in after.ops if op.name == "MAX_POOL2D"]
    assert len(copies) == (shape == (1, 1, 48) and "u85" not in target)
    codes = [np.random.default_rng(3).integers(-128, 128, x.shape).astype(kind)]
    (wanted,) = reference(before, codes)
    compiled = vela.compile(serialize(after), EthosUCompileSpec(target))
    (found,) = run_compiled(compiled, codes)
    np.testing.assert_array_equal(found.ravel(), wanted.ravel())
    if name == "MUL":
        assert len([row for row in compiled.rows() if row.operator != "MaxPool"]) == 1


def test_an_intermediate_that_is_an_output_survives() -> None:
    b = Builder()
    x = b.input("x", SHAPE, "INT8")
    first = b.emit("TABLE", x, b.const(table(0)))
    b.graph.outputs += [b.emit("TABLE", first, b.const(table(1))), first]
    graph = rewrite(copy.deepcopy(b.graph))
    graph.verify()
    assert len(graph.ops) == 2


def test_what_nobody_reads_goes() -> None:
    b = Builder()
    x = b.input("x", SHAPE, "INT8")
    b.emit("TABLE", x, b.const(table(0)))
    b.graph.outputs.append(b.emit("CLAMP", x, min_val=0, max_val=5))
    assert [op.name for op in rewrite(b.graph).ops] == ["CLAMP"]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([transposes, cancelling_transposes, clamps, disjoint_clamps, tables]), min_size=1, max_size=5))
def test_any_sequence_keeps_its_bits(parts) -> None:
    shape_kept = [part for part in parts if part is not transposes]
    before, after = built(*shape_kept, transposes), rewrite(built(*shape_kept, transposes))
    after.verify()
    assert len(after.ops) <= len(before.ops)
    x = np.random.default_rng(4).integers(-128, 128, SHAPE).astype(np.int8)
    np.testing.assert_array_equal(reference(serialize(after), [x])[0], reference(serialize(before), [x])[0])


@pytest.mark.parametrize("dtype", ["INT8", "INT16"])
@pytest.mark.parametrize("shared", ["condition", "first", "second"])
def test_select_of_what_is_reshaped_too(shared: str, dtype: str) -> None:
    """As it stands, Vela 5.2 takes some steps of the SELECT in the other reader's shape; BOOL and SELECT are U85's."""
    b = Builder(forms=FORMS["u85"])
    x, y = b.input("x", (2, 12), dtype), b.input("y", (2, 12), dtype)
    condition = b.emit("GREATER", b.rescale(y, 1.0, dtype="INT32"), b.const(np.zeros((1, 1), np.int32)))
    b.graph.outputs.append(b.emit("SELECT", condition, x, y))
    beside_it = b.reshape({"condition": condition, "first": x, "second": y}[shared], (1, 2, 12, 1))
    b.graph.outputs.append(
        b.emit("LOGICAL_NOT", beside_it) if shared == "condition" else b.emit("REVERSE", beside_it, axis=2)
    )
    before, after = serialize(b.graph), rewrite(copy.deepcopy(b.graph), forms=FORMS["u85"])
    after.verify()
    kind = np.int8 if dtype == "INT8" else np.int16
    codes = [np.random.default_rng(seed).integers(-99, 99, (2, 12)).astype(kind) for seed in (3, 4)]
    for found, wanted in zip(
        machine(serialize(after), codes, EthosUCompileSpec("ethos-u85-256")), reference(before, codes), strict=True
    ):
        np.testing.assert_array_equal(found.ravel(), wanted.ravel())
