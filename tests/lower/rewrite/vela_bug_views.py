"""Graphs of ``vela_bug_graphs`` about slices and views of one value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ethorch.lower.builder.builder import Builder
from ethorch.tosa.ir import Value
from tests.lower.rewrite.vela_bug_makers import Make, constant, int32, table, whole


def product_of_turned_slice(b: Builder) -> tuple[Value, ...]:
    """A CLAMP of a SLICE, and a product with its TRANSPOSE."""
    x = b.emit("SLICE", b.input("x", (1, 4, 8, 5), "INT8"), start=(0, 2, 0, 0), size=(1, 1, 8, 5))
    clamped = b.emit("CLAMP", x, min_val=-4, max_val=50)
    turned = b.reshape(b.emit("TRANSPOSE", b.reshape(x, (8, 5)), perms=(1, 0)), (1, 5, 8))
    return clamped, b.rescale(b.emit("MATMUL", b.input("y", (1, 6, 5), "INT8"), turned, a_zp=0, b_zp=0), 0.01)


def sum_of_turned_slice(b: Builder) -> tuple[Value, ...]:
    """A CLAMP of a SLICE, and a sum of its TRANSPOSE."""
    x = b.emit("SLICE", b.input("x", (1, 9, 7), "INT8"), start=(0, 2, 0), size=(1, 6, 7))
    turned = int32(b, b.emit("TRANSPOSE", x, perms=(0, 2, 1)))
    return b.emit("CLAMP", x, min_val=-4, max_val=50), b.rescale(b.emit("REDUCE_SUM", turned, axis=1), 0.1)


def chained_slice(name: str, size: int = 16, start: int = 32) -> Make:
    """``name`` of a sum of six rows of 16 and of a SLICE, to be broadcast, of 96 numbers."""

    def make(b: Builder) -> Value:
        x = b.rescale(b.emit("ADD", *(int32(b, b.input(key, (1, 6, 16), "INT8")) for key in "xz")), 0.5)
        part = b.emit("SLICE", b.input("e", (1, 96), "INT8"), start=(0, start), size=(1, size))
        part = b.reshape(part, (1, 1, size))
        made = b.emit(name, int32(b, x), int32(b, part), **({"shift": 0} if name == "MUL" else {}))
        return b.rescale(made, 0.01 if name == "MUL" else 0.5)

    return make


def parts_of_reshaped_rescale(b: Builder) -> tuple[Value, ...]:
    """Two parts of a rescaled map in another shape, each in an operator of its own."""
    x = b.reshape(b.rescale(b.input("x", (4, 24), "INT8"), 0.7, input_zp=3), (8, 12))
    parts = [int32(b, b.emit("SLICE", x, start=(row, 1), size=(3, 6))) for row in (0, 4)]
    others = [int32(b, b.input(name, (3, 6), "INT8")) for name in "uv"]
    total = b.emit("ADD", parts[0], others[0])
    return b.rescale(total, 0.5), b.rescale(b.emit("MUL", parts[1], others[1], shift=0), 0.01)


def beside_convolution(name: str) -> Make:
    """``name`` of all pairs of 24 numbers, that a convolution reads in another shape."""

    def make(b: Builder) -> tuple[Value, ...]:
        x = b.input("x", (1, 24, 1), "INT8")
        where = {"pad": (0,) * 4, "stride": (1, 1), "dilation": (1, 1), "input_zp": 0, "weight_zp": 0}
        maps = b.emit("CONV2D", b.reshape(x, (1, 1, 24, 1)), constant(b, 5, 1, 1, 1), constant(b, 5, dtype=np.int32), **where)
        row, column = (int32(b, b.reshape(x, shape)) for shape in ((1, 24), (24, 1)))
        pairs = b.emit(name, row, column, **({"shift": 0} if name == "MUL" else {}))
        return b.rescale(maps, 0.01), b.rescale(pairs, 0.01 if name == "MUL" else 0.5)

    return make


def along_column(name: str) -> Make:
    """``name`` along the rows of a map of one channel that another operator reads, too."""

    def make(b: Builder) -> tuple[Value, ...]:
        x = b.emit("MAX_POOL2D", b.input("x", (1, 3, 4, 1), "INT8"), kernel=(1, 1), stride=(1, 1), pad=(0, 0, 0, 0))
        return b.emit("REVERSE", x, axis=1), b.emit(name, b.reshape(x, (1, 1, 3, 4)), axis=3)

    return make


def along_sum(name: str, transposed: bool = False) -> Make:
    """``name`` along the last axis of a sum along the axis before it."""

    def make(b: Builder) -> Value:
        total = b.emit("REDUCE_SUM", b.rescale(b.input("x", (1, 8, 4, 6), "INT8"), 1, dtype="INT32"), axis=2)
        rows = b.rescale(total, 0.5, dtype="INT8")
        return b.emit(name, b.emit("TRANSPOSE", rows, perms=(0, 2, 1, 3)) if transposed else rows, axis=3)

    return make


def along_truths_of_sum(b: Builder) -> Value:
    """``all`` along the last axis of truth values that are computed from a sum along the axis before it."""
    total = b.emit("REDUCE_SUM", b.rescale(b.input("x", (1, 8, 4, 6), "INT8"), 1, dtype="INT32"), axis=2)
    truth = b.emit("TABLE", b.rescale(total, 0.5, dtype="INT8"), b.const((np.arange(256) > 100).astype(np.int8)))
    return b.emit("CAST", b.emit("REDUCE_ALL", b.emit("CAST", truth, dtype="BOOL"), axis=3), dtype="INT8")


def along_reversed(b: Builder) -> Value:
    x = b.emit("REVERSE", b.input("x", (2, 3, 5, 4), "INT8"), axis=3)
    return b.emit("ARGMAX", x, axis=3)


def gathered(rows: int) -> Make:
    """``rows`` rows of a map of 16, by indices that are computed."""
    return lambda b: b.emit("GATHER", b.input("x", (1, 16, 3), "INT8"), in_range(b, b.input("i", (1, rows), "INT32"), 16))


def gathered_in_batches(batches: int) -> Make:
    """A row of each of ``batches`` maps of 2 rows, by indices that are computed."""
    return lambda b: b.emit("GATHER", b.input("x", (batches, 2, 1), "INT8"), in_range(b, b.input("i", (batches, 1), "INT32"), 2))


def scattered_in_batches(batches: int) -> Make:
    """A row into each of ``batches`` maps of 2 rows."""

    def make(b: Builder) -> Value:
        indices = in_range(b, b.input("i", (batches, 1), "INT32"), 2)
        return b.emit("SCATTER", b.input("x", (batches, 2, 1), "INT8"), indices, b.input("y", (batches, 1, 1), "INT8"))

    return make


def in_range(b: Builder, value: Value, count: int) -> Value:
    """Return ``value`` modulo ``count``, a power of 2."""
    return b.emit("BITWISE_AND", value, b.const(np.full((1,) * value.rank, count - 1, np.int32)))


def scattered(rows: int) -> Make:
    """``rows`` rows into a map of as many and some more, backwards."""

    def make(b: Builder) -> Value:
        indices = b.emit(
            "SUB", b.const(np.arange(rows, dtype=np.int32)[None, ::-1].copy()), in_range(b, b.input("i", (1, 1), "INT32"), 1)
        )
        return b.emit("SCATTER", b.input("x", (1, rows + 5, 3), "INT8"), indices, b.input("y", (1, rows, 3), "INT8"))

    return make


def several_of_slice_behind_ones(*readers: Callable[[Builder, Value], Value]) -> Make:
    """``readers`` of one SLICE that is reshaped to have ones in front."""

    def make(b: Builder) -> tuple[Value, ...]:
        x = b.emit("SLICE", b.input("x", (4, 12, 8), "INT8"), start=(0, 3, 0), size=(4, 5, 8))
        x = b.reshape(x, (1, 1, 4, 5, 8))
        return tuple(read(b, x) for read in readers)

    return make


def reverse_rows(b: Builder, x: Value) -> Value:
    return b.emit("REVERSE", x, axis=x.rank - 2)


def transpose_of_dropped(*shape: int, perms: tuple[int, ...] = (0, 2, 1), dtype: str = "INT16") -> Make:
    """A TRANSPOSE of a map of ``shape`` without its axes of one element."""

    def make(b: Builder) -> Value:
        x = b.reshape(b.input("x", shape, dtype), tuple(extent for extent in shape if extent != 1))
        return b.emit("TRANSPOSE", x, perms=perms)

    return make


def table_of_transpose(b: Builder) -> Value:
    return table(b, b.emit("TRANSPOSE", b.emit("CLAMP", whole(b), min_val=-50, max_val=50), perms=(0, 3, 1, 2)), 0)
