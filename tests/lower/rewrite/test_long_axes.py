"""Operators with an axis, or a product of axes, of 65,536 places and more: the registers of the NPU count them in 16 bits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from ethorch import EthosUCompileSpec, vela
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.support.errors import Unsupported, VelaError
from ethorch.targets.npus import TARGETS
from ethorch.tosa.ir import Value
from ethorch.tosa.serialize import serialize
from ethorch.vela.delegate import builder_for
from tests.helpers.tosa_runs import reference, run_compiled
from tests.lower.rewrite.vela_bug_makers import int32
from tests.lower.rewrite.vela_bug_views import in_range

Step = Callable[[Builder, Value], Value]
Shape = tuple[int, ...]
LENGTHS = (65_536, 65_537, 70_001, 131_073)
WINDOW = {"stride": (1, 1), "input_zp": 0, "weight_zp": 0}


def numbers(b: Builder, *shape: int, dtype: type[np.generic] = np.int8) -> Value:
    return b.const(np.random.default_rng(5).integers(-90, 100, shape).astype(dtype))


def binary(name: str, other: Callable[[Shape], Shape]) -> Step:
    """``name`` of a value and of another in the shape ``other``, both of INT8."""

    def step(b: Builder, x: Value) -> Value:
        y = b.input("y", other(x.shape), "INT8")
        made = b.emit(name, int32(b, x), int32(b, y), **({"shift": 0} if name == "MUL" else {}))
        return made if made.dtype == "BOOL" else b.rescale(made, 0.01)

    return step


def alike(shape: Shape) -> Shape:
    return shape


def a_row(shape: Shape) -> Shape:
    return (*(1 for _ in shape[:-1]), shape[-1])


def a_column(shape: Shape) -> Shape:
    return (*shape[:-1], 1)


def select(b: Builder, x: Value) -> Value:
    return b.emit("SELECT", b.input("c", x.shape, "BOOL"), x, b.input("y", x.shape, "INT8"))


def reduced(name: str) -> Callable[[int], Step]:
    def along(axis: int) -> Step:
        if name == "REDUCE_SUM":
            return lambda b, x: b.rescale(b.emit(name, int32(b, x), axis=axis), 1e-4)
        return lambda b, x: b.emit(name, x, axis=axis)

    return along


def windows(name: str, kernel: tuple[int, int], pad: int = 0) -> Step:
    where = {**WINDOW, "pad": (0, pad, 0, pad)}

    def step(b: Builder, x: Value) -> Value:
        c = x.shape[-1]
        if name in ("MAX_POOL2D", "AVG_POOL2D"):
            zero = {"input_zp": 0, "output_zp": 0} if name == "AVG_POOL2D" else {}
            return b.emit(name, x, kernel=kernel, stride=where["stride"], pad=where["pad"], **zero)
        if name == "CONV2D":
            acc = b.emit(name, x, numbers(b, 3, *kernel, c), numbers(b, 3, dtype=np.int32), dilation=(1, 1), **where)
        else:
            acc = b.emit(name, x, numbers(b, *kernel, c, 1), numbers(b, c, dtype=np.int32), dilation=(1, 1), **where)
        return b.rescale(acc, 0.01)

    return step


def matmul(b: Builder, x: Value) -> Value:
    acc = b.emit("MATMUL", x, b.input("y", (x.shape[0], x.shape[2], 3), "INT8"), a_zp=0, b_zp=0)
    return b.rescale(acc, 0.01 / math.sqrt(x.shape[2]))


def matmul_of_turned(b: Builder, x: Value) -> Value:
    acc = b.emit(
        "MATMUL", b.input("y", (x.shape[0], 3, x.shape[2]), "INT8"), b.emit("TRANSPOSE", x, perms=(0, 2, 1)), a_zp=0, b_zp=0
    )
    return b.rescale(acc, 0.01)


def gathered(b: Builder, x: Value) -> Value:
    """Each row of x, by an index that is computed."""
    indices = in_range(b, b.input("i", x.shape[:2], "INT32"), 1 << (x.shape[1].bit_length() - 1))
    return b.emit("GATHER", x, indices)


def pad(b: Builder, x: Value) -> Value:
    return b.emit("PAD", x, padding=(0, 0) * (x.rank - 2) + (2, 1, 1, 1), pad_const=0)


def cut(b: Builder, x: Value) -> Value:
    start = tuple(1 if extent > 3 else 0 for extent in x.shape)
    return b.emit("SLICE", x, start=start, size=tuple(n - 2 * s for n, s in zip(x.shape, start, strict=True)))


def table(b: Builder, x: Value) -> Value:
    return b.emit("TABLE", x, numbers(b, 256))


ANYWHERE: dict[str, Step] = {
    "clamp": lambda b, x: b.emit("CLAMP", x, min_val=-50, max_val=60), "rescale": lambda b, x: b.rescale(x, 0.7),
    "widen": lambda b, x: b.rescale(x, 3.7, dtype="INT16"), "table": table,
    "negate": lambda b, x: b.emit("NEGATE", x, input_zp=0, output_zp=0),
    "reverse first": lambda b, x: b.emit("REVERSE", x, axis=0), "reverse last": lambda b, x: b.emit("REVERSE", x, axis=x.rank - 1),
    **{f"{name} {other.__name__}": binary(name, other) for name in ("ADD", "MUL", "MAXIMUM") for other in (alike, a_row, a_column)},
    "greater": binary("GREATER", alike), "select": select, "pad": pad, "cut": cut,
    "joined": lambda b, x: b.emit("CONCAT", x, b.input("y", x.shape, "INT8"), axis=x.rank - 1),
    "joined in front": lambda b, x: b.emit("CONCAT", x, b.input("y", x.shape, "INT8"), axis=0),
    "tiled": lambda b, x: b.emit("TILE", x, multiples=(*(1 for _ in x.shape[1:]), 2)),
    "turned": lambda b, x: b.emit("TRANSPOSE", x, perms=(*range(x.rank - 2), x.rank - 1, x.rank - 2)),
    "front to back": lambda b, x: b.emit("TRANSPOSE", x, perms=(*range(1, x.rank), 0)),
    **{f"{name} {axis}": reduced(name)(axis) for name in ("REDUCE_SUM", "REDUCE_MAX", "REDUCE_MIN") for axis in (0, 1)},
    **{f"{name} last": lambda b, x, name=name: reduced(name)(x.rank - 1)(b, x) for name in ("REDUCE_SUM", "REDUCE_MAX", "ARGMAX")},
    "ARGMAX 0": reduced("ARGMAX")(0),
}  # fmt: skip
OF_THREE: dict[str, Step] = {"matmul": matmul, "matmul of turned": matmul_of_turned, "gather": gathered}
KERNELS = ((1, 1), (1, 2), (2, 1))
OF_FOUR: dict[str, Step] = {
    **{f"{name} {size}": windows(name, size) for name in ("CONV2D", "DEPTHWISE_CONV2D", "MAX_POOL2D") for size in KERNELS},
    "AVG_POOL2D": windows("AVG_POOL2D", (1, 2)),
    "padded": windows("CONV2D", (2, 2), pad=1),
}
STEPS = {**ANYWHERE, **OF_THREE, **OF_FOUR}


def shapes(name: str, length: int) -> list[Shape]:
    """Return the shapes to try: each axis is long once, and so is a product of two."""
    square = math.isqrt(length) + 1
    if name in OF_FOUR:
        return [(1, 2, length, 3), (1, length, 2, 3), (1, square, square, 3)]
    if name in OF_THREE:
        return [(1, length, 3), (1, 3, length)]
    return [
        (length, 2),
        (3, length),
        (1, length, 3),
        (2, length, 1),
        (square, square, 3),
        (2, square, 1, square),
        (1, 2, 3, length),
    ]


def codes(value: Value, seed: int) -> np.ndarray:
    low, high = {"BOOL": (0, 2), "INT32": (0, 1 << 20)}.get(value.dtype, (-100, 100))
    kinds = {"BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32}
    return np.random.default_rng(seed).integers(low, high, value.shape).astype(kinds[value.dtype])


def outcome(name: str, shape: Shape, target: str) -> str:
    """Return "right", "refused", or the number of elements that differ between the machine and the reference model."""
    b = builder_for(TARGETS[target])
    try:
        b.graph.outputs.append(STEPS[name](b, b.input("x", shape, "INT8")))
        tosa = serialize(rewrite(b.graph, TARGETS[target].tuning))
        compiled = vela.compile(tosa, EthosUCompileSpec(target))
    except (Unsupported, VelaError):
        return "refused"
    inputs = [codes(value, seed) for seed, value in enumerate(b.graph.inputs)]
    (wanted,), (found,) = reference(tosa, inputs), run_compiled(compiled, inputs)
    different = int((wanted.ravel().astype(np.int64) != found.ravel()).sum())
    return f"{different} of {wanted.size} differ" if different else "right"


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_a_long_axis(target: str) -> None:
    for name, shape in (("ADD a_row", (65_537, 2)), ("clamp", (3, 65_537)), ("gather", (1, 65_537, 3))):
        assert outcome(name, shape, target) in ("right", "refused"), (name, shape)


@pytest.mark.long
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
@pytest.mark.parametrize("name", STEPS)
def test_long_axes(name: str, target: str) -> None:
    outcomes = {(length, shape): outcome(name, shape, target) for length in LENGTHS for shape in shapes(name, length)}
    assert not {case: found for case, found in outcomes.items() if found not in ("right", "refused")}
