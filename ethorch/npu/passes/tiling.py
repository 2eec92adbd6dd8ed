"""Run operations part by part, so that an intermediate feature map needs memory for only one part."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ethorch.npu.ir import Op
from ethorch.npu.ir.stream import group_chains
from ethorch.npu.memory import INTERNAL
from ethorch.npu.passes.accesses import Access, CoarseLabels, list_reads, list_writes
from ethorch.npu.passes.layouts import WHOLE, place_parts, with_layout
from ethorch.npu.passes.segments import Segment
from ethorch.npu.passes.split import DEPTH, HEIGHT, WIDTH, split
from ethorch.npu.passes.tables import drop_transfers

_AXES = (HEIGHT, WIDTH, DEPTH)
_DIMENSIONS = ("OFM_HEIGHT_M1", "OFM_WIDTH_M1", "OFM_DEPTH_M1")
_OUTSIDE = 0  # label of bytes that no part accessed; the first part has label 1


@dataclass(frozen=True)
class Cut:
    """A division of an axis into ranges."""

    size: int  # extent of the axis of the first operation
    count: int

    def ranges(self, extent: int) -> list[tuple[int, int]] | None:
        """Return the ranges [start, stop) of an axis, or None if it cannot be divided."""
        if extent % self.size == 0:
            unit = extent // self.size
            bounds = [unit * (self.size * n // self.count) for n in range(self.count + 1)]
        elif extent % self.count == 0:
            bounds = [extent // self.count * n for n in range(self.count + 1)]
        else:
            return None
        return list(pairwise(bounds))


@dataclass
class _Unit:
    ops: list[Op]
    parts: list[list[Op]] | None = None  # by part
    number: int | None = None  # of the part to which an undivided unit belongs

    @property
    def is_table(self) -> bool:
        return all(op.is_dma and all(run.region == INTERNAL for run in op.writes) for op in self.ops)


class Tiler:
    """A stream to be divided into parts. Its buffers must not share bytes, and its operation keys must be unique."""

    def __init__(self, ops: Sequence[Op], sizes: Mapping[int, int], segments: Sequence[Segment], first_key: int):
        self.segments = segments
        self.units = [_Unit(group) for group in group_chains(ops)]
        self.sizes = sizes
        self.spaces = [segment.space for segment in segments]
        self.writers, self.readers = CoarseLabels(self.spaces), CoarseLabels(self.spaces)
        self._key = first_key
        self.work = 0  # operations that trials visited and created
        self._accesses: dict[int, tuple[list[Access], list[Access]]] = {}

    def accesses(self, op: Op) -> tuple[list[Access], list[Access]]:
        if op.key not in self._accesses:
            self._accesses[op.key] = list_reads(op, self.sizes), list_writes(op, self.sizes)
        return self._accesses[op.key]

    def tile(self, first: int, seed: int, axis: int, cut: Cut, last: int) -> tuple[int, list[list[Op]]] | None:
        """Divide the units with indices ``seed`` to ``last`` into parts, as far as dependencies permit.

        A unit is an operation or a chain. Units ``first`` to ``seed`` - 1 run in the first part that needs their results.

        Returns:
            Index after the last divided unit, and the operations of each part, or None if the units cannot be divided.
        """
        units = [replace(unit) for unit in self.units[first : last + 1]]
        end = self._divide(units, seed - first, axis, cut)
        self.work += sum(len(unit.ops) for unit in units[:end])
        if end <= seed - first:
            return None
        units = units[:end]
        if self.reuses_bytes([(op, unit.parts is not None) for unit in units for op in unit.ops]):
            return None
        self._number(units, cut.count)
        if not self._is_legal(units, cut.count):
            return None
        self._compact(units, first + 1, first + end)
        parts = self._renumber(_list_part(units, number) for number in range(cut.count))
        remaining = {op.key for op in drop_transfers([op for ops in parts for op in ops], self._find_tables(first + end))}
        return first + end, [[op for op in ops if op.key in remaining] for ops in parts]

    def include_tables(self, first: int, end: int) -> int:
        """Return the unit at or before ``first`` from which units before ``end`` find all lookup tables loaded."""
        start, missing = end, set[tuple[int, int]]()
        while start > 0 and (start > first or missing):
            start -= 1
            for op in self.units[start].ops:
                missing -= {(run.low, run.high) for run in op.writes if run.region == INTERNAL}
                missing |= {(run.low, run.high) for run in op.reads if run.region == INTERNAL}
        return start

    def _find_tables(self, end: int) -> npt.NDArray[np.bool_]:
        # Marks the internal bytes that units from ``end`` on read.
        npu = self.units[0].ops[0].npu
        needed, written = np.zeros(npu.internal_bytes, np.bool_), np.zeros(npu.internal_bytes, np.bool_)
        for op in (op for unit in self.units[end:] for op in unit.ops):
            for run in op.reads:
                if run.region == INTERNAL:
                    needed[run.low : run.high] |= ~written[run.low : run.high]
            if op.is_dma:
                for run in op.writes:
                    if run.region == INTERNAL:
                        written[run.low : run.high] = True
        return needed

    def _compact(self, units: Sequence[_Unit], start: int, end: int) -> None:
        # Stores each part of a feature map contiguously if only the corresponding parts of operations access it.
        inside = [
            segment for segment in self.segments if segment.pieces[0].start >= start and max(p.end for p in segment.pieces) <= end
        ]
        inside = [segment for segment in inside if min(p.start for p in segment.pieces) >= start]
        inside.sort(key=lambda segment: (segment.region, segment.low))
        keys = [(segment.region, segment.low) for segment in inside]
        uses: dict[int, list[tuple[int, list[Op], int, Access]]] = {}
        for unit in units:
            for number, ops in enumerate(unit.parts if unit.parts is not None else [unit.ops]):
                for index, op in enumerate(ops):
                    for access in (*self.accesses(op)[0], *self.accesses(op)[1]):
                        at = bisect.bisect_right(keys, (access.region, access.low)) - 1
                        if at >= 0 and inside[at].region == access.region and access.low < inside[at].high:
                            uses.setdefault(at, []).append((number if unit.parts is not None else WHOLE, ops, index, access))
        for at, accesses in uses.items():
            places = place_parts(accesses, inside[at])
            if places is None:
                continue
            for number, ops, index, access in accesses:
                assert access.fm is not None
                ops[index] = with_layout(ops[index], access.fm, places[number])
                self._accesses.pop(ops[index].key, None)

    def _renumber(self, parts: Iterable[Iterable[Op]]) -> list[list[Op]]:
        seen: set[int] = set()
        result: list[list[Op]] = []
        for ops in parts:
            result.append([])
            for op in ops:
                if op.key in seen:
                    op = replace(op, key=self._key)
                    self._key -= 1
                seen.add(op.key)
                result[-1].append(op)
        return result

    def _divide(self, units: list[_Unit], seed: int, axis: int, cut: Cut) -> int:
        # Divides units, and returns their number. The first unit that needs all parts ends the division.
        parts = self._split(units[seed], axis, cut)
        if parts is None:
            return 0
        units[seed].parts = parts
        self._clear()
        self._mark(parts)
        end = seed + 1
        axes = {_shape(units[seed]): axis}
        kinds: set[object] = set()  # of undivided units that depend on one part each
        for at in range(seed + 1, len(units)):
            unit = units[at]
            depends = max(self._find_parts(unit.ops, reads_only=False), default=_OUTSIDE)
            if unit.is_table:
                continue
            if depends == _OUTSIDE:  # it does not depend on parts, but parts may depend on it
                parts = self._split(unit, axes[_shape(unit)], cut) if _shape(unit) in axes else None
                if parts is not None:
                    unit.parts = parts
                    self._mark(parts)
                    end = at + 1
                continue
            for choice in _AXES:
                parts = self._split(unit, choice, cut)
                if parts is not None and self._follows(parts):
                    axes[_shape(unit)] = choice
                    unit.parts = parts
                    self._mark(parts)
                    end = at + 1
                    break
            else:
                number = depends - 1
                if number < cut.count - 1:
                    kinds.add(describe_shapes(unit.ops))
                elif describe_shapes(unit.ops) not in kinds:
                    break  # it depends on all parts
                unit.number = number
                self._mark([[]] * number + [unit.ops])
                end = at + 1
        return end

    def _split(self, unit: _Unit, axis: int, cut: Cut) -> list[list[Op]] | None:
        columns = []
        for op in unit.ops:
            if op.is_dma:
                return None
            extent = op.registers[_DIMENSIONS[axis]] + 1
            ranges = cut.ranges(extent) if extent >= cut.count else None
            if ranges is None:
                return None
            keys = range(self._key, self._key - cut.count, -1)
            self._key -= cut.count
            self.work += cut.count
            column = split(op, axis, ranges, keys)
            if column is None:
                return None
            columns.append(column)
        return [list(row) for row in zip(*columns, strict=True)]

    def _follows(self, parts: Sequence[Sequence[Op]]) -> bool:
        for number, ops in enumerate(parts, 1):
            numbers = self._find_parts(ops, reads_only=True)
            if max(numbers, default=_OUTSIDE) != number:
                return False
            if max(self._find_parts(ops, reads_only=False), default=_OUTSIDE) > number:
                return False
        return True

    def _find_parts(self, ops: Sequence[Op], reads_only: bool) -> set[int]:
        numbers = set[int]()
        for op in ops:
            reads, writes = self.accesses(op)
            for access in reads if reads_only else (*reads, *writes):
                numbers.update(int(view.max()) for view in self.writers.views(access.region, access.blocks))
            for access in () if reads_only else writes:
                numbers.update(int(view.max()) for view in self.readers.views(access.region, access.blocks))
        return numbers

    def _mark(self, parts: Sequence[Sequence[Op]]) -> None:
        for number, ops in enumerate(parts, 1):
            for op in ops:
                reads, writes = self.accesses(op)
                for access in reads:
                    for view in self.readers.views(access.region, access.blocks):
                        np.maximum(view, number, out=view)
                for access in writes:
                    for view in self.writers.views(access.region, access.blocks):
                        view[...] = number
                    for view in self.readers.views(access.region, access.blocks):
                        view[...] = _OUTSIDE

    def _number(self, units: Sequence[_Unit], count: int) -> None:
        self._clear()
        needs = self.writers
        for unit in reversed(units):
            if unit.is_table:
                continue
            if unit.parts is not None:
                for number in reversed(range(count)):
                    self._need(needs, unit.parts[number], count - number)
                continue
            if unit.number is not None:
                self._need(needs, unit.ops, count - unit.number)
                continue
            # Labels are distances from the end, so that 0 or less means that nothing needs the bytes.
            written = [access for op in unit.ops for access in self.accesses(op)[1]]
            distance = max([1, *(int(view.max()) for access in written for view in needs.views(access.region, access.blocks))])
            unit.number = count - distance
            self._need(needs, unit.ops, distance)

    def _need(self, needs: CoarseLabels, ops: Sequence[Op], distance: int) -> None:
        for op in ops:
            reads, writes = self.accesses(op)
            for access in (*reads, *writes):
                for view in needs.views(access.region, access.blocks):
                    np.maximum(view, distance, out=view)

    def _is_legal(self, units: Sequence[_Unit], count: int) -> bool:
        self._clear()
        for unit in units:
            if unit.is_table:
                continue
            parts = unit.parts if unit.parts is not None else [[]] * (unit.number or 0) + [unit.ops]
            for number, ops in enumerate(parts, 1):
                if max(self._find_parts(ops, reads_only=False), default=_OUTSIDE) > number:
                    return False
                self._mark([[]] * (number - 1) + [list(ops)])
        return _keeps_tables(units)

    def reuses_bytes(self, ops: Iterable[tuple[Op, bool]]) -> bool:
        """Return True if an operation overwrites bytes that an earlier one reads in a different layout, and either is divided.

        A part of the second operation could overwrite bytes that later parts need.

        Args:
            ops: Operations, and whether each is divided.
        """
        starts = sorted(space[:2] for space in self.spaces)
        reads: dict[int, list[tuple[Access, bool]]] = {}  # by address range
        for op, is_divided in ops:
            for written in self.accesses(op)[1]:
                earlier = reads.get(bisect.bisect_right(starts, (written.region, written.low)), ())
                changed = (read for read, was_divided in earlier if is_divided or was_divided)
                if any(written.overlaps(read) and not _shares_strides(written, read) for read in changed):
                    return True
            for read in self.accesses(op)[0]:
                reads.setdefault(bisect.bisect_right(starts, (read.region, read.low)), []).append((read, is_divided))
        return False

    def _clear(self) -> None:
        self.writers.clear()
        self.readers.clear()


def _shares_strides(a: Access, b: Access) -> bool:
    if a.fm is None or b.fm is None:
        return False
    axes = 3 if a.fm.bricks else 2
    sizes = [(fm.bricks, fm.dtype.itemsize, fm.strides[:axes]) for fm in (a.fm, b.fm)]
    return sizes[0] == sizes[1]


def _list_part(units: Sequence[_Unit], number: int) -> Iterator[Op]:
    for unit in units:
        if unit.parts is not None:
            yield from unit.parts[number]
        elif unit.is_table or unit.number == number:
            yield from unit.ops


def _keeps_tables(units: Sequence[_Unit]) -> bool:
    loaded: list[tuple[int, int]] = []
    for unit in units:
        if unit.is_table:
            loaded += [(run.low, run.high) for op in unit.ops for run in op.writes]
            continue
        if unit.parts is None and not unit.number:
            continue  # the first part has the order of the stream
        tables = [run for op in unit.ops for run in op.reads if run.region == INTERNAL]
        if not all(any(low <= table.low and table.high <= high for low, high in loaded) for table in tables):
            return False
    return True


def _shape(unit: _Unit) -> tuple[int, ...]:
    return tuple(unit.ops[0].registers.get(name, -1) for name in _DIMENSIONS)


def describe_shapes(ops: Iterable[Op]) -> object:
    """Return a key with the sizes and windows of operations, but not their addresses."""
    return tuple(
        (op.name, op.parameter, tuple((name, raw) for name, raw in op.registers.items() if name.endswith("_M1"))) for op in ops
    )
