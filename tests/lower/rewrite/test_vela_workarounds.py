"""Each row of ``VELA_BUGS`` is right where it stands, and needed.

And operators between what cuts or joins their operand and what cuts or places their result, which Vela lays over each other:
whether an offset survives depends on the operator, its neighbours and the batch, so all pairs are tried, each against the TOSA
reference model, as the graph is after ``rewrite``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from itertools import product
from typing import get_args

import numpy as np
import pytest

from ethorch import EthosUCompileSpec
from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.pipeline import rewrite
from ethorch.lower.rewrite.vela_bugs import BY_ID, U55_U65, VELA_BUGS, Family
from ethorch.targets.npus import TARGETS
from ethorch.tosa.ir import Value
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.tosa_runs import machine, reference
from tests.lower.rewrite.vela_bug_findings import NPUS, compile_rewritten, findings, npu_of
from tests.lower.rewrite.vela_bug_graphs import GRAPHS, UNSHOWN

VERSIONS = sorted({number for bug in VELA_BUGS for number in bug.versions})
INSTALLED = version("ethos-u-vela")


def test_each_row_has_graphs_or_a_reason_for_none() -> None:
    assert len(BY_ID) == len(VELA_BUGS)
    assert set(GRAPHS) | set(UNSHOWN) == set(BY_ID)
    assert not set(GRAPHS) & set(UNSHOWN)


#: Rows whose graphs take seconds on a family. By default on U65; the two that concern only U85 are avoided as others of these are.
SLOW = (
    *("vela.padded-stride-along-long-axis", "vela.padded-stride-beside-long-axis", "vela.wide-padding"),
    *("vela.dilated-convolution-along-long-axis", "vela.dilated-convolution-of-long-map"),
)


@pytest.mark.parametrize(
    ("id", "family"),
    [
        pytest.param(id, family, marks=[pytest.mark.long] * (id in SLOW and family != "u65"))
        for id in GRAPHS
        for family in get_args(Family)
    ],
)
def test_led_around(id: str, family: str) -> None:
    """What Vela gets wrong is right with the row, and no other family pays for it."""
    bug = BY_ID[id]
    for name, graph in GRAPHS[id].items():
        if bug.concerns(family):
            assert compile_rewritten(graph, npu_of(bug, family))[0] == "equal", name
        elif bug.families == U55_U65 and not isinstance(bug.instead, str):
            assert compile_rewritten(graph, NPUS[family]) == ("equal", 0), f"{name}: operators that this family does not need"


@pytest.mark.long
@pytest.mark.parametrize("id", GRAPHS)
def test_vela_needs_the_row(id: str) -> None:
    """Compiled as they stand, the graphs are wrong on each of the row's families."""
    bug = BY_ID[id]
    shown = {family for family, _, found in findings(bug) if found != "equal"}
    if INSTALLED not in VERSIONS:
        assert not shown, f"Vela {INSTALLED} still has {id} on {', '.join(sorted(shown))}: add it to the versions of the row."
        pytest.fail(f"Vela {INSTALLED} is without {id}: the row goes when no older version than that is supported.")
    elif INSTALLED not in bug.versions:
        assert not shown, f"Vela {INSTALLED} has {id}, too: add it to the versions of the row."
    elif VERSIONS[-1] == INSTALLED:
        assert shown == set(bug.families), (
            f"{id} says {bug.families}; Vela {INSTALLED} has it on {', '.join(sorted(shown)) or 'none'}."
        )
    else:
        assert shown, f"Vela {INSTALLED} is without {id}: take it from the versions of the row."


Step = Callable[[Builder, Value], Value]
HEIGHT, WIDTH, CHANNELS = 6, 7, 8


def constant(b: Builder, *shape: int) -> Value:
    return b.const(np.random.default_rng(5).integers(-90, 127, shape).astype(np.int8))


def bias(b: Builder, x: Value, channels: int) -> Value:
    values = np.arange(channels, dtype=np.int64) * 100
    return b.const(values, "INT48") if x.dtype == "INT16" else b.const(values.astype(np.int32))


def convolution(kernel: int = 3, pad: int = 0, stride: int = 1) -> Step:
    def step(b: Builder, x: Value) -> Value:
        where = {"pad": (pad,) * 4, "stride": (stride,) * 2, "dilation": (1, 1), "input_zp": 0, "weight_zp": 0}
        return b.rescale(
            b.emit("CONV2D", x, constant(b, 5, kernel, kernel, x.shape[3]), bias(b, x, 5), **where), 0.001, dtype=x.dtype
        )

    return step


def depthwise(pad: int) -> Step:
    def step(b: Builder, x: Value) -> Value:
        where = {"pad": (pad,) * 4, "stride": (1, 1), "dilation": (1, 1), "input_zp": 0, "weight_zp": 0}
        acc = b.emit("DEPTHWISE_CONV2D", x, constant(b, 3, 3, x.shape[3], 1), bias(b, x, x.shape[3]), **where)
        return b.rescale(acc, 0.003, dtype=x.dtype)

    return step


def transposed_convolution(b: Builder, x: Value) -> Value:
    where = {"out_pad": (0, 1, 0, 1), "stride": (2, 2), "input_zp": 0, "weight_zp": 0}
    return b.rescale(b.emit("TRANSPOSE_CONV2D", x, constant(b, 5, 3, 3, x.shape[3]), bias(b, x, 5), **where), 0.001)


def pool(name: str, pad: int) -> Step:
    zero = {"input_zp": 0, "output_zp": 0} if name == "AVG_POOL2D" else {}
    return lambda b, x: b.emit(name, x, kernel=(3, 3), stride=(1, 1), pad=(pad,) * 4, **zero)


def summed(axis: int) -> Step:
    return lambda b, x: b.rescale(b.emit("REDUCE_SUM", b.rescale(x, 1.0, dtype="INT32"), axis=axis), 0.1, dtype=x.dtype)


def squared(b: Builder, x: Value) -> Value:
    product_ = b.emit("MUL", b.rescale(x, 1.0, dtype="INT32"), b.rescale(x, 1.0, dtype="INT32"), shift=0)
    return b.rescale(product_, 0.004, dtype=x.dtype)


def times_a_pixel(b: Builder, x: Value) -> Value:
    pixel = b.emit("SLICE", x, start=(0, 1, 1, 0), size=(1, 1, 1, x.shape[3]))
    product_ = b.emit("MUL", b.rescale(x, 1.0, dtype="INT32"), b.rescale(pixel, 1.0, dtype="INT32"), shift=0)
    return b.rescale(product_, 0.004, dtype=x.dtype)


def as_rows(b: Builder, x: Value) -> Value:
    n, h, w, c = x.shape
    return b.reshape(convolution(kernel=1)(b, b.reshape(x, (1, 1, n * h * w, c))), (n, h, w, 5))


def table(b: Builder, x: Value) -> Value:
    return b.emit("TABLE", x, constant(b, 256))


OPERATORS: dict[str, Step] = {
    "convolution": convolution(), "padded convolution": convolution(pad=1), "pointwise convolution": convolution(kernel=1),
    "depthwise": depthwise(0), "padded depthwise": depthwise(1), "transposed convolution": transposed_convolution,
    "rows": as_rows, "clamped": lambda b, x: b.emit("CLAMP", convolution(pad=1)(b, x), min_val=-50, max_val=60),
    "depthwise, table": lambda b, x: table(b, depthwise(1)(b, x)), "maximum of windows": pool("MAX_POOL2D", 0),
    "maximum of padded windows": pool("MAX_POOL2D", 1), "mean of windows": pool("AVG_POOL2D", 0),
    "mean of padded windows": pool("AVG_POOL2D", 1), "rescale": lambda b, x: b.rescale(x, 0.7, dtype=x.dtype), "table": table,
    "clamp": lambda b, x: b.emit("CLAMP", x, min_val=-50, max_val=60), "squared": squared, "times a pixel": times_a_pixel,
    "tile": lambda b, x: b.emit("TILE", x, multiples=(1, 2, 1, 1)), "reverse": lambda b, x: b.emit("REVERSE", x, axis=2),
    **{f"transpose {p}": lambda b, x, p=p: b.emit("TRANSPOSE", x, perms=p) for p in ((0, 2, 1, 3), (0, 3, 1, 2), (0, 2, 3, 1))},
    **{f"sum over {axis}": summed(axis) for axis in (1, 2, 3)},
    **{f"maximum over {axis}": lambda b, x, axis=axis: b.emit("REDUCE_MAX", x, axis=axis) for axis in (2, 3)},
}  # fmt: skip
INT8_ONLY = ("transposed convolution", "table", "depthwise, table")


def cut(axis: int) -> Step:
    def step(b: Builder, x: Value) -> Value:
        start, size = [0] * 4, list(x.shape)
        if size[axis] > 1:
            start[axis], size[axis] = 1, size[axis] - (1 if axis == 0 else 2)
        return b.emit("SLICE", x, start=tuple(start), size=tuple(size)) if min(size) > 0 else x

    return step


def beside(axis: int) -> Step:
    def step(b: Builder, x: Value) -> Value:
        other = b.input(b.name("z"), tuple(2 if k == axis else extent for k, extent in enumerate(x.shape)), x.dtype)
        return b.emit("CONCAT", other, x, axis=axis)

    return step


def within(b: Builder, x: Value) -> Value:
    return b.emit("PAD", x, padding=(0, 0, 1, 1, 2, 0, 1, 0), pad_const=0)


AROUND: dict[str, Step] = {
    "alone": lambda b, x: x, **{f"cut {axis}": cut(axis) for axis in range(4)},
    **{f"beside {axis}": beside(axis) for axis in range(4)}, "within": within,
}  # fmt: skip


def differing(operator: str, before: str, behind: str, dtype: str, batch: int, target: str) -> int:
    """How many elements differ between machine and reference model."""
    b = Builder()
    x = b.input("x", (batch, HEIGHT, WIDTH, CHANNELS), dtype)
    b.graph.outputs.append(AROUND[behind](b, OPERATORS[operator](b, AROUND[before](b, x))))
    graph = rewrite(b.graph, tuning=TARGETS[target].tuning)
    verify(graph)
    kind = np.int16 if dtype == "INT16" else np.int8
    info, rng = np.iinfo(kind), np.random.default_rng(3)
    codes = [rng.integers(info.min, info.max, value.shape, endpoint=True).astype(kind) for value in graph.inputs]
    tosa = serialize(graph)
    (wanted,), (found,) = reference(tosa, codes), machine(tosa, codes, EthosUCompileSpec(target))
    return int((wanted.ravel() != found.ravel()).sum())


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_some_places(operator: str, target: str) -> None:
    for before, behind, batch in (("cut 1", "alone", 1), ("cut 3", "beside 3", 1), ("cut 2", "within", 2)):
        assert not differing(operator, before, behind, "INT8", batch, target), (before, behind, batch)


@pytest.mark.long
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("dtype", ["INT8", "INT16"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_all_places(operator: str, dtype: str, batch: int, target: str) -> None:
    if dtype == "INT16" and operator in INT8_ONLY:
        return
    wrong = [pair for pair in product(AROUND, AROUND) if differing(operator, *pair, dtype, batch, target)]
    assert not wrong


@pytest.mark.parametrize(("factor", "copies"), [(100, False), (300, True)])
def test_what_cannot_saturate_is_not_copied(factor: int, copies: bool) -> None:
    """Codes of int8 less their zero point, at most 255, times 100 fit into INT16; times 300 they do not."""

    def make(b: Builder) -> Value:
        x = b.rescale(b.input("x", (2, 12), "INT8"), 1.0, input_zp=-100, dtype="INT32")
        product = b.emit("MUL", x, b.const(np.full((1, 1), factor, np.int32)), shift=0)
        narrow = b.rescale(product, 1.0, dtype="INT16")
        return b.emit("MUL", b.rescale(narrow, 1.0, dtype="INT32"), b.input("y", (2, 12), "INT32"), shift=0)

    outcome, more = compile_rewritten(make, NPUS["u85"])
    assert outcome == "equal"
    assert (more > 0) == copies
