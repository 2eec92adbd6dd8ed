"""Lifetimes of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ethorch.npu.ir import Op
from ethorch.npu.ir.encode import MOST_KERNELS, MOST_TRANSFERS, derive_waits
from ethorch.npu.ir.image import Place
from ethorch.npu.ir.stream import group_chains
from ethorch.npu.passes.accesses import Access, Block, CoarseLabels, find_labels, is_in_place, list_reads, list_writes
from ethorch.npu.passes.segments import Permit, Segment, Value, find_clashes, merge_pieces

_UNWRITTEN = 0  # label of bytes without a value; the first value has number 1


@dataclass
class Lifetimes:
    """The segments of a stream, with their lifetimes."""

    segments: list[Segment]
    permits: list[Permit]
    accesses: dict[tuple[int, str], int]  # segment by position and address register
    inputs: list[int]  # segments of the host's tensors, or -1
    outputs: list[int]
    end: int  # time of the host's reads


def find_lifetimes(
    ops: Sequence[Op],
    sizes: Mapping[int, int],
    inputs: Sequence[Place],
    outputs: Sequence[Place],
    *,
    divide: bool = False,
    operators: Iterable[Sequence[int]] = (),
    spaces: Iterable[Place] = (),
) -> Lifetimes:
    """Return the segments of a stream with their lifetimes.

    Args:
        sizes: Size of each region to allocate, in bytes.
        divide: Whether the lifetimes of a value's parts can end at different times.
        operators: Positions of each operator's kernels. Address differences between these kernels' feature maps are preserved.
        spaces: Disjoint address ranges of the segments, if known.
    """
    return _Tracker(ops, sizes, divide, spaces).track(inputs, outputs, operators)


class _Tracker:
    def __init__(self, ops: Sequence[Op], sizes: Mapping[int, int], divide: bool, spaces: Iterable[Place]):
        self.ops, self.sizes, self.divide = ops, sizes, divide
        self.labels = CoarseLabels(spaces or ((region, 0, size) for region, size in sizes.items()))
        self.values = [Value(0, [(0, 0)], 0, 0)]
        self.parents = [0]
        self.owners: dict[tuple[int, str], int] = {}
        self.hulls = [(0, 0)]
        self.exchanges: list[tuple[int, int, int, int]] = []  # value read, value written, time, offset
        self.times = [time for time, group in enumerate(group_chains(ops), 1) for _ in group]
        self.end = (self.times[-1] if self.times else 0) + 1

    def track(self, inputs: Sequence[Place], outputs: Sequence[Place], operators: Iterable[Sequence[int]]) -> Lifetimes:
        before = [self._create_input(place) for place in inputs]
        starts, ends = find_overlaps(self.ops)
        chains: dict[int, list[tuple[int, Access]]] = {}
        for position, op in enumerate(self.ops):
            time = self.times[position]
            first, last = self.times[starts[position]], self.times[ends[position]]
            reads = list_reads(op, self.sizes)
            writes = list_writes(op, self.sizes)
            read_values = [(self._read(access, last, position), access) for access in reads]
            for access in writes:
                value = self._write(access, first, last, position)
                for source, read in read_values:
                    if is_in_place(op, read, access):
                        self.exchanges.append((source, value, time, read.runs[0].low - access.runs[0].low))
                for source, read in (*read_values, *chains.get(time, ())):
                    if read.overlaps(access):
                        self.exchanges.append((source, value, time, 0))
            if not op.is_dma:
                chains.setdefault(time, []).extend(read_values)
        after = [self._read_output(place) for place in outputs]
        for positions in operators:
            for name in ("IFM_BASE0", "IFM2_BASE0", "OFM_BASE0"):
                maps = [self.owners[position, name] for position in positions if (position, name) in self.owners]
                for value in maps[1:]:
                    if self.values[value].region == self.values[maps[0]].region:
                        self._join(maps[0], value)
        return self._finish(before, after)

    def _create(self, region: int, ranges: Iterable[tuple[int, int]], start: int, end: int) -> int:
        self.values.append(Value(region, list(ranges), start, end))
        self.parents.append(len(self.parents))
        self.hulls.append((min(low for low, _ in self.values[-1].ranges), max(high for _, high in self.values[-1].ranges)))
        return len(self.values) - 1

    def _create_input(self, place: Place) -> int:
        region, low, high = place
        if region not in self.sizes or low >= high:
            return -1
        value = self._create(region, [(low, high)], -1, -1)
        for view in self.labels.views(region, [Block.of_span(low, high)]):
            view[...] = value
        return value

    def _read_output(self, place: Place) -> int:
        region, low, high = place
        if region not in self.sizes or low >= high:
            return -1
        views = self.labels.views(region, [Block.of_span(low, high)])
        return self._use(find_labels(views) - {_UNWRITTEN}, region, ((low, high),), self.end)

    def _read(self, access: Access, time: int, position: int) -> int:
        ranges = tuple((run.low, run.high) for run in access.runs)
        views = self.labels.views(access.region, access.blocks)
        value = self._use(find_labels(views) - {_UNWRITTEN}, access.region, ranges, time)
        for view in views:
            if self.values[value].ranges == list(ranges) and not self.values[value].reads:  # bytes that nothing wrote
                view[...] = value
        self._assign(access, position, value)
        return value

    def _write(self, access: Access, first: int, last: int, position: int) -> int:
        value = self._create(access.region, [(run.low, run.high) for run in access.runs], first, last)
        self.values[value].writer = op = self.ops[position]
        views = self.labels.views(access.region, access.blocks)
        replaced = find_labels(views) - {_UNWRITTEN}
        if access.is_partial and replaced:  # other bytes remain
            self._join(self._use(replaced, access.region, self.values[value].ranges, last), value)
        elif len(replaced) == 1 and not op.is_dma and self._is_repetition(self.values[min(replaced)], self.values[value]):
            self._join(min(replaced), value)
        for view in views:
            view[...] = value
        self._assign(access, position, value)
        return value

    def _is_repetition(self, old: Value, new: Value) -> bool:
        """Return True if successive writers differ only in input addresses, as in a MATMUL."""
        a, b = old.writer, new.writer
        if a is None or b is None or old.ranges != new.ranges or new.start - old.last > 1:
            return False
        if (a.name, a.parameter) != (b.name, b.parameter):
            return False
        return all(b.registers.get(name) == raw for name, raw in a.registers.items() if "_BASE" not in name and name != "BLOCKDEP")

    def _assign(self, access: Access, position: int, value: int) -> None:
        for run in access.runs:
            self.owners[position, run.register] = value

    def _use(self, labels: set[int], region: int, ranges: Sequence[tuple[int, int]], time: int) -> int:
        if not labels:
            return self._create(region, ranges, time, time)
        for label in labels:
            self.values[label].reads.append((time, tuple(ranges)))
        first, *others = sorted(labels)
        for value in others:
            self._join(first, value)
        root = self._root(first)
        low, high = self.hulls[root]
        self.hulls[root] = min([low, *(n for n, _ in ranges)]), max([high, *(n for _, n in ranges)])
        return first

    def _root(self, value: int) -> int:
        while self.parents[value] != value:
            self.parents[value] = self.parents[self.parents[value]]
            value = self.parents[value]
        return value

    def _join(self, first: int, second: int) -> None:
        first, second = sorted((self._root(first), self._root(second)))
        if first != second:
            self.parents[second] = first
            (a, b), (c, d) = self.hulls[first], self.hulls[second]
            self.hulls[first] = min(a, c), max(b, d)

    def _finish(self, before: Sequence[int], after: Sequence[int]) -> Lifetimes:
        while True:
            members: dict[int, list[Value]] = {}
            for number, value in enumerate(self.values[1:], 1):
                members.setdefault(self._root(number), []).append(value)
            roots = list(members)
            numbers = {root: n for n, root in enumerate(roots)}
            segments = [
                Segment(members[root][0].region, *self.hulls[root], merge_pieces(members[root], self.divide)) for root in roots
            ]
            permits = {
                Permit(numbers[a], numbers[b], time, offset)
                for first, second, time, offset in self.exchanges
                if (a := self._root(first)) != (b := self._root(second))
            }
            clashes = find_clashes(segments, permits)
            if not clashes:
                break
            for first, second in clashes:
                self._join(roots[first], roots[second])

        def find_number(value: int) -> int:
            return numbers[self._root(value)] if value >= 0 else -1

        accesses = {key: find_number(value) for key, value in self.owners.items()}
        ordered = sorted(permits, key=lambda p: (p.first, p.second, p.time, p.offset))
        return Lifetimes(segments, ordered, accesses, [find_number(v) for v in before], [find_number(v) for v in after], self.end)


def find_overlaps(ops: Sequence[Op]) -> tuple[list[int], list[int]]:
    """Return the positions of the first and last operations that may run during each transfer, or a kernel's own position."""
    starts, ends = list(range(len(ops))), list(range(len(ops)))
    running: dict[bool, list[int]] = {True: [], False: []}
    for position, (op, waits) in enumerate(zip(ops, derive_waits(ops), strict=True)):
        for wait in waits:
            others = running[wait.is_dma]
            finished = others[: max(0, len(others) - wait.count)]
            if wait.is_dma:
                for transfer in finished:
                    ends[transfer] = max(transfer, position - 1)
            del others[: len(finished)]
        if op.is_dma and running[False]:
            starts[position] = running[False][0]
        same_kind = running[op.is_dma]
        same_kind.append(position)
        for finished_position in same_kind[: -(MOST_TRANSFERS[op.npu.family] if op.is_dma else MOST_KERNELS)]:
            if op.is_dma:
                ends[finished_position] = position
            same_kind.remove(finished_position)
    return starts, ends
