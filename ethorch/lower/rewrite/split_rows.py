"""Compute a subgraph in bands of rows, so that only one band of its intermediate tensors is live.

Unlike Vela's cascades, bands can include CONCATs, data movement, and values with two readers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import Graph, Op, Value

Range = tuple[int, int]  #: first row, and last row + 1

_BYTES = {"INT8": 1, "BOOL": 1, "INT16": 2}  # INT32 sums are quantized before they are stored
_POINTWISE = frozenset(
    {"RESCALE", "CLAMP", "TABLE", "ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "ABS", "ARITHMETIC_RIGHT_SHIFT", "CAST", "IDENTITY"}
)
_WINDOWS = frozenset({"CONV2D", "DEPTHWISE_CONV2D", "MAX_POOL2D", "AVG_POOL2D"})
_VIEWS = frozenset({"RESHAPE", "SLICE"})
_ROWS = 1  # axis in NHWC
_LEAST_ROWS = 4  # minimum number of rows of a result


@dataclass(frozen=True)
class _Read:
    operand: int
    axis: int
    rows: Range


def _axis_before(op: Op, axis: int) -> int | None:
    before = math.prod(op.result.shape[:axis])
    shape = op.operands[0].shape
    for candidate, size in enumerate(shape):
        high, wide = op.result.shape[axis], size
        if math.prod(shape[:candidate]) == before and (high % wide == 0 or wide % high == 0) and wide > 1:
            return candidate
    return None


def _window(op: Op) -> tuple[int, int, int, int]:
    kernel = op.attrs["kernel"][0] if "kernel" in op.attrs else op.operands[1].shape[0 if op.name == "DEPTHWISE_CONV2D" else 1]
    return kernel, op.attrs["stride"][0], op.attrs["dilation"][0] if "dilation" in op.attrs else 1, op.attrs["pad"][0]


def _rows_to_compute(op: Op, axis: int, rows: Range) -> Range:
    if op.name != "RESHAPE":
        return rows
    before = _axis_before(op, axis)
    assert before is not None
    parts = max(1, op.result.shape[axis] // op.operands[0].shape[before])
    return rows[0] // parts * parts, -(-rows[1] // parts) * parts


def _reads(op: Op, axis: int, rows: Range) -> list[_Read] | None:
    first, last = rows
    shape = op.result.shape
    if len(op.results) != 1:
        return None
    if op.name in _POINTWISE:
        if axis == len(shape) - 1:
            return None
        reads = []
        for number, value in enumerate(op.operands):
            if value.rank == len(shape) and value.shape[axis] == shape[axis]:
                if value.is_const and shape[axis] > 1:
                    return None
                reads.append(_Read(number, axis, rows))
        return [read for read in reads if not op.operands[read.operand].is_const]
    if op.name in _WINDOWS:
        if axis != _ROWS or any(not value.is_const for value in op.operands[1:]):
            return None
        kernel, stride, dilation, pad = _window(op)
        low, high = first * stride - pad, (last - 1) * stride - pad + (kernel - 1) * dilation + 1
        return [_Read(0, axis, (max(low, 0), min(high, op.operands[0].shape[_ROWS])))]
    if op.name == "CONCAT":
        return None if op.attrs["axis"] == axis else [_Read(number, axis, rows) for number in range(len(op.operands))]
    if op.name == "SLICE":
        start = op.attrs["start"][axis]
        return [_Read(0, axis, (first + start, last + start))]
    if op.name == "TRANSPOSE":
        return [_Read(0, op.attrs["perms"][axis], rows)]
    if op.name == "RESHAPE":
        before = _axis_before(op, axis)
        if before is None:
            return None
        high, wide = shape[axis], op.operands[0].shape[before]
        return [_Read(0, before, (first * wide // high, last * wide // high))]
    return None


def _again(at: Place, op: Op, axis: int, rows: Range, operands: Sequence[Value]) -> Value:
    changed: dict[str, Any] = {}
    if op.name in _WINDOWS:
        kernel, stride, dilation, pad = _window(op)
        low, high = rows[0] * stride - pad, (rows[1] - 1) * stride - pad + (kernel - 1) * dilation + 1
        changed["pad"] = (max(0, -low), max(0, high - op.operands[0].shape[_ROWS]), *op.attrs["pad"][2:])
    elif op.name == "SLICE":
        changed["start"] = _with(op.attrs["start"], axis, 0)
        changed["size"] = _with(op.attrs["size"], axis, rows[1] - rows[0])
    elif op.name == "RESHAPE":
        changed["shape"] = _with(op.result.shape, axis, rows[1] - rows[0])
    return at.again(op, *operands, **changed)


def _with(sizes: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    return tuple(size if number == axis else old for number, old in enumerate(sizes))


def _cut(at: Place, value: Value, axis: int, has: Range, rows: Range) -> Value:
    if has == rows:
        return value
    start = tuple(rows[0] - has[0] if number == axis else 0 for number in range(value.rank))
    return at.emit("SLICE", value, start=start, size=_with(value.shape, axis, rows[1] - rows[0]))


@dataclass(frozen=True)
class Part:
    """Operators that can be computed in bands of rows of ``result``.

    Attributes:
        ops: Operators in graph order. The last operator computes the result.
        axes: Row axis of each value that the operators compute or read.
    """

    ops: tuple[Op, ...]
    axes: dict[Value, int]

    @property
    def result(self) -> Value:
        return self.ops[-1].result

    @property
    def inputs(self) -> list[Value]:
        computed = {op.result for op in self.ops}
        return [value for value in self.axes if value not in computed]

    def rows(self, band: Range) -> dict[Value, Range]:
        needed = {self.result: band}
        for op in reversed(self.ops):
            needed[op.result] = _rows_to_compute(op, self.axes[op.result], needed[op.result])
            for read in _reads(op, self.axes[op.result], needed[op.result]) or ():
                value = op.operands[read.operand]
                low, high = needed.get(value, read.rows)
                needed[value] = min(low, read.rows[0]), max(high, read.rows[1])
        return needed

    def bands(self, count: int) -> list[Range]:
        height = self.result.shape[_ROWS]
        cuts = [height * number // count for number in range(count + 1)]
        return [(low, high) for low, high in itertools.pairwise(cuts) if low < high]

    def work(self, count: int) -> float:
        """Return the ratio of the multiply-accumulates with ``count`` bands to those with one band."""
        rows_by_band = [self.rows(band) for band in self.bands(count)]
        once, banded = 0.0, 0.0
        for op in self.ops:
            if op.name in _WINDOWS:
                shape = op.result.shape
                taps = op.attrs["kernel"] if "kernel" in op.attrs else (math.prod(op.operands[1].shape) // shape[-1],)
                products = math.prod((*taps, *shape))
                once += products
                banded += products * sum(each[op.result][1] - each[op.result][0] for each in rows_by_band) / shape[_ROWS]
        return banded / once

    def alive_bytes(self, count: int) -> int:
        """Estimate the peak number of live bytes with ``count`` bands."""
        bands = self.bands(count)
        rows = self.rows(bands[len(bands) // 2])
        last = {value: number for number, op in enumerate(self.ops) for value in op.operands}
        computed, alive, most = {op.result for op in self.ops}, 0, 0
        for number, op in enumerate(self.ops):
            alive += self._bytes(op, rows)
            most = max(most, alive)
            for value in set(op.operands) & computed:
                if last[value] == number:
                    alive -= self._bytes(self._maker(value), rows)
        input_bytes = sum(memory_bytes(value) for value in self.inputs)
        return input_bytes + (most + memory_bytes(self.result) if count > 1 else most)

    def _maker(self, value: Value) -> Op:
        return next(op for op in self.ops if op.result is value)

    def _bytes(self, op: Op, rows: Mapping[Value, Range]) -> int:
        low, high = rows[op.result]
        height = op.result.shape[self.axes[op.result]]
        return 0 if op.name in _VIEWS else memory_bytes(op.result) * (high - low) // height


def memory_bytes(value: Value) -> int:
    """Return the size of a value in memory, or 0 for INT32 values, which are not stored."""
    return math.prod(value.shape) * _BYTES.get(value.dtype, 0)


def part_of(graph: Graph, result: Value, smallest: int) -> Part | None:
    """Return the largest Part that computes ``result``, or None. Values of up to ``smallest`` bytes become inputs of the Part."""
    readers: dict[Value, list[Op]] = {}
    for op in graph.ops:
        for value in op.operands:
            readers.setdefault(value, []).append(op)
    outputs = set(graph.outputs)
    ops: list[Op] = []
    inside: set[int] = set()
    axes = {result: _ROWS}
    for op in reversed(graph.ops):
        value = op.results[0]
        if value not in axes:
            continue
        if value is not result:
            if value in outputs or any(id(reader) not in inside for reader in readers.get(value, ())):
                continue
            if op.name not in _VIEWS and value.dtype in _BYTES and memory_bytes(value) <= smallest:
                continue
        reads = _reads(op, axes[value], (0, value.shape[axes[value]]))
        if not reads or any(axes.get(op.operands[read.operand], read.axis) != read.axis for read in reads):
            if value is result:
                return None
            continue
        axes |= {op.operands[read.operand]: read.axis for read in reads}
        ops.append(op)
        inside.add(id(op))
    return Part(tuple(reversed(ops)), axes) if len(ops) > 1 else None


def parts(graph: Graph) -> Iterator[Part]:
    """Iterate over the distinct Parts that contain a convolution or pool."""
    seen: set[tuple[int, ...]] = set()
    for op in graph.ops:
        value = op.results[0]
        if value.rank != 4 or value.shape[0] != 1 or value.shape[_ROWS] < _LEAST_ROWS or value.dtype not in _BYTES:
            continue
        largest = None if op.name in _VIEWS else part_of(graph, value, 0)
        sizes = (
            sorted({memory_bytes(member.result) for member in largest.ops if member.name not in _VIEWS} - {0}) if largest else []
        )
        for smallest in [0, *sizes]:
            part = part_of(graph, value, smallest)
            key = () if part is None else tuple(id(member) for member in part.ops)
            if part is not None and key not in seen and any(member.name in _WINDOWS for member in part.ops):
                seen.add(key)
                yield part


def split_rows(r: Rewriter, part: Part, count: int) -> None:
    end = part.ops[-1]
    at, joined = r.before(end), []
    for band in part.bands(count):
        rows = part.rows(band)
        values: dict[Value, tuple[Value, Range]] = {value: (value, (0, value.shape[part.axes[value]])) for value in part.inputs}
        for op in part.ops:
            operands = list(op.operands)
            for read in _reads(op, part.axes[op.result], rows[op.result]) or ():
                value = op.operands[read.operand]
                operands[read.operand] = _cut(at, values[value][0], read.axis, values[value][1], read.rows)
            values[op.result] = _again(at, op, part.axes[op.result], rows[op.result], operands), rows[op.result]
        joined.append(_cut(at, values[end.result][0], _ROWS, values[end.result][1], band))
    if len(joined) > 1:
        r.replace(end, at.emit("CONCAT", *joined, axis=_ROWS))
        r.drop_dead()
