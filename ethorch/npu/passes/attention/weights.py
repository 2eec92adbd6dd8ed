"""Uncompressed weight streams with one byte per weight, which kernels can write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from ethorch.npu.arithmetic import round_up

ZERO_POINT = -1  # of bytes that become weights
LEAD = 9  # bytes before weight 0
FIRST_LOW, FIRST_HIGH = 4, 5  # bytes of the header with the halves of the first weight
LINE = 16  # bytes; unit of transfers
LANES = 8  # inputs that are adjacent in a stream
IFM_BLOCK = 32  # inputs that the array processes at once
MOST_TAPS = 8  # of a kernel that is processed at once
MOST_WEIGHTS = (1 << 15) + 1  # of both slices
_ZDIV_NONE, _WDIV_RAW, _DIROFS, _WEIGHT_BITS = 6, 7, 1, 8
_HEADER_BITS = 36
_END = 0xFF  # ZDIV 7: no further slice


def _slice_header(weights: int) -> int:
    return _ZDIV_NONE | (weights - 1) << 3 | _WDIV_RAW << 18 | 1 << 22 | _DIROFS << 23 | (_WEIGHT_BITS - 2) << 33


def build_header(weights: int) -> bytes:
    """Return the first LINE bytes of a stream with an even number of weights."""
    bits = _slice_header(1) | _slice_header(weights - 1) << _HEADER_BITS + _WEIGHT_BITS
    return bits.to_bytes(LEAD + 1, "little") + bytes(LINE - LEAD - 1)


def build_end() -> bytes:
    return bytes([_END] * LINE)


def build_tables() -> tuple[bytes, bytes, bytes]:
    """Return lookup tables that map an operand value to its weight byte, header byte FIRST_LOW, and header byte FIRST_HIGH."""
    weight = np.arange(-128, 128) - ZERO_POINT
    index = np.where(weight > 0, 2 * weight - 1, -2 * weight)
    low = _slice_header(1) >> 8 * FIRST_LOW | (index & 15) << 4
    high = index >> 4 | (_slice_header(1) & 15) << 4
    return index.astype(np.uint8).tobytes(), low.astype(np.uint8).tobytes(), high.astype(np.uint8).tobytes()


@dataclass(frozen=True)
class Box:
    """The weights that one kernel copies."""

    output: int  # first output
    input: int  # first input
    height: int
    width: int  # outputs
    channels: int  # inputs
    output_step: int  # outputs between rows
    input_step: int  # inputs between rows
    offset: int  # byte in the stream
    stride: int  # bytes between rows in the stream


def _exclude_first(box: Box) -> Iterator[Box]:
    if box.height > 1:
        below = {"output": box.output + box.output_step, "input": box.input + box.input_step}
        yield replace(box, height=box.height - 1, offset=box.offset + box.stride, **below)
    if box.width > 1:
        yield replace(box, output=box.output + 1, height=1, width=box.width - 1, offset=box.offset + LANES)
    if box.channels > 1:
        yield replace(box, input=box.input + 1, height=1, width=1, channels=box.channels - 1, offset=box.offset + 1)


@dataclass(frozen=True)
class Layout:
    """The order of weights [outputs, inputs] in a stream."""

    outputs: int
    inputs: int
    unit: int  # outputs that are adjacent in a stream
    has_taps: bool  # inputs are taps of 32 channels

    @property
    def rows(self) -> int:
        return round_up(self.outputs, self.unit)

    @property
    def depth(self) -> int:
        return round_up(self.inputs, IFM_BLOCK)

    @property
    def weights(self) -> int:
        return self.rows * self.depth

    @property
    def size_bytes(self) -> int:
        return self.weights + LINE

    @property
    def _group_bytes(self) -> int:
        return self.unit * (self.depth if self.has_taps else IFM_BLOCK)

    def _offset(self, output: int, first: int) -> int:
        """Return a weight's byte offset. ``output`` must be a multiple of ``unit``, and ``first`` a multiple of LANES."""
        block, inside = divmod(first, IFM_BLOCK)
        block_bytes = IFM_BLOCK * (self.unit if self.has_taps else self.rows)
        return LEAD + output // self.unit * self._group_bytes + block * block_bytes + inside * self.unit

    def list_boxes(self) -> list[Box]:
        """Return boxes that cover all weights except the first."""
        by_inputs, by_outputs = list(self._cut_inputs()), list(self._cut_outputs())
        boxes = by_inputs if len(by_inputs) <= len(by_outputs) else by_outputs
        return [part for box in boxes for part in (_exclude_first(box) if box.offset == LEAD else (box,))]

    def list_gaps(self) -> list[Box]:
        """Return boxes that cover the padding. Kernels write zeros to it, regardless of the source weights."""
        gaps: list[Box] = []
        for first in (self.inputs, *range(round_up(self.inputs, LANES), self.depth, LANES)):
            start, inside = first // LANES * LANES, first % LANES
            if first < self.depth and (inside or start == first):
                gaps += self._box_rows(start, LANES - inside, inside)
        if rest := self.rows - self.outputs:
            gaps += self._cut_padding(self.outputs, rest)
        return [part for gap in gaps for part in self._clip_source(gap)]

    def _cut_padding(self, output: int, outputs: int) -> Iterator[Box]:
        group, inside = output // self.unit * self.unit, output % self.unit
        chunks = self.inputs // LANES
        singles = [(first, 1, 0) for first in range(chunks * LANES, self.depth, LANES)]
        for first, count, step in (*self._list_runs(chunks), *singles):
            stride = self._offset(0, first + step) - self._offset(0, first)
            offset = self._offset(group, first) + LANES * inside
            yield Box(output, first, count, outputs, LANES, 0, step, offset, stride)

    def _clip_source(self, box: Box) -> Iterator[Box]:
        width, channels = min(box.width, self.outputs), min(box.channels, self.inputs)
        output = box.output if box.output + width <= self.outputs else 0
        first = box.input if box.input + (box.height - 1) * box.input_step + channels <= self.inputs else 0
        for column in range(0, box.width, width):
            for lane in range(0, box.channels, channels):
                size = {"width": min(width, box.width - column), "channels": min(channels, box.channels - lane)}
                yield replace(box, output=output, input=first, offset=box.offset + LANES * column + lane, **size)

    def _cut_inputs(self) -> Iterator[Box]:
        full_inputs = self.inputs // LANES * LANES
        for first in range(0, self.inputs, LANES):
            groups = self.outputs // self.unit
            if groups:
                yield self._box_groups(groups, first, min(LANES, self.inputs - first))
        if rest := self.outputs % self.unit:
            yield from self._box_group(self.outputs - rest, rest)
            if full_inputs < self.inputs:
                yield from self._box_rows_of(self.outputs - rest, rest, full_inputs, self.inputs - full_inputs, 0)

    def _cut_outputs(self) -> Iterator[Box]:
        for output in range(0, self.outputs, self.unit):
            yield from self._box_group(output, min(self.unit, self.outputs - output))
        if rest := self.inputs % LANES:
            yield from self._box_rows(self.inputs - rest, rest, 0)

    def _box_rows(self, first: int, channels: int, lane: int) -> Iterator[Box]:
        groups, rest = divmod(self.outputs, self.unit)
        if groups:
            yield self._box_groups(groups, first, channels, lane)
        if rest:
            yield from self._box_rows_of(self.outputs - rest, rest, first, channels, lane)

    def _box_groups(self, groups: int, first: int, channels: int, lane: int = 0) -> Box:
        return Box(0, first, groups, self.unit, channels, self.unit, 0, self._offset(0, first) + lane, self._group_bytes)

    def _box_rows_of(self, output: int, outputs: int, first: int, channels: int, lane: int) -> Iterator[Box]:
        yield Box(output, first, 1, outputs, channels, 0, 0, self._offset(output, first) + lane, 0)

    def _box_group(self, output: int, outputs: int) -> Iterator[Box]:
        chunks = self.inputs // LANES
        for first, count, step in self._list_runs(chunks):
            stride = self._offset(0, first + step) - self._offset(0, first)
            yield Box(output, first, count, outputs, LANES, 0, step, self._offset(output, first), stride)

    def _list_runs(self, chunks: int) -> list[tuple[int, int, int]]:
        """Return (first input, count, distance) for each series of equally spaced groups of LANES inputs."""
        per_block = IFM_BLOCK // LANES
        if self.has_taps or chunks <= per_block:
            return [(0, chunks, LANES)] if chunks else []
        if ceil(chunks / per_block) <= per_block:
            blocks = range(0, chunks, per_block)
            return [(LANES * first, min(per_block, chunks - first), LANES) for first in blocks]
        return [(LANES * first, ceil((chunks - first) / per_block), IFM_BLOCK) for first in range(per_block)]
