"""Placement of segments in memory."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ethorch.npu.passes.segments import ALIGNMENT, Permit, Segment

Ints = npt.NDArray[np.int64]
_NEVER = 1 << 60  # an offset that no pair of segments has
_WORK = 80_000  # placements of one search
_RESTARTS = 4
#: A size that exceeds the bound by at most these bytes and this share of the bound is not improved further.
_NEGLIGIBLE_BYTES, _NEGLIGIBLE_SHARE = 256, 0.01


@dataclass(frozen=True)
class Packing:
    """The new addresses of the segments of one region."""

    moves: tuple[int, ...]  # distance of each segment
    size_bytes: int
    bound: int  # minimum size for this order of operations


@dataclass
class _Neighbors:
    """The forbidden distances between a segment and the segments in use at the same time."""

    others: Ints
    low: Ints
    high: Ints
    allowed: Ints  # exception between low and high


def pack(segments: Sequence[Segment], permits: Sequence[Permit]) -> Packing:
    """Return a packing of the segments that is at most as large as the current packing."""
    return _Packer(segments, permits).search()


def bound_size(segments: Sequence[Segment], permits: Iterable[Permit]) -> int:
    """Return the maximum number of bytes in use at any time. Bytes that two segments share by permission are counted once."""
    live: dict[int, int] = {}
    events: list[tuple[int, int]] = []
    for segment in segments:
        for piece in segment.pieces:
            events += [(piece.start, piece.high - piece.low), (piece.end + 1, piece.low - piece.high)]
    total = 0
    for time, change in sorted(events):
        total += change
        live[time] = total
    shared: dict[int, int] = {}
    for permit in permits:
        sizes = [_live_at(segments[n], permit.time) for n in (permit.first, permit.second)]
        shared[permit.time] = max(shared.get(permit.time, 0), min(sizes))
    times = sorted(live)
    for time in shared:
        if time not in live:
            live[time] = live[max([t for t in times if t < time], default=times[0])]
        if time + 1 not in live:
            live[time + 1] = live[time]
    return max((size - shared.get(time, 0) for time, size in live.items()), default=0)


def _live_at(segment: Segment, time: int) -> int:
    return sum(piece.high - piece.low for piece in segment.pieces if piece.start <= time <= piece.end)


class _Packer:
    def __init__(self, segments: Sequence[Segment], permits: Sequence[Permit]):
        self.segments = segments
        self.count = len(segments)
        self.lows = [min(piece.low for piece in segment.pieces) for segment in segments]
        self.floors = [-(segment.low // ALIGNMENT) * ALIGNMENT for segment in segments]
        self.tops = [max([segment.high, *(piece.high for piece in segment.pieces)]) for segment in segments]
        self.neighbors = self._find_neighbors(permits)
        self.bound = bound_size(segments, permits)

    def search(self) -> Packing:
        best_moves, best = [0] * self.count, max(self.tops, default=0)
        random_numbers = random.Random(0)
        enough = self.bound + min(_NEGLIGIBLE_BYTES, int(_NEGLIGIBLE_SHARE * self.bound))
        work = _WORK
        starts = []
        for order in self._orders():
            moves, size, last = self._place(order, _NEVER)
            starts.append((size, order, last))
            work -= self.count
            if size < best:
                best_moves, best = moves, size
        starts.sort(key=lambda start: start[0])
        for _, order, last in starts[:_RESTARTS]:
            share = work // _RESTARTS
            current, failed = list(order), last
            while share > 0 and best > enough:
                tried = self._move_forward(current, failed, random_numbers)
                moves, size, last = self._place(tried, best)
                share -= self.count
                if size < best:
                    best_moves, best = moves, size
                    current, failed = tried, last
                elif random_numbers.random() < 0.7 or tried.index(last) >= current.index(failed):
                    current, failed = tried, last
        return Packing(tuple(best_moves), best, self.bound)

    def _orders(self) -> list[list[int]]:
        spans = [max(p.end for p in segment.pieces) - min(p.start for p in segment.pieces) + 1 for segment in self.segments]
        sizes = [segment.high - segment.low for segment in self.segments]
        areas = [sum((p.high - p.low) * (p.end - p.start + 1) for p in segment.pieces) for segment in self.segments]
        pressures = self._pressures()
        starts = [min(p.start for p in segment.pieces) for segment in self.segments]
        first = list(zip(starts, range(self.count), strict=True))
        columns = ((sizes, spans), (spans, sizes), (areas, sizes), (pressures, sizes), (pressures, areas))
        orders = [sorted(range(self.count), key=lambda n: (-major[n], -minor[n], *first[n])) for major, minor in columns]
        return [*orders, sorted(range(self.count), key=lambda n: (starts[n], -sizes[n], n))]

    def _pressures(self) -> list[int]:
        pieces = [(p.start, p.end, p.high - p.low) for segment in self.segments for p in segment.pieces]
        first = min(start for start, _, _ in pieces)
        live = np.zeros(max(end for _, end, _ in pieces) - first + 2, np.int64)
        for start, end, size in pieces:
            live[start - first] += size
            live[end + 1 - first] -= size
        live = np.cumsum(live)
        return [max(int(live[p.start - first : p.end - first + 1].max()) for p in segment.pieces) for segment in self.segments]

    def _find_neighbors(self, permits: Sequence[Permit]) -> list[_Neighbors]:
        offsets: dict[tuple[int, int, int], list[int]] = {}
        for permit in permits:
            offsets.setdefault((permit.first, permit.second, permit.time), []).append(permit.offset)
            offsets.setdefault((permit.second, permit.first, permit.time), []).append(-permit.offset)
        rows = [(n, p.low, p.high, p.start, p.end) for n, segment in enumerate(self.segments) for p in segment.pieces]
        number, low, high, start, end = np.array(rows, np.int64).reshape(-1, 5).T
        result = []
        for n, segment in enumerate(self.segments):
            columns: list[tuple[Ints, ...]] = []
            for piece in segment.pieces:
                near = np.flatnonzero((number != n) & (start <= piece.end) & (piece.start <= end))
                firsts, lasts = np.maximum(start[near], piece.start), np.minimum(end[near], piece.end)
                allowed = np.full(len(near), _NEVER, np.int64)
                for row in np.flatnonzero(firsts == lasts):
                    # of several permits for one pair, the address of the stream comes last
                    choices = offsets.get((int(number[near[row]]), n, int(firsts[row])))
                    if choices:
                        allowed[row] = max(choices, key=abs)
                columns.append((number[near], low[near] - piece.high, high[near] - piece.low, allowed))
            result.append(_Neighbors(*(np.concatenate(column) for column in zip(*columns, strict=True))))
        return result

    def _place(self, order: Sequence[int], limit: int) -> tuple[list[int], int, int]:
        # Returns the moves, the size and the segment at the peak. The moves are empty if the size reaches ``limit``.
        moves = np.full(self.count, _NEVER, np.int64)
        size, peak = 0, order[0] if order else 0
        for n in order:
            near = self.neighbors[n]
            others = moves[near.others]
            is_placed = others != _NEVER
            others, low, high, allowed = others[is_placed], near.low[is_placed], near.high[is_placed], near.allowed[is_placed]
            move = self._find_gap(n, others + low, others + high, others + allowed)
            moves[n] = move
            top = self.tops[n] + move
            if top > size:
                size, peak = top, n
                if size >= limit:
                    return [], size, peak
        return moves.tolist(), size, peak

    def _find_gap(self, n: int, low: Ints, high: Ints, allowed: Ints) -> int:
        floor = self.floors[n]
        order = np.argsort(low, kind="stable")
        ends = np.maximum.accumulate(np.concatenate(([floor], high[order])))
        fits = np.flatnonzero(low[order] >= ends[:-1])
        gap = int(ends[fits[0]] if len(fits) else ends[-1])
        for candidate in sorted(set(allowed[(floor <= allowed) & (allowed < gap)].tolist())):
            if not np.any((low < candidate) & (candidate < high) & (allowed != candidate)):
                return int(candidate)
        return gap

    def _move_forward(self, order: list[int], segment: int, numbers: random.Random) -> list[int]:
        others = self.neighbors[segment].others
        chosen = segment
        if len(others) and numbers.random() < 0.3:
            chosen = int(others[numbers.randrange(len(others))])
        at = order.index(chosen)
        to = numbers.randrange(at) if at else 0
        moved = order[:at] + order[at + 1 :]
        moved.insert(to, chosen)
        return moved
