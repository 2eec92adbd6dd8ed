"""Copy feature maps by DMA instead of by kernels.

According to Vela's performance model, a U85 kernel copies 0.1 to 2 bytes per cycle, because short rows fill only parts of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np

from ethorch.npu.arrays import Ints
from ethorch.npu.cycles import estimate
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.ir import Op, Stream
from ethorch.npu.ir.kernel_copies import find_kernel_copy
from ethorch.npu.ir.stream import create_transfer
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.copy_graph import HOST, CopyGraph, reallocate
from ethorch.npu.passes.placement import Separation, separate
from ethorch.npu.registers import U85

_MOST_TRANSFERS = 32  # that replace one copy
_MOST_ROW_LENGTHS = 3  # of one copy: NHCWB16 has a shorter last row
_MOST_ROWS = (1 << 16) - 1  # of one loop of a transfer (DMA0_SIZE0, DMA0_SIZE1)
_MODE_BIT = 9  # of DMA0_SRC_REGION: the number of loops (npu-reference 7)


def run(stream: Stream, context: Context) -> Stream | None:
    """Return a stream that copies feature maps by DMA, or None if it is not faster or a region becomes too large."""
    copies = [position for position, op in enumerate(stream.ops) if find_kernel_copy(op) and not _overlaps_itself(op)]
    if stream.npu.family != U85 or not copies:
        return None
    apart = separate(stream)
    for most_levels in (None, 1):
        replacement = _Replacement(apart, copies, context)
        replacement.replace_copies(most_levels)
        if not replacement.transfers:
            return None
        changed = reallocate(stream, replacement, context, context.rate(stream))
        if changed is not None:
            return changed
    return None


def _overlaps_itself(op: Op) -> bool:
    return any(a.region == b.region and a.low < b.high and b.low < a.high for a in op.reads for b in op.writes)


@dataclass(frozen=True)
class _Rows:
    """Rows of ``length`` bytes in nested loops. Each loop is (count, source step, target step)."""

    length: int
    source: int
    target: int
    loops: tuple[tuple[int, int, int], ...]


class _Replacement(CopyGraph):
    """The replacement of copies by transfers in a stream with disjoint segments."""

    def __init__(self, apart: Separation, removable: Sequence[int], context: Context):
        super().__init__(apart, removable)
        self.context = context
        self.transfers: dict[int, list[Op]] = {}  # by position of the replaced copy
        self.readers: dict[int, set[int]] = {}  # of each operation's values
        self._key = self.stream.new_key()
        self._cycles: dict[int, float] = {}  # by key of a kernel
        for operator in context.estimate(apart.stream).operators:
            self._cycles |= dict.fromkeys(operator.keys, operator.cycles / len(operator.keys))

    def list_ops(self) -> list[Op]:
        ops: list[Op] = []
        for position in self.iterate(range(len(self.ops))):
            ops += self.transfers.get(position, [self.ops[position]])
        keys = {op.key for transfers in self.transfers.values() for op in transfers}
        while True:  # omit transfers that write unread parts of a copy
            graph = CopyGraph(replace(self.apart, stream=replace(self.stream, ops=ops)), ())
            graph.trace()
            unread = {n for n, op in enumerate(ops) if op.key in keys and not graph.reads[n]}
            if not unread:
                return ops
            ops = [op for n, op in enumerate(ops) if n not in unread]

    def replace_copies(self, most_levels: int | None) -> None:
        """Replace each copy with transfers if they are faster. A replacement spans at most ``most_levels`` successive copies."""
        self.trace()
        self.readers = {position: {read.position for read in reads} for position, reads in self.reads.items()}
        for position in sorted(self.copies, reverse=True):
            if position not in self.removed:
                self._replace_copy(position, most_levels)

    def _replace_copy(self, position: int, most_levels: int | None) -> None:
        target = self.copies[position].target
        if target.region not in self.regions:
            return
        unread, saved, most = list[int](), self._cycles.get(self.ops[position].key, 0.0), 0.0
        best: tuple[int, FeatureMap, list[Op], list[int]] | None = None
        for level, (copy, source, addresses) in enumerate(self.iterate_sources(position, target, position)):
            if level == most_levels:
                break
            if copy != position and self.readers[copy] <= {position, *unread}:
                unread.append(copy)
                saved += self._cycles.get(self.ops[copy].key, 0.0)
            transfers = self._create_transfers(source, addresses, target, self.ops[position])
            if not transfers:
                continue
            gain = saved - estimate(replace(self.stream, ops=transfers), self.context.regions, self.context.effects).cycles
            if gain > most:
                most, best = gain, (copy, source, transfers, list(unread))
        if best is not None:
            self._apply(position, *best)

    def _apply(self, position: int, copy: int, source: FeatureMap, transfers: list[Op], unread: list[int]) -> None:
        """Replace the copy at ``position`` with ``transfers`` from the source of ``copy``, and remove the copies at ``unread``."""
        self.transfers[position] = transfers
        self._key -= len(transfers)
        if copy == position:
            return
        self.removed.update(unread)
        for reader in (position, *unread):
            for writer in self.writers[reader] - {HOST}:
                self.readers[writer].discard(reader)
        for writer in self.writers[copy] - {HOST}:
            self.readers[writer].add(position)
        self.writers[position] = self.writers[copy]
        extents = source.extents()
        self.places.add((source.region, min(low for low, _ in extents), max(high for _, high in extents)))

    def _create_transfers(self, source: FeatureMap, addresses: Ints, target: FeatureMap, op: Op) -> list[Op]:
        parts = find_rows(addresses, target.addresses(), target.dtype.itemsize)
        transfers: list[Op] = []
        for part in parts if sum(_count_transfers(part) for part in parts) <= _MOST_TRANSFERS else ():
            *outer, first, second = sorted([*part.loops, (1, 0, 0), (1, 0, 0)], key=lambda loop: loop[0])
            if second[0] > _MOST_ROWS:
                return []
            for index in np.ndindex(*(loop[0] for loop in outer)):
                moves = [(n * loop[1], n * loop[2]) for n, loop in zip(index, outer, strict=True)]
                starts = part.source + sum(move[0] for move in moves), part.target + sum(move[1] for move in moves)
                transfers.append(self._create_transfer(op, part.length, (source.region, target.region), starts, (second, first)))
                self._key -= 1
        self._key += len(transfers)
        return transfers

    def _create_transfer(
        self, op: Op, length: int, regions: tuple[int, int], starts: tuple[int, int], loops: Sequence[tuple[int, int, int]]
    ) -> Op:
        mode = sum(loop[0] > 1 for loop in loops)
        registers = {"DMA0_LEN": length}
        for end, name in enumerate(("SRC", "DST")):
            registers |= {f"DMA0_{name}": starts[end], f"DMA0_{name}_REGION": regions[end]}
        registers["DMA0_SRC_REGION"] |= mode << _MODE_BIT
        for number, (count, *steps) in enumerate(loops[:mode]):
            registers |= {f"DMA0_SIZE{number}": count}
            registers |= {f"DMA0_{name}_STRIDE{number}": step for name, step in zip(("SRC", "DST"), steps, strict=True)}
        return create_transfer(op.npu, self._key, op.key if op.origin is None else op.origin, **registers)


def _count_transfers(rows: _Rows) -> int:
    return prod(sorted(loop[0] for loop in rows.loops)[:-2])


def find_rows(sources: Ints, targets: Ints, item_bytes: int) -> list[_Rows]:
    """Return loops that copy elements from source to target addresses, or [] if the addresses are irregular."""
    order = np.argsort(targets, axis=None, kind="stable")
    target, source = targets.ravel()[order], sources.ravel()[order]
    is_start = np.ones(target.size, np.bool_)
    is_start[1:] = (np.diff(target) != item_bytes) | (np.diff(source) != item_bytes)
    starts = np.flatnonzero(is_start)
    items = np.diff(starts, append=target.size)
    distinct = np.unique(items).tolist()
    parts = [_find_part(source, target, starts[items == count], count * item_bytes) for count in distinct[:_MOST_ROW_LENGTHS]]
    if len(distinct) > 1 and (len(distinct) > len(parts) or None in parts):  # adjacent rows of some loops are contiguous
        count = gcd(*distinct)
        parts = [_find_part(source, target, np.arange(0, target.size, count), count * item_bytes)]
    return [part for part in parts if part is not None] if None not in parts else []


def _find_part(source: Ints, target: Ints, starts: Ints, length: int) -> _Rows | None:
    loops = _find_loops(source[starts], target[starts])
    return None if loops is None else _Rows(length, int(source[starts[0]]), int(target[starts[0]]), loops)


def _find_loops(source: Ints, target: Ints) -> tuple[tuple[int, int, int], ...] | None:
    loops = []
    while len(target) > 1:
        steps = np.diff(source), np.diff(target)
        changes = np.flatnonzero((steps[0] != steps[0][0]) | (steps[1] != steps[1][0]))
        count = int(changes[0]) + 1 if len(changes) else len(target)
        if len(target) % count or steps[0][0] < 0:
            return None
        for addresses in (source, target):
            rows = addresses.reshape(-1, count)
            if not np.array_equal(rows - rows[:, :1], np.broadcast_to(rows[0] - rows[0, 0], rows.shape)):
                return None
        loops.append((count, int(steps[0][0]), int(steps[1][0])))
        source, target = source[::count], target[::count]
    return tuple(loops)
