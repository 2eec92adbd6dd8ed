"""What puts together the graphs of ``vela_bug_graphs``: parts that many have, and a function for each that is not a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ethorch.lower.builder.builder import Builder
from ethorch.tosa.ir import Op, Value

#: Puts a graph together and returns its outputs.
Make = Callable[[Builder], Value | tuple[Value, ...]]


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


def before_another(b: Builder, value: Value) -> Value:
    return b.emit("CONCAT", value, b.input("z", value.shape, value.dtype), axis=0)


def among_pictures(b: Builder, value: Value) -> Value:
    return b.emit("PAD", value, padding=(1, 1) + (0, 0) * (value.rank - 1), pad_const=0)


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


def convolved(b: Builder, x: Value, name: str, dilation: int = 1) -> Value:
    c = x.shape[3]
    depthwise = name == "DEPTHWISE_CONV2D"
    weight = constant(b, *((3, 3, c, 1) if depthwise else (6, 3, 3, c)))
    bias = constant(b, c if depthwise else 6, dtype=np.int32)
    where = {"out_pad": (0, 0, 0, 0)} if name == "TRANSPOSE_CONV2D" else {"pad": (dilation,) * 4, "dilation": (dilation,) * 2}
    return b.rescale(b.emit(name, x, weight, bias, stride=(1, 1), input_zp=0, weight_zp=0, **where), 0.002)


def equal_weights(name: str, dtype: str = "INT8", biases: Sequence[int] = (100, -200)) -> Make:
    """Convolutions that differ in their bias only, whose weights are as far from each other as they get."""

    def make(b: Builder) -> Value:
        x, parts = b.input("x", (1, 5, 6, 4), dtype), []
        wide = "INT48" if dtype == "INT16" else "INT32"
        for bias in biases:
            weight = np.resize(
                np.asarray([127, -127, 5, -60, 31], np.int8), (3, 3, 4, 1) if name == "DEPTHWISE_CONV2D" else (4, 3, 3, 4)
            )
            operands = b.const(weight, name="weight"), b.const(np.full(4, 50 * bias), wide, name="bias")
            acc = b.emit(name, x, *operands, pad=(1,) * 4, stride=(1, 1), dilation=(1, 1), input_zp=0, weight_zp=0)
            parts.append(b.rescale(acc, 0.002, dtype=dtype))
        return b.emit("CONCAT", *parts, axis=3)

    return make


def dilated(b: Builder, name: str, rows: int, dilation: int, pad: int, stride: int = 1) -> Value:
    """A convolution of 3 x 3 on a map of so many rows of 30 places."""
    weight = constant(b, *((3, 3, 6, 1) if name == "DEPTHWISE_CONV2D" else (6, 3, 3, 6)))
    bias, x = constant(b, 6, dtype=np.int32), b.input("x", (1, rows, 30, 6), "INT8")
    attrs = {"pad": (pad,) * 4, "dilation": (dilation,) * 2, "stride": (stride,) * 2}
    return b.rescale(b.emit(name, x, weight, bias, input_zp=0, weight_zp=0, **attrs), 0.002)


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


def spread_slices(b: Builder) -> Value:
    """A product of two SLICEs of five axes, each broadcast along others."""
    x = b.emit("SLICE", b.input("x", (3, 3, 2, 4), "INT8"), start=(0, 0, 0, 1), size=(3, 3, 2, 3))
    y = b.emit("SLICE", b.input("y", (2, 4, 2), "INT8"), start=(0, 1, 0), size=(2, 3, 2))
    x, y = b.reshape(x, (1, 3, 3, 2, 3)), b.reshape(y, (2, 1, 3, 2, 1))
    return b.rescale(b.emit("MUL", int32(b, x), int32(b, y), shift=0), 0.01)


def slice_behind_ones(name: str, into: int = 1, axes: int = 5) -> Make:
    """``name`` of a SLICE that is reshaped to have ones in front; ``into``: along the first it is broadcast."""

    def make(b: Builder) -> Value:
        x = b.emit("SLICE", b.input("x", (4, 12, 8), "INT8"), start=(0, 3, 0), size=(4, 5, 8))
        x = b.reshape(x, (1,) * (axes - 3) + x.shape)
        if name == "CLAMP":
            return b.emit("CLAMP", x, min_val=-9, max_val=9)
        if name == "RESCALE":
            return b.rescale(x, 0.5, output_zp=3)
        if name == "TABLE":
            return b.rescale(b.emit("MUL", int32(b, table(b, x, 1)), int32(b, b.input("z", x.shape, "INT8")), shift=0), 0.01)
        if name == "NEGATE":
            return b.emit("NEGATE", x, input_zp=0, output_zp=0)
        if name == "ABS":
            return b.emit("ABS", int32(b, x))
        other = int32(b, b.input("z", (into, *x.shape[1:]), "INT8"))
        made = b.emit(name, int32(b, x), other, **({"shift": 0} if name == "MUL" else {}))
        return b.rescale(made, 0.01, dtype="INT8")

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


def select_of_rescaled(*, twice: bool) -> Make:
    """The condition and the SELECT read a RESCALE in another shape than it, or the RESCALE before it, is made in."""

    def make(b: Builder) -> Value:
        x = b.input("x", (2, 1, 6), "INT8")
        if twice:
            x = b.rescale(b.reshape(int32(b, x, 0.7), (2, 6)), 1.0, dtype="INT8", output_zp=3)
        else:
            x = b.reshape(b.rescale(x, 0.7, output_zp=3), (2, 6))
        y = b.input("y", (2, 6), "INT8")
        condition = b.emit("GREATER", b.emit("SUB", int32(b, x), int32(b, y)), b.const(np.zeros((1, 1), np.int32)))
        return b.emit("SELECT", condition, x, y)

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


def reduced_condition(b: Builder) -> tuple[Value, ...]:
    x, y = pair(b)
    condition = b.emit("GREATER", int32(b, x), int32(b, y))
    return condition, b.emit("REDUCE_ANY", condition, axis=0)


def resized(b: Builder, factor: int) -> Value:
    """A map, enlarged without interpolation."""
    scale, offset = (2 * factor, 2) * 2, (1 - factor,) * 2
    return b.emit("RESIZE", whole(b), scale=scale, offset=offset, border=(factor - 1,) * 2, mode="NEAREST")


def added_and_subtracted(b: Builder) -> Value:
    """A map is rescaled to INT32 and back, reshaped, added to itself, and the sum is subtracted from it."""
    x = b.input("x", (1, 33, 8, 1), "INT8")
    same = b.reshape(b.rescale(int32(b, x), 1.0), (33, 8))
    total = b.rescale(b.emit("ADD", int32(b, same), int32(b, b.reshape(x, (33, 8)))), 0.5)
    return b.rescale(b.emit("SUB", int32(b, same, 2.0**18), int32(b, total, 2.0**19)), 2.0**-18)


def two_sums(b: Builder) -> Value:
    """The sum of two sums of an INT16 input, each clamped."""
    x = b.input("x", (1, 32, 48), "INT16")
    sums = [b.rescale(b.emit("REDUCE_SUM", int32(b, x), axis=1), 0.1, dtype="INT16") for _ in range(2)]
    clamped_sums = [b.emit("CLAMP", each, min_val=-32767, max_val=32767) for each in sums]
    return b.rescale(b.emit("ADD", *(int32(b, each) for each in clamped_sums)), 0.5, dtype="INT16")


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


def dilated_rows_of_long_columns(dilation: int) -> Make:
    """A convolution that is dilated along the rows of a map with many columns."""

    def make(b: Builder) -> Value:
        x, bias = b.input("x", (1, 7, 65_537, 1), "INT8"), constant(b, 1, dtype=np.int32)
        where = {"pad": (dilation, dilation, 1, 1), "stride": (1, 1), "dilation": (dilation, 1)}
        return b.rescale(b.emit("CONV2D", x, constant(b, 1, 3, 3, 1), bias, **where, input_zp=3, weight_zp=0), 0.01)

    return make


def strided_rows_of_long_columns(b: Builder) -> Value:
    """A convolution with a stride and padding along the rows of a map with many columns."""
    x, bias = b.input("x", (1, 9, 65_537, 1), "INT8"), constant(b, 1, dtype=np.int32)
    where = {"pad": (2, 2, 1, 1), "stride": (2, 1), "dilation": (1, 1)}
    return b.rescale(b.emit("CONV2D", x, constant(b, 1, 5, 3, 1), bias, **where, input_zp=3, weight_zp=0), 0.01)


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


def pooled_along(extent: int, taps: int = 5, stride: int = 2) -> Make:
    window = {"kernel": (1, taps), "stride": (1, stride), "pad": (0, 0, taps // 2, taps // 2)}
    return lambda b: b.emit("MAX_POOL2D", b.input("x", (1, 1, extent, 2), "INT8"), **window)


def widened_pool(dtype: str, reshaped: bool) -> Make:
    """An average over windows of 2 x 6, which do not overlap, as INT32."""

    def make(b: Builder) -> Value:
        x = b.input("x", (1, 4, 12, 3), dtype)
        pool = b.emit("AVG_POOL2D", x, kernel=(2, 6), stride=(2, 6), pad=(0, 0, 0, 0), input_zp=0, output_zp=0)
        return b.rescale(b.reshape(pool, (4, 3)) if reshaped else pool, 2, dtype="INT32")

    return make


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
