"""For each row of ``VELA_BUGS`` graphs, as small as they get, that Vela gets wrong as they stand.

``python -m tests.rewrite.vela_bug_graphs [ID ...]`` says what the installed Vela makes of them.
"""

from __future__ import annotations

import copy
import faulthandler
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from ethorch import EthosUCompileSpec, vela
from ethorch.builder.builder import Builder
from ethorch.errors import MachineFault, VelaError
from ethorch.rewrite.insert_copies import ELEMENTWISE
from ethorch.rewrite.pipeline import rewrite
from ethorch.rewrite.vela_bugs import BY_ID, VELA_BUGS, VelaBug
from ethorch.target.npus import TARGETS
from ethorch.tosa.ir import Graph, Op, Value
from ethorch.tosa.serialize import serialize
from ethorch.vela.compiler import compile_as_it_stands
from tests.support.tosa_runs import reference, run_compiled

#: Puts a graph together and returns its outputs.
Make = Callable[[Builder], Value | tuple[Value, ...]]
#: The NPU that stands for its family.
NPUS = {"u55": "ethos-u55-128", "u65": "ethos-u65-256", "u85": "ethos-u85-256"}


@dataclass(frozen=True)
class Avoided:
    """A graph that Vela gets wrong and that nothing is done about, since lowerings emit another one, ``instead``."""

    make: Make
    instead: Make


# --- parts ------------------------------------------------------------------------------------------------------------


def whole(b: Builder, dtype: str = "INT8") -> Value:
    return b.input("x", (1, 10, 11, 6), dtype)


def cut(b: Builder, dtype: str = "INT8") -> Value:
    return b.emit("SLICE", whole(b, dtype), start=(0, 1, 2, 1), size=(1, 9, 9, 4))


def beside(b: Builder, value: Value) -> Value:
    other = b.input("z", (*value.shape[:-1], 3), value.dtype)
    return b.emit("CONCAT", other, value, axis=value.rank - 1)


def within(b: Builder, value: Value) -> Value:
    return b.emit("PAD", value, padding=(0, 0) * (value.rank - 2) + (2, 1, 1, 1), pad_const=0)


def pair(b: Builder, dtype: str = "INT8") -> tuple[Value, Value]:
    return b.input("x", (2, 12), dtype), b.input("y", (2, 12), dtype)


def constant(b: Builder, *shape: int, dtype: type[np.generic] = np.int8) -> Value:
    return b.const(np.random.default_rng(5).integers(-50, 50, shape).astype(dtype))


def zero(b: Builder) -> Value:
    return b.const(np.zeros((1, 1), np.int32))


def table(b: Builder, value: Value, seed: int) -> Value:
    return b.emit("TABLE", value, b.const(np.random.default_rng(seed).integers(-128, 128, 256).astype(np.int8)))


def int32(b: Builder, value: Value, unit: float = 1.0) -> Value:
    return b.rescale(value, unit, dtype="INT32")


def convolved(b: Builder, x: Value, name: str, dilation: int = 1, per_channel: int = 1) -> Value:
    c = x.shape[3]
    depthwise = name == "DEPTHWISE_CONV2D"
    weight = constant(b, *((3, 3, c, per_channel) if depthwise else (6, 3, 3, c)))
    bias = constant(b, c * per_channel if depthwise else 6, dtype=np.int32)
    where = {"out_pad": (0, 0, 0, 0)} if name == "TRANSPOSE_CONV2D" else {"pad": (dilation,) * 4, "dilation": (dilation,) * 2}
    return b.rescale(b.emit(name, x, weight, bias, stride=(1, 1), input_zp=0, weight_zp=0, **where), 0.002)


def multiplied(b: Builder, x: Value) -> Value:
    return b.rescale(b.emit("MATMUL", x, b.input("y", (2, x.shape[2], 6), "INT8"), a_zp=0, b_zp=0), 0.01)


def reshaped_matmul(b: Builder) -> Value:
    return b.reshape(multiplied(b, b.input("x", (2, 5, 8), "INT8")), (1, 2, 5, 6))


def by_constants(b: Builder, x: Value) -> Value:
    return b.rescale(b.emit("MUL", int32(b, x), constant(b, 1, 1, 1, x.shape[3], dtype=np.int32), shift=0), 0.03)


# --- graphs -----------------------------------------------------------------------------------------------------------


def narrowed_and_widened(name: str, dtype: str, shape: tuple[int, int] = (2, 12)) -> Make:
    """Sums beyond ``dtype`` saturate, and what reads them has an operand of INT32 besides."""

    def make(b: Builder) -> Value:
        x, y = (int32(b, value, 2.0**14) for value in pair(b, dtype))
        saturated = int32(b, b.reshape(b.rescale(b.emit("ADD", x, y), 1.0, dtype=dtype), shape))
        other = b.input("z", shape, "INT32")
        return b.emit(name, saturated, other, **({"shift": 0} if name == "MUL" else {}))

    return make


def of_slices(b: Builder, name: str, *scales: float) -> Value:
    """``name`` of two rows of a map, each rescaled."""
    x = b.input("x", (2, 12), "INT8")
    rows = [int32(b, b.emit("SLICE", x, start=(row, 0), size=(1, 12)), scale) for row, scale in enumerate(scales)]
    return b.emit(name, *rows)


def of_reshaped(b: Builder, value: Value) -> Value:
    """The first half of ``value`` in one row, and the second, in a sum."""
    count = math.prod(value.shape) // 2
    row = b.reshape(value, (2 * count,))
    return in_slices(b, row, 0, count, rows=count)


def in_slices(b: Builder, value: Value, *starts: int, rows: int = 2) -> Value:
    """The sum of two SLICEs of so many rows, or of one with itself."""
    rest = (0,) * (value.rank - 1)
    cuts = {row: b.emit("SLICE", value, start=(row, *rest), size=(rows, *value.shape[1:])) for row in sorted(set(starts))}
    first, second = (cuts[row] if value.dtype == "INT32" else int32(b, cuts[row]) for row in starts)
    return b.emit("ADD", first, second)


def one_element(name: str, dtype: str) -> Make:
    """``name`` of one element and of a map, both of five axes."""

    def make(b: Builder) -> Value:
        one, values = b.input("z", (1,) * 5, dtype), b.input("x", (1, 2, 3, 4, 5), dtype)
        if dtype != "INT32":
            one, values = int32(b, one), int32(b, values)
        if name == "ARITHMETIC_RIGHT_SHIFT":  # by 0 to 3
            for limit, bound in (("MAXIMUM", 0), ("MINIMUM", 3)):
                values = b.emit(limit, values, b.const(np.full((1,) * 5, bound, np.int32)))
        return b.emit(name, one, values, **{"MUL": {"shift": 0}, "ARITHMETIC_RIGHT_SHIFT": {"round": False}}.get(name, {}))

    return make


def widened(name: str, dtype: str, wide: str, factor: float) -> Make:
    """Codes of ``dtype`` times ``factor``, in ``wide``."""

    def make(b: Builder) -> Value:
        made = {
            "MAX_POOL2D": lambda: b.emit("MAX_POOL2D", whole(b, dtype), kernel=(2, 2), stride=(1, 1), pad=(0, 0, 0, 0)),
            "SELECT": lambda: b.emit("SELECT", b.input("c", (2, 12), "BOOL"), *pair(b, dtype)),
            "CAST": lambda: b.emit("CAST", b.input("c", (2, 12), "BOOL"), dtype=dtype),
            "BITWISE_NOT": lambda: b.emit("BITWISE_NOT", b.input("x", (2, 12), dtype)),
            **{f"BITWISE_{how}": lambda: b.emit(name, *pair(b, dtype)) for how in ("AND", "OR", "XOR")},
        }[name]()
        return b.rescale(made, factor, dtype=wide)

    return make


def widened_twice(b: Builder) -> Value:
    """As an index_put of int16 that accumulates: a truth value becomes 0 or 32,767."""
    ones = b.emit("CAST", b.input("c", (2, 12), "BOOL"), dtype="INT8")
    return b.rescale(int32(b, ones), 32767.0, dtype="INT16")


def widened_maximum(b: Builder) -> Value:
    """One operand of a sum is INT32 already."""
    codes = b.emit("MAX_POOL2D", whole(b), kernel=(2, 2), stride=(1, 1), pad=(0, 0, 0, 0))
    return b.emit("ADD", int32(b, b.reshape(codes, (1, 9, 60)), 8.0), b.input("y", (1, 9, 60), "INT32"))


def rescaled_wrapped(b: Builder) -> Value:
    x = b.emit("ADD", b.input("x", (2, 12), "INT32"), b.const(np.full((1, 1), 100, np.int32)))
    return b.rescale(b.emit("CAST", x, dtype="INT8"), 0.5)


def clamped_shift(name: str, dtype: str, wide: str) -> Make:
    def make(b: Builder) -> Value:
        x = b.input("x", (2, 12), dtype)
        one = b.const(np.ones((1, 1), np.int8 if dtype == "INT8" else np.int16))
        shifted = b.emit(name, x, one)
        return b.emit("CLAMP", shifted if wide == dtype else b.rescale(shifted, 1.0, dtype=wide), min_val=-20, max_val=50)

    return make


def padded_windows_of_a_batch(b: Builder) -> Value:
    x = b.emit("SLICE", b.input("x", (2, 9, 9, 6), "INT8"), start=(0, 0, 0, 1), size=(2, 9, 9, 4))
    return convolved(b, x, "CONV2D")


def six_axes(b: Builder) -> Value:
    x = b.emit("SLICE", b.input("x", (1, 2, 3, 2, 3, 5), "INT8"), start=(0,) * 5 + (1,), size=(1, 2, 3, 2, 3, 4))
    y = b.reshape(b.emit("SLICE", b.input("y", (3, 5), "INT8"), start=(0, 1), size=(3, 4)), (1, 1, 1, 1, 3, 4))
    return b.rescale(b.emit("ADD", int32(b, x, 2.0**19), int32(b, y, 2.0**19)), 2.0**-20)


def five_axes(b: Builder) -> Value:
    x = b.emit("SLICE", b.input("x", (5, 2, 2, 9), "INT16"), start=(1, 1, 1, 2), size=(3, 1, 1, 6))
    return b.emit("TILE", b.reshape(x, (1, 3, 1, 1, 6)), multiples=(1, 3, 1, 1, 1))


def maximum(b: Builder, x: Value, axis: int) -> Value:
    return b.emit("REDUCE_MAX", x, axis=axis)


def select(shared: str, dtype: str) -> Make:
    def make(b: Builder) -> tuple[Value, ...]:
        x, y = pair(b, dtype)
        condition = b.emit("GREATER", int32(b, y), zero(b))
        chosen = b.emit("SELECT", condition, x, y)
        reshaped = b.reshape({"condition": condition, "first": x, "second": y}[shared], (1, 2, 12, 1))
        return chosen, b.emit("LOGICAL_NOT", reshaped) if shared == "condition" else b.emit("REVERSE", reshaped, axis=2)

    return make


def select_of_folded(dtype: str, *, broadcast: bool) -> Make:
    """The condition reads y in one shape, the SELECT in another."""

    def make(b: Builder) -> Value:
        shapes = {"x": (2, 1, 6, 4) if broadcast else (2, 5, 6, 4), "y": (2, 5, 6, 4)}
        x, y = (b.emit("REVERSE", b.input(name, shape, dtype), axis=3) for name, shape in shapes.items())
        condition = b.emit("GREATER", int32(b, b.reshape(y, (240,))), b.const(np.zeros(1, np.int32)))
        parts = b.reshape(condition, (2, 5, 24)), b.reshape(x, (2, x.shape[1], 24)), b.reshape(y, (2, 5, 24))
        return b.emit("REVERSE", b.reshape(b.emit("SELECT", *parts), (2, 5, 6, 4)), axis=2)

    return make


def square(name: str, shape: tuple[int, ...], other: tuple[int, ...]) -> Make:
    def make(b: Builder) -> Value:
        x = b.reshape(b.rescale(b.input("x", shape, "INT8"), 0.5, input_zp=7), other)
        return b.emit(name, int32(b, x), int32(b, x), **({"shift": 0} if name == "MUL" else {}))

    return make


def tables_of_parts(size: tuple[int, ...], shape: tuple[int, ...], made: Callable[[Builder, Value, int], Value] = table) -> Make:
    """The first and the second half of a sum along its last axis, in another shape, through a table each."""

    def make(b: Builder) -> Value:
        whole = (*size[:-1], 2 * size[-1])
        x = b.rescale(b.emit("ADD", int32(b, b.input("x", whole, "INT8")), int32(b, b.input("z", whole, "INT8"))), 0.5)
        starts = [(0,) * (len(size) - 1) + (start,) for start in (0, size[-1])]
        parts = [b.reshape(b.emit("SLICE", x, start=start, size=size), shape) for start in starts]
        first, second = (int32(b, made(b, part, seed)) for seed, part in enumerate(parts))
        return b.rescale(b.emit("MUL", first, second, shift=0), 0.01)

    return make


def clamped(b: Builder, value: Value, seed: int) -> Value:
    return b.emit("CLAMP", value, min_val=-20 - seed, max_val=20)


def spread(name: str, shape: tuple[int, ...], rescaled: Callable[[Builder, Value], Value] = int32) -> Make:
    def make(b: Builder) -> Value:
        x = b.reshape(rescaled(b, b.input("x", shape, "INT8")), (12, 1, 32))
        return b.emit(name, x, int32(b, b.input("y", (12, 4, 1), "INT8")), **({"shift": 0} if name == "MUL" else {}))

    return make


def of_all_rows(name: str, made: Callable[[Builder, Value], Value] = lambda b, x: x) -> Make:
    """Each row with each."""

    def make(b: Builder) -> Value:
        x = made(b, b.input("x", (1, 12, 8), "INT8"))
        rows = int32(b, x), int32(b, b.reshape(x, (12, 1, 8)))
        return b.emit(name, *rows, **({"shift": 0} if name == "MUL" else {}))

    return make


def rescaled_sum(b: Builder, x: Value) -> Value:
    return int32(b, b.rescale(b.emit("ADD", int32(b, x), int32(b, b.input("z", x.shape, "INT8"))), 0.5))


def read_condition(b: Builder) -> tuple[Value, ...]:
    x, y = pair(b)
    condition = b.emit("GREATER", int32(b, x), int32(b, y))
    return condition, b.emit("SELECT", condition, x, y)


def loop(b: Builder) -> Value:
    """A table of an input, beside what two rounds of another table make of it."""
    x = table(b, b.input("a", (1, 5, 5, 8), "INT8"), 0)
    condition, body = b.region("condition"), b.region("body")
    for inner in (condition, body):
        inner.input("n", (1,), "INT32")
        inner.input("x", x.shape, "INT8")
    one, two = (b.const(np.array([number], np.int32)) for number in (1, 2))
    condition.graph.outputs.append(condition.emit("GREATER", two, condition.graph.inputs[0]))
    body.graph.outputs += [body.emit("ADD", body.graph.inputs[0], one), table(body, body.graph.inputs[1], 1)]
    b.emit("WHILE_LOOP", b.const(np.zeros(1, np.int32)), x, cond_graph=condition.graph, body_graph=body.graph)
    return b.emit("CONCAT", x, b.graph.ops[-1].results[1], axis=1)


def concat_of_five_axes(axis: int) -> Make:
    def make(b: Builder) -> Value:
        x = b.input("x", (2, 3, 4, 6), "INT8")
        size = tuple(1 if k == max(axis - 1, 0) else extent for k, extent in enumerate(x.shape))
        starts = [tuple(first if k == max(axis - 1, 0) else 0 for k in range(4)) for first in (1, 0)]
        return b.emit("CONCAT", *(b.reshape(b.emit("SLICE", x, start=start, size=size), (1, *size)) for start in starts), axis=axis)

    return make


def pad_of_five_axes(b: Builder) -> Value:
    cut = b.emit("SLICE", b.input("x", (4, 3, 9, 8), "INT8"), start=(0, 0, 0, 0), size=(4, 3, 9, 7))
    return b.emit("PAD", b.reshape(cut, (1, 4, 3, 9, 7)), padding=(0,) * 9 + (3,), pad_const=0)


def slice_of_five_axes(*axes: int) -> Make:
    def make(b: Builder) -> Value:
        x = b.input("x", (2, 3, 4, 3, 4), "INT8")
        size = tuple(1 if k in axes else extent for k, extent in enumerate(x.shape))
        starts = [tuple(first if k in axes else 0 for k in range(5)) for first in (1, 0)]
        parts = [b.reshape(b.emit("SLICE", x, start=start, size=size), (size[0] * size[1], *size[2:])) for start in starts]
        return b.emit("CONCAT", *parts, axis=1)

    return make


def tables(b: Builder) -> Value:
    value = b.input("x", (3, 16, 16), "INT8")
    for seed in (0, 1):
        value = b.emit("TRANSPOSE", table(b, value, seed), perms=(1, 0, 2))
    return value


def total(bits: int) -> Make:
    """The sum of two INT16 of which one has a quarter of the other's scale."""

    def make(b: Builder) -> Value:
        x, y = pair(b, "INT16")
        acc = b.emit("ADD", int32(b, x, 2.0**bits), int32(b, y, 2.0 ** (bits - 2)))
        return b.rescale(acc, 2.0 ** -(bits + 1), dtype="INT16")

    return make


def selected(added: bool) -> Make:
    def make(b: Builder) -> Value:
        x, y = pair(b)
        values = [b.emit("ADD", int32(b, value), zero(b)) if added else value for value in (x, y)]
        return b.emit("SELECT", b.input("c", (2, 12), "BOOL"), b.rescale(values[0], 0.7), b.rescale(values[1], 0.3))

    return make


def product(per_channel: bool) -> Make:
    def make(b: Builder) -> Value:
        acc = b.emit("MATMUL", b.input("x", (1, 5, 8), "INT8"), b.input("y", (1, 8, 4), "INT8"), a_zp=0, b_zp=0)
        return b.rescale(acc, [0.01, 0.002, 0.03, 0.004] if per_channel else 0.01)

    return make


def pooled(pad: int) -> Make:
    shape = (1, 12 - pad, 12 - pad, 6)
    return lambda b: b.emit("MAX_POOL2D", b.input("x", shape, "INT8"), kernel=(4, 4), stride=(4, 4), pad=(pad, 0, pad, 0))


def over_long_axis(name: str, extent: int, taps: int, stride: int = 1, dilation: int = 1, *, apart: bool = False) -> Make:
    """A convolution along an axis of ``extent`` places, with as much padding in front as behind: by a PAD if ``apart``."""

    def make(b: Builder) -> Value:
        x, depthwise, pad = b.input("x", (1, 1, extent, 2), "INT8"), name == "DEPTHWISE_CONV2D", dilation * (taps - 1) // 2
        weight, bias = constant(b, *((1, taps, 2, 1) if depthwise else (2, 1, taps, 2))), constant(b, 2, dtype=np.int32)
        if apart:
            x = b.emit("PAD", x, padding=(0, 0, 0, 0, pad, pad, 0, 0), pad_const=0)
        where = {"pad": (0, 0, 0, 0) if apart else (0, 0, pad, pad), "stride": (1, stride), "dilation": (1, dilation)}
        return b.rescale(b.emit(name, x, weight, bias, **where, input_zp=0 if apart else 3, weight_zp=0), 0.01)

    return make


def transposed_constant(b: Builder) -> Value:
    """The builder would fold it."""
    value, other = constant(b, 3, 5, 7, 2, dtype=np.int32), b.input("x", (3, 7, 5, 2), "INT32")
    turned = Value(b.name("turned"), other.shape, other.dtype, value.origin)
    b.graph.ops.append(Op("TRANSPOSE", (value,), {"perms": (0, 2, 1, 3)}, (turned,)))
    return b.emit("MAXIMUM", turned, other)


def long_result(transposed: bool) -> Make:
    def make(b: Builder) -> Value:
        x, bias = b.input("x", (1, 1, 32_769, 2), "INT8"), constant(b, 2, dtype=np.int32)
        if transposed:
            where = {"out_pad": (0, 0, 0, 0), "stride": (2, 2), "input_zp": 0, "weight_zp": 0}
            return b.rescale(b.emit("TRANSPOSE_CONV2D", x, constant(b, 2, 2, 2, 2), bias, **where), 0.01)
        where = {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1), "input_zp": 0, "weight_zp": 0}
        phases = b.emit("CONV2D", x, constant(b, 8, 1, 1, 2), constant(b, 8, dtype=np.int32), **where)
        y = b.emit("TRANSPOSE", b.reshape(b.rescale(phases, 0.01), (32_769, 2, 2, 2)), perms=(1, 0, 2, 3))
        return b.reshape(y, (1, 2, 65_538, 2))

    return make


def pooled_along(extent: int) -> Make:
    return lambda b: b.emit("MAX_POOL2D", b.input("x", (1, 1, extent, 2), "INT8"), kernel=(1, 5), stride=(1, 2), pad=(0, 0, 2, 2))


def long_sum(folded: bool) -> Make:
    def make(b: Builder) -> Value:
        x = int32(b, b.input("x", (1, 70_000, 2), "INT8"))
        if folded:
            x = b.reshape(b.emit("REDUCE_SUM", b.reshape(x, (70, 1000, 2)), axis=1), (1, 70, 2))
        return b.rescale(b.emit("REDUCE_SUM", x, axis=1), 0.001)

    return make


def unread_input(read: bool) -> Make:
    def make(b: Builder) -> Value:
        x, z = pair(b)
        if not read:
            return b.emit("CLAMP", x, min_val=-9, max_val=9)
        nothing = b.emit("MUL", int32(b, z), zero(b), shift=0)
        return b.rescale(b.emit("ADD", int32(b, x), nothing), 1.0)

    return make


def int32_slice_in_cascade(b: Builder) -> Value:
    wide = b.rescale(b.input("x", (1, 205, 100, 10), "INT8"), 1.0, input_zp=3, dtype="INT32")
    return b.emit("ADD", b.emit("SLICE", wide, start=(0, 2, 0, 0), size=(1, 200, 100, 10)), constant(b, 1, 1, 1, 1, dtype=np.int32))


def undone_transpose(b: Builder) -> tuple[Value, ...]:
    turned = b.emit("TRANSPOSE", table(b, b.input("x", (1, 6, 5, 4), "INT8"), 0), perms=(0, 2, 1, 3))
    return turned, b.emit("TRANSPOSE", turned, perms=(0, 2, 1, 3))


def reshaped_input(b: Builder) -> Value:
    return b.emit("CLAMP", b.reshape(b.input("x", (2, 12), "INT8"), (24,)), min_val=-9, max_val=9)


#: Row -> name -> graph.
def read_in_wide_shapes(b: Builder) -> Value:
    x, one = b.emit("ADD", *[b.input(name, (2, 40_000, 2), "INT32") for name in "xy"]), b.const(np.ones((1, 1), np.int32))
    wide, square = b.reshape(x, (4, 40_000)), b.const(np.ones((1, 1, 1), np.int32))
    parts = [b.emit("SUB", wide, one), b.emit("SUB", b.reshape(x, (2, 2, 40_000)), square)]
    return b.emit("ADD", parts[0], b.reshape(parts[1], (4, 40_000)))


def wide_rows(b: Builder) -> Value:
    return b.input("x", (2, 40_000), "INT32")


WIDE_MOVES: Mapping[str, Callable[[Builder, Value], Value]] = {
    "joined": lambda b, x: b.emit("CONCAT", x, b.input("y", x.shape, "INT32"), axis=1),
    "padded": lambda b, x: b.emit("PAD", x, padding=(0, 0, 1, 2), pad_const=7),
    "cut": lambda b, x: b.emit("SLICE", x, start=(0, 3), size=(2, 39_000)),
    "tiled": lambda b, x: b.emit("TILE", x, multiples=(2, 1)),
}

GRAPHS: Mapping[str, Mapping[str, Make | Avoided]] = {
    "vela.transposed-convolution-of-slice": {"": lambda b: convolved(b, cut(b), "TRANSPOSE_CONV2D")},
    "vela.dilated-convolution-of-slice": {
        "CONV2D": lambda b: convolved(b, cut(b), "CONV2D", dilation=3),
        "DEPTHWISE_CONV2D": lambda b: convolved(b, cut(b), "DEPTHWISE_CONV2D", dilation=3),
    },
    "vela.multiplied-depthwise-of-slice": {"": lambda b: convolved(b, cut(b), "DEPTHWISE_CONV2D", per_channel=2)},
    "vela.padded-window-of-sliced-batch": {"": padded_windows_of_a_batch},
    "vela.tile-of-five-axes-of-slice": {"": five_axes},
    "vela.rescale-of-six-axes-of-slice": {"": six_axes},
    "vela.maximum-of-slice": {
        "along the first axis": lambda b: maximum(b, cut(b), 1),
        "along the last axis": lambda b: maximum(b, cut(b), 3),
    },
    "vela.sum-along-channels-of-slice": {"": lambda b: b.rescale(b.emit("REDUCE_SUM", int32(b, cut(b)), axis=3), 0.1)},
    "vela.matmul-of-slice": {
        "": lambda b: multiplied(b, b.emit("SLICE", b.input("x", (2, 5, 9), "INT8"), start=(0, 0, 1), size=(2, 5, 8)))
    },
    "vela.lone-rescale-of-move": {
        "ADD": lambda b: b.rescale(of_slices(b, "ADD", 0.7, 0.7), 0.3),
        "ADD of INT32": lambda b: of_slices(b, "ADD", 2.0, 2.0),
        "ADD of wide numbers": lambda b: b.rescale(of_slices(b, "ADD", 2.0**19, 2.0**19), 2.0**-20),
        "MAXIMUM": lambda b: b.rescale(of_slices(b, "MAXIMUM", 2.0, 2.0), 0.3),
        "REDUCE_SUM": lambda b: b.rescale(b.emit("REDUCE_SUM", int32(b, within(b, whole(b)), 0.7), axis=1), 0.1),
        "SLICE": lambda b: b.rescale(cut(b, "INT32"), 0.7, dtype="INT16"),
        "CONCAT": lambda b: b.rescale(beside(b, whole(b, "INT32")), 0.7),
        "PAD": lambda b: int32(b, within(b, whole(b))),
        "TILE": lambda b: int32(b, b.emit("TILE", b.input("x", (96,), "INT8"), multiples=(5,))),
        "TILE to a long row": lambda b: int32(b, b.emit("TILE", b.input("x", (9000,), "INT8"), multiples=(9,))),
    },
    "vela.lone-rescale-in-slices": {
        "two slices": lambda b: in_slices(b, int32(b, b.input("x", (24,), "INT8"), 0.7), 0, 16),
        "one": lambda b: in_slices(b, int32(b, b.input("x", (24,), "INT8"), 0.7), 5, 5),
        "of rows": lambda b: in_slices(b, int32(b, b.input("x", (6, 8), "INT16"), 0.7), 1, 3),
        "long": lambda b: in_slices(b, int32(b, b.input("x", (65_537,), "INT16"), 0.7), 0, 65_535),
    },
    "vela.lone-rescale-placed": {
        "product": lambda b: beside(b, by_constants(b, whole(b))),
        "CONCAT": lambda b: beside(b, b.rescale(whole(b, "INT32"), 0.7)),
        "PAD": lambda b: within(b, int32(b, whole(b), 0.7)),
    },
    "vela.multiplied-depthwise-placed": {
        "CONCAT": lambda b: beside(b, convolved(b, whole(b), "DEPTHWISE_CONV2D", per_channel=2)),
        "PAD": lambda b: within(b, convolved(b, whole(b), "DEPTHWISE_CONV2D", dilation=3, per_channel=2)),
    },
    "vela.rescale-between-placements": {
        "CONCAT": lambda b: beside(b, b.rescale(beside(b, whole(b)), 0.7, input_zp=3, output_zp=-5)),
        "PAD": lambda b: within(b, b.rescale(within(b, whole(b)), 90.7, dtype="INT16")),
        "TILE": lambda b: beside(b, b.rescale(b.emit("TILE", whole(b), multiples=(1, 1, 2, 1)), 0.7)),
    },
    "vela.maximum-placed": {
        "along the first axis": lambda b: beside(b, maximum(b, whole(b), 1)),
        "along the last axis": lambda b: beside(b, maximum(b, whole(b), 3)),
    },
    "vela.clamp-of-transpose-placed": {
        "": lambda b: beside(b, b.emit("CLAMP", b.emit("TRANSPOSE", whole(b), perms=(0, 3, 1, 2)), min_val=-9, max_val=9))
    },
    "vela.transposed-convolution-placed": {
        "CONCAT": lambda b: beside(b, convolved(b, whole(b), "TRANSPOSE_CONV2D")),
        "PAD": lambda b: within(b, convolved(b, whole(b), "TRANSPOSE_CONV2D")),
    },
    "vela.reshaped-matmul-placed": {
        "CONCAT": lambda b: beside(b, reshaped_matmul(b)),
        "PAD": lambda b: within(b, reshaped_matmul(b)),
    },
    "vela.wide-int32-move": {name: lambda b, move=move: move(b, wide_rows(b)) for name, move in WIDE_MOVES.items()},
    "vela.wide-int32-identity": {"": lambda b: b.emit("IDENTITY", wide_rows(b))},
    "vela.wide-int32-input": {"": lambda b: b.reshape(wide_rows(b), (2, 4, 10_000))},
    "vela.wide-int32-in-shapes": {"": read_in_wide_shapes},
    "vela.select-of-reshaped": {
        f"{shared}, {dtype}": select(shared, dtype) for shared in ("condition", "first", "second") for dtype in ("INT8", "INT16")
    }
    | {
        f"folded, {dtype}{', broadcast' * broadcast}": select_of_folded(dtype, broadcast=broadcast)
        for dtype in ("INT8", "INT16")
        for broadcast in (False, True)
    },
    "vela.square-of-reshaped": {
        "SUB": square("SUB", (12,), (3, 4)),
        "MUL": square("MUL", (12,), (3, 4)),
        "MUL of three axes": square("MUL", (2, 3, 4), (2, 12)),
        "MUL of four axes": square("MUL", (1, 4, 6, 8), (1, 24, 8)),
    },
    "vela.rescale-in-shapes": {
        "INT8": lambda b: of_reshaped(b, b.rescale(whole(b), 0.7)),
        "INT16": lambda b: of_reshaped(b, b.rescale(whole(b), 70.0, dtype="INT16")),
        "INT32": lambda b: of_reshaped(b, int32(b, whole(b), 0.7)),
        "long": lambda b: of_reshaped(b, b.rescale(b.input("x", (1, 2, 65_537), "INT16"), 0.7)),
    },
    "vela.table-of-reshaped-slice": {
        "one channel": tables_of_parts((12, 16, 1), (12, 16)),
        "two channels": tables_of_parts((12, 8, 2), (12, 16)),
        "rows to one": tables_of_parts((6, 1, 5), (30,)),
        "CLAMP": tables_of_parts((12, 16, 1), (12, 16), clamped),
    },
    "vela.spread-of-reshaped-rescale": {
        "MUL": spread("MUL", (12, 32)),
        "ADD of four axes": spread("ADD", (1, 1, 12, 32)),
        "MUL of a sum": spread("MUL", (1, 1, 12, 32), rescaled_sum),
    },
    "vela.spread-of-one-value": {
        "SUB": of_all_rows("SUB"),
        "MUL": of_all_rows("MUL", lambda b, x: table(b, x, 1)),
        "SUB of a sum": of_all_rows("SUB", lambda b, x: b.rescale(rescaled_sum(b, x), 1.0, dtype="INT8")),
    },
    "vela.bool-output-that-is-read": {"": read_condition},
    "vela.loop-in-operands": {"": loop},
    "vela.concat-of-five-axes": {f"along {axis}": concat_of_five_axes(axis) for axis in range(5)},
    "vela.slice-of-five-axes": {f"of {axes}": slice_of_five_axes(*axes) for axes in ((0,), (0, 2, 4))},
    "vela.pad-of-five-axes": {"": pad_of_five_axes},
    "vela.one-element-of-five-axes": {
        **{f"{name}, {dtype}": one_element(name, dtype) for name in ELEMENTWISE for dtype in ("INT8", "INT32")},
        "ARITHMETIC_RIGHT_SHIFT": one_element("ARITHMETIC_RIGHT_SHIFT", "INT32"),
    },
    "vela.table-between-transposes": {"": tables},
    "vela.dilated-convolution-along-long-axis": {
        name: over_long_axis(name, 65_537, taps=3, dilation=2) for name in ("CONV2D", "DEPTHWISE_CONV2D")
    },
    "vela.padded-stride-along-long-axis": {
        "CONV2D": over_long_axis("CONV2D", 131_073, taps=5, stride=2),
        "PAD and CONV2D": over_long_axis("CONV2D", 131_073, taps=5, stride=2, apart=True),
        "DEPTHWISE_CONV2D": over_long_axis("DEPTHWISE_CONV2D", 131_073, taps=5, stride=2),
    },
    "vela.transpose-of-constant": {"": transposed_constant},
    "vela.transposed-convolution-of-long-result": {
        "": Avoided(long_result(transposed=True), instead=long_result(transposed=False))
    },
    "vela.narrowed-and-widened": {
        "MUL": narrowed_and_widened("MUL", "INT16"),
        "SUB": narrowed_and_widened("SUB", "INT16"),
        "MAXIMUM": narrowed_and_widened("MAXIMUM", "INT8"),
        "reshaped": narrowed_and_widened("MUL", "INT16", (3, 8)),
    },
    "vela.rescale-of-wrapped": {"": rescaled_wrapped},
    "vela.widened-in-producer": {
        **{name: widened(name, "INT8", "INT16", 300.0) for name in BY_ID["vela.widened-in-producer"].reads},
        "of INT16": widened("MAX_POOL2D", "INT16", "INT32", 3000.0),
        "to INT32": widened("SELECT", "INT8", "INT32", 3.0),
        "twice": widened_twice,
        "in a sum": widened_maximum,
    },
    "vela.clamp-of-shift": {
        "to the left": clamped_shift("LOGICAL_LEFT_SHIFT", "INT8", "INT8"),
        "to the right": clamped_shift("LOGICAL_RIGHT_SHIFT", "INT16", "INT16"),
        "widened": clamped_shift("LOGICAL_LEFT_SHIFT", "INT8", "INT16"),
    },
    "vela.sum-of-whole-scales": {"": Avoided(total(13), instead=total(14))},
    "vela.rescale-in-select": {"": Avoided(selected(added=False), instead=selected(added=True))},
    "vela.rescale-of-product-per-channel": {"": Avoided(product(per_channel=True), instead=product(per_channel=False))},
    "vela.unread-input": {"": Avoided(unread_input(read=False), instead=unread_input(read=True))},
    "vela.padded-pool-of-wide-stride": {"": Avoided(pooled(pad=2), instead=pooled(pad=0))},
    "vela.padded-pool-along-long-axis": {"": Avoided(pooled_along(65_537), instead=pooled_along(65_535))},
    "vela.long-sum": {"": Avoided(long_sum(folded=False), instead=long_sum(folded=True))},
    "vela.int32-slice-in-cascade": {"": int32_slice_in_cascade},
    "vela.undone-transpose-output": {"": undone_transpose},
    "vela.input-in-its-readers-shape": {"": reshaped_input},
}
#: Rows without a graph, and why.
UNSHOWN: Mapping[str, str] = {
    "vela.rescale-in-comparison": "the simulator scales operands of comparisons as Vela means it",
}


# --- what becomes of them ---------------------------------------------------------------------------------------------


def built(make: Make, family: str) -> Graph:
    b = Builder(tuning=TARGETS[NPUS[family]].tuning)
    made = make(b)
    b.graph.outputs += made if isinstance(made, tuple) else (made,)
    return b.graph


def as_it_stands(graph: Make | Avoided, family: str) -> str:
    """What Vela makes of a graph: "right", or what is wrong with it. In a child process: it may die."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(False)
    made = built(graph.make if isinstance(graph, Avoided) else graph, family)
    child = context.Process(target=_send_outcome, args=(send, made, family))
    child.start()
    send.close()
    try:
        return str(receive.recv())
    except EOFError:
        return "the process died"
    finally:
        child.join()


def _send_outcome(send: Connection, graph: Graph, family: str) -> None:
    faulthandler.disable()  # pytest has it print where the process died
    send.send(_outcome(graph, family, compile_as_it_stands))


def led_around(graph: Make | Avoided, family: str) -> tuple[str, int]:
    """As ``as_it_stands``, of what ethorch gives Vela instead; and how many operators that has more."""
    before = built(graph.instead if isinstance(graph, Avoided) else graph, family)
    after = rewrite(copy.deepcopy(before), TARGETS[NPUS[family]].tuning)
    return _outcome(after, family, vela.compile), len(after.ops) - len(before.ops)


def _outcome(graph: Graph, family: str, compile: Callable[[bytes, EthosUCompileSpec], vela.CompiledModel]) -> str:
    tosa, codes = serialize(graph), [_codes(value, seed) for seed, value in enumerate(graph.inputs)]
    try:
        model = compile(tosa, EthosUCompileSpec(NPUS[family]))
    except VelaError as error:
        return str(error)
    for kind, values, tensors in (("input", graph.inputs, model.inputs), ("output", graph.outputs, model.outputs)):
        if [(*(1,) * (6 - value.rank), *value.shape) for value in values] != [tensor.shape for tensor in tensors]:
            return f"{kind}s of other shapes: {[tensor.shape for tensor in tensors]} for {values}"
    try:
        found = run_compiled(model, codes)
    except MachineFault as error:
        return str(error)
    wanted = [array.ravel().astype(np.int64) for array in reference(tosa, codes)]
    different = sum(int((a != b.ravel()).sum()) for a, b in zip(wanted, found, strict=True))
    return f"{different} elements differ" if different else "right"


def _codes(value: Value, seed: int) -> npt.NDArray[np.generic]:
    kinds: Mapping[str, type[np.generic]] = {"BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32}
    low, high = (0, 2) if value.dtype == "BOOL" else (-60, 60)
    return np.random.default_rng(seed + 3).integers(low, high, value.shape).astype(kinds[value.dtype])


def findings(bug: VelaBug) -> Iterator[tuple[str, str, str]]:
    """Family, graph, and what the installed Vela makes of it as it stands."""
    for family in bug.families:
        for name, graph in GRAPHS[bug.id].items():
            yield family, name, as_it_stands(graph, family)


def main(ids: list[str]) -> None:
    print(f"ethos-u-vela {version('ethos-u-vela')}")
    for bug in [BY_ID[id] for id in ids] or VELA_BUGS:
        for family, name, found in findings(bug) if bug.id in GRAPHS else ():
            avoided, _ = led_around(GRAPHS[bug.id][name], family)
            print(f"{bug.id:40} {name:24} {family}  as it stands: {found[:60]:60}  led around: {avoided[:60]}")


if __name__ == "__main__":
    main(sys.argv[1:])
