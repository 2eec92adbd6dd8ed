"""The interpreter of TOSA against the reference model, by operator; whole graphs are in ``tests/lower/ops/test_samples.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ethorch.lower.builder.builder import Builder
from ethorch.tosa import interpreter
from ethorch.tosa.ir import DTYPES, Graph, Value
from ethorch.tosa.opset import OPSET
from ethorch.tosa.serialize import serialize
from tests.helpers.tosa_runs import reference

pytestmark = pytest.mark.core

#: Operators that TOSA has for floats only, or that no lowering emits for integers.
FLOATS_ONLY = {
    "CEIL", "COS", "ERF", "EXP", "FLOOR", "LOG", "POW", "RECIPROCAL", "REDUCE_PRODUCT", "RSQRT", "SIGMOID", "SIN", "TANH",
}  # fmt: skip
WINDOW = {"pad": (1, 0, 2, 1), "stride": (1, 1), "dilation": (1, 1), "input_zp": -3, "weight_zp": 0}

Case = Callable[[Builder, np.random.Generator], Value]
CASES: list[tuple[str, Case]] = []


def case(*names: str) -> Callable[[Case], Case]:
    def register(make: Case) -> Case:
        CASES.extend((name, make) for name in names)
        return make

    return register


def drawn(rng: np.random.Generator, dtype: str, *shape: int, low: int | None = None, high: int | None = None) -> np.ndarray:
    """Random numbers over the range of the dtype, its ends among them."""
    if dtype == "BOOL":
        return rng.integers(0, 2, shape).astype(bool)
    info = np.iinfo(DTYPES[dtype])
    bounds = (int(info.min) if low is None else low, int(info.max) if high is None else high)
    found = rng.integers(bounds[0], bounds[1] + 1, shape).astype(DTYPES[dtype])
    found.ravel()[:2] = bounds[: found.size]
    return found


def constant(
    b: Builder, rng: np.random.Generator, dtype: str, *shape: int, low: int | None = None, high: int | None = None
) -> Value:
    return b.const(drawn(rng, dtype, *shape, low=low, high=high), dtype)


def compared(b: Builder, result: Value | Sequence[Value], inputs: list[np.ndarray]) -> None:
    b.graph.outputs += [result] if isinstance(result, Value) else result
    for wanted, found in zip(reference(serialize(b.graph), inputs), interpreter.run(b.graph, inputs), strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(found, wanted)


def convolution(name: str, weights: tuple[int, ...], *shape: int, dtype: str = "INT8", **attrs: object) -> None:
    for seed in range(3):
        rng, b = np.random.default_rng(seed), Builder()
        channels = weights[0] if name != "DEPTHWISE_CONV2D" else weights[2] * weights[3]
        bias = constant(b, rng, "INT32" if dtype == "INT8" else "INT48", channels, low=-(2**20), high=2**20)
        x = b.input("x", shape, dtype)
        zero = {"input_zp": 0} if dtype == "INT16" else {}
        given = {**WINDOW, **attrs, **zero}
        if name == "TRANSPOSE_CONV2D":
            given = {key: given[key] for key in ("out_pad", "stride", "input_zp", "weight_zp")}
        result = b.emit(name, x, constant(b, rng, "INT8", *weights), bias, **given)
        compared(b, b.rescale(result, 0.0007) if dtype == "INT16" else result, [drawn(rng, dtype, *shape)])


@pytest.mark.parametrize("dtype", ["INT8", "INT16"])
def test_convolutions(dtype: str) -> None:
    convolution("CONV2D", (5, 3, 2, 7), 1, 9, 8, 7, dtype=dtype)
    convolution("CONV2D", (5, 3, 3, 4), 2, 10, 9, 4, dtype=dtype, stride=(2, 1), dilation=(1, 2), pad=(1, 0, 3, 2))
    convolution("CONV2D", (6, 1, 1, 3000), 1, 2, 2, 3000, dtype=dtype, pad=(0, 0, 0, 0))  # sums beyond what float32 holds
    convolution("DEPTHWISE_CONV2D", (3, 2, 5, 3), 1, 9, 8, 5, dtype=dtype)
    convolution("DEPTHWISE_CONV2D", (3, 3, 4, 1), 1, 10, 9, 4, dtype=dtype, stride=(2, 1), dilation=(1, 2), pad=(1, 0, 3, 2))
    three = {"pad": (1, 1, 0, 1, 1, 0), "stride": (1, 2, 1), "dilation": (1, 1, 2)}
    convolution("CONV3D", (3, 2, 3, 2, 4), 1, 4, 6, 7, 4, dtype=dtype, **three)
    convolution("TRANSPOSE_CONV2D", (3, 3, 2, 5), 1, 4, 5, 5, dtype=dtype, out_pad=(-1, 2, 0, -1), stride=(2, 3))


@pytest.mark.parametrize("dtype", ["INT8", "INT16"])
def test_products_of_two_inputs(dtype: str) -> None:
    rng, b = np.random.default_rng(0), Builder()
    x, y = b.input("x", (3, 5, 700), dtype), b.input("y", (3, 700, 4), dtype)
    zeros = {"a_zp": 5, "b_zp": -7} if dtype == "INT8" else {"a_zp": 0, "b_zp": 0}
    result = b.emit("MATMUL", x, y, **zeros)
    compared(b, b.rescale(result, 1e-5) if dtype == "INT16" else result, [drawn(rng, v.dtype, *v.shape) for v in (x, y)])


@pytest.mark.parametrize("dtype", ["INT8", "INT16"])
def test_windows(dtype: str) -> None:
    rng, b = np.random.default_rng(0), Builder()
    x = b.input("x", (2, 9, 8, 5), dtype)
    zero = 9 if dtype == "INT8" else 0
    pool = {"kernel": (3, 2), "stride": (2, 3), "pad": (1, 1, 0, 0)}
    found = [
        b.emit("AVG_POOL2D", x, **pool, input_zp=zero, output_zp=-zero),
        b.emit("MAX_POOL2D", x, **pool),
        b.emit("RESIZE", x, scale=(2, 1, 4, 2), offset=(0, 0), border=(0, 0), mode="NEAREST"),
        b.emit("RESIZE", x, scale=(4, 2, 6, 3), offset=(-1, 2), border=(1, 5), mode="NEAREST"),
        b.rescale(b.emit("RESIZE", x, scale=(4, 2, 6, 3), offset=(-1, 2), border=(1, 5), mode="BILINEAR"), 1 / 24),
    ]
    compared(b, found, [drawn(rng, dtype, 2, 9, 8, 5)])


def element_by_element(b: Builder, x: Value, y: Value, small: Value) -> list[Value]:
    results = [b.emit(name, x, y) for name in ("MAXIMUM", "MINIMUM", "EQUAL", "GREATER", "GREATER_EQUAL") if x.dtype == "INT32"]
    results += [b.emit(f"BITWISE_{name}", x, y) for name in ("AND", "OR", "XOR")]
    results += [b.emit("LOGICAL_LEFT_SHIFT", x, small), b.emit("LOGICAL_RIGHT_SHIFT", x, small)]
    results += [b.emit("ARITHMETIC_RIGHT_SHIFT", x, small, round=rounds) for rounds in (False, True)]
    results += [b.emit("BITWISE_NOT", x), b.emit("IDENTITY", x)]
    if x.dtype == "INT32":
        results += [b.emit("CLZ", x), b.emit("REDUCE_MAX", x, axis=1), b.emit("REDUCE_MIN", x, axis=0)]
    else:
        results += [b.emit("NEGATE", x, input_zp=3 * (x.dtype == "INT8"), output_zp=-5 * (x.dtype == "INT8"))]
        results += [b.emit("CLAMP", x, min_val=-9, max_val=30), b.emit("MUL", x, y, shift=0), b.emit("ARGMAX", x, axis=1)]
        results += [b.emit("CAST", x, dtype=dtype) for dtype in ("INT8", "INT16", "INT32", "BOOL") if dtype != x.dtype]
    return results


@pytest.mark.parametrize("dtype", ["INT8", "INT16", "INT32"])
def test_numbers_element_by_element(dtype: str) -> None:
    rng, b = np.random.default_rng(0), Builder()
    x, y, small = (b.input(name, shape, dtype) for name, shape in (("x", (40, 30)), ("y", (40, 30)), ("n", (40, 1))))
    highest = 8 * np.dtype(DTYPES[dtype]).itemsize - 1
    shifts = drawn(rng, dtype, 40, 1, low=0, high=highest)
    compared(b, element_by_element(b, x, y, small), [drawn(rng, dtype, 40, 30), drawn(rng, dtype, 40, 30), shifts])


@pytest.mark.parametrize("amount", [-1, 32])
@pytest.mark.parametrize("name", ["LOGICAL_LEFT_SHIFT", "LOGICAL_RIGHT_SHIFT", "ARITHMETIC_RIGHT_SHIFT"])
def test_shift_amounts_out_of_range_have_no_result(name: str, amount: int) -> None:
    b = Builder()
    x, n = b.input("x", (3,), "INT32"), b.input("n", (3,), "INT32")
    b.graph.outputs.append(b.emit(name, x, n, **({"round": False} if name.startswith("ARITHMETIC") else {})))
    with pytest.raises(ArithmeticError, match=rf"shift amounts in 0\.\.31, got .*{amount}"):
        interpreter.run(b.graph, [np.ones(3, np.int32), np.array([0, amount, 5], np.int32)])


def test_arithmetic_of_int32() -> None:
    rng, b = np.random.default_rng(0), Builder()
    x, y, d = (b.input(name, (40, 30), "INT32") for name in ("x", "y", "d"))
    results = [b.emit("ADD", x, y), b.emit("SUB", x, y), b.emit("INTDIV", x, d), b.emit("ABS", x)]
    results += [b.emit("MUL", x, y, shift=shift) for shift in (0, 13)] + [b.emit("REDUCE_SUM", x, axis=axis) for axis in (0, 1)]
    results += [b.emit("NEGATE", x, input_zp=0, output_zp=0), b.emit("CAST", x, dtype="INT8"), b.emit("CAST", x, dtype="BOOL")]
    given = [drawn(rng, "INT32", 40, 30, low=-30000, high=30000) for _ in range(2)]
    compared(b, results, [*given, drawn(rng, "INT32", 40, 30, low=1, high=90) * rng.choice([-1, 1], (40, 30)).astype(np.int32)])


def test_truth_values() -> None:
    rng, b = np.random.default_rng(0), Builder()
    x, y = b.input("x", (20, 30), "BOOL"), b.input("y", (20, 30), "BOOL")
    numbers = b.input("numbers", (20, 30), "INT8")
    results = [b.emit(f"LOGICAL_{name}", x, y) for name in ("AND", "OR", "XOR")] + [b.emit("LOGICAL_NOT", x)]
    results += [b.emit(name, x, axis=1) for name in ("REDUCE_ALL", "REDUCE_ANY")]
    results += [b.emit("SELECT", x, numbers, constant(b, rng, "INT8", 1, 1)), b.emit("CAST", x, dtype="INT8")]
    compared(b, results, [drawn(rng, v.dtype, *v.shape) for v in (x, y, numbers)])


@pytest.mark.parametrize("source", ["INT8", "INT16", "INT32"])
@pytest.mark.parametrize("target", ["INT8", "INT16", "INT32"])
def test_rescales(source: str, target: str) -> None:
    rng, b = np.random.default_rng(0), Builder()
    x = b.input("x", (40, 30), source)
    zeros = {"input_zp": 4 if source == "INT8" else 0, "output_zp": -6 if target == "INT8" else 0, "dtype": target}
    results = [b.rescale(x, scale, **zeros) for scale in (0.37, 1.0, 3e-5, 0.9999)]
    results += [b.rescale(x, rng.uniform(1e-4, 0.9, 30).tolist(), **zeros)]
    if source == target == "INT8":
        results += [b.from_unsigned(x), b.to_unsigned(x)]
    bound = 2**28 if source == "INT32" else np.iinfo(DTYPES[source]).max
    compared(b, results, [drawn(rng, source, 40, 30, low=-bound, high=bound)])


def test_a_number_of_rank_0() -> None:
    b = Builder()
    x = b.input("x", (), "INT32")
    found = b.rescale(x, 0.25, output_zp=3)
    compared(b, [found, b.emit("ADD", x, x), b.emit("CLAMP", found, min_val=-5, max_val=9)], [np.array(90, np.int32)])


def test_tables() -> None:
    rng, b = np.random.default_rng(0), Builder()
    x, y = b.input("x", (1, 256), "INT8"), b.input("y", (4, 900), "INT16")
    wide = np.cumsum(rng.integers(-60, 61, 513)).astype(np.int16)
    results = [b.emit("TABLE", x, constant(b, rng, "INT8", 256)), b.emit("TABLE", y, b.const(wide, "INT16"))]
    compared(b, results, [np.arange(-128, 128, dtype=np.int8)[None], drawn(rng, "INT16", 4, 900)])


@pytest.mark.parametrize("dtype", ["INT8", "INT16", "INT32"])
def test_moves(dtype: str) -> None:
    rng, b = np.random.default_rng(0), Builder()
    x, indices, rows = b.input("x", (2, 6, 5), dtype), b.input("i", (2, 4), "INT32"), b.input("r", (2, 4, 5), dtype)
    results = [
        b.emit("RESHAPE", x, shape=(5, 12)),
        b.emit("TRANSPOSE", x, perms=(2, 0, 1)),
        b.emit("CONCAT", x, x, axis=1),
        b.emit("SLICE", x, start=(0, 2, 1), size=(2, 3, 4)),
        b.emit("PAD", x, padding=(0, 0, 1, 2, 3, 0), pad_const=-7),
        b.emit("TILE", x, multiples=(2, 1, 3)),
        b.emit("REVERSE", x, axis=1),
        b.emit("GATHER", x, indices),
        b.emit("SCATTER", x, indices, rows),
    ]
    unique = np.stack([rng.permutation(6)[:4] for _ in range(2)]).astype(np.int32)
    compared(b, results, [drawn(rng, dtype, 2, 6, 5), unique, drawn(rng, dtype, 2, 4, 5)])


def test_control_flow() -> None:
    """The branch that is taken, and a loop that doubles until 100."""
    graph = Graph()
    condition, x = Value("c", (1,), "BOOL"), Value("x", (1,), "INT32")
    graph.inputs += [condition, x]

    def region(name: str, emit: Callable[[Builder, Value], Value]) -> Graph:
        b = Builder()
        b.graph.name = name
        b.graph.outputs.append(emit(b, b.input(f"{name}_x", (1,), "INT32")))
        for op in b.graph.ops:
            op.result.name = f"{name}_{op.result.name}"
        return b.graph

    def number(b: Builder, value: int) -> Value:
        return b.const(np.array([value], np.int32))

    b = Builder()
    b.graph = graph
    branches = {
        "then_graph": region("then", lambda b, v: b.emit("ADD", v, number(b, 3))),
        "else_graph": region("else", lambda b, v: b.emit("SUB", v, number(b, 5))),
    }
    chosen = b.emit("COND_IF", condition, x, **branches)
    loop = {
        "cond_graph": region("cond", lambda b, v: b.emit("GREATER", number(b, 100), v)),
        "body_graph": region("body", lambda b, v: b.emit("ADD", v, v)),
    }
    b.graph.outputs += [chosen, b.emit("WHILE_LOOP", x, **loop)]
    for taken in (True, False):
        for start in (7, 200):
            inputs = [np.array([taken]), np.array([start], np.int32)]
            wanted = [np.array([start + 3 if taken else start - 5]), np.array([112 if start == 7 else 200])]
            for one, two, three in zip(wanted, reference(serialize(graph), inputs), interpreter.run(graph, inputs), strict=True):
                np.testing.assert_array_equal(two, one)
                np.testing.assert_array_equal(three, one)


def test_every_operator_of_integers_has_a_meaning() -> None:
    assert {*interpreter.MEANING, "COND_IF", "WHILE_LOOP"} == set(OPSET) - FLOATS_ONLY
