from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ethorch.npu.ir import Op
from ethorch.npu.ir.image import Place

#: Distance of addresses that every access accepts: bricks, transfers and streams (npu-reference 3.2, 4.2, 7).
ALIGNMENT = 16
_MOST_CUTS = 48


@dataclass(frozen=True, order=True)
class Piece:
    """The bytes [low, high), in use from time ``start`` to time ``end`` inclusive."""

    low: int
    high: int
    start: int
    end: int


@dataclass(eq=False)
class Value:
    """The bytes that one operation writes, or a host tensor."""

    region: int
    ranges: list[tuple[int, int]]
    start: int
    end: int
    reads: list[tuple[int, tuple[tuple[int, int], ...]]] = field(default_factory=list)
    writer: Op | None = None

    @property
    def last(self) -> int:
        return max([self.end, *(time for time, _ in self.reads)])


@dataclass(eq=False)
class Segment:
    """The bytes [low, high), which can only be moved together. ``pieces`` contains their uses, rounded to ALIGNMENT."""

    region: int
    low: int
    high: int
    pieces: tuple[Piece, ...]

    @property
    def space(self) -> Place:
        """The region and the address range, rounded to ALIGNMENT."""
        low, high = min(self.low, *(p.low for p in self.pieces)), max(self.high, *(p.high for p in self.pieces))
        return self.region, *_round(low, high)


@dataclass(frozen=True)
class Permit:
    """A permission for two segments to overlap at ``time`` if the second is moved ``offset`` bytes farther than the first."""

    first: int
    second: int
    time: int
    offset: int


def merge_pieces(values: Sequence[Value], divide: bool) -> tuple[Piece, ...]:
    pieces = {piece for value in values for piece in _cut(value, divide)}
    cuts = sorted({n for piece in pieces for n in (piece.low, piece.high)})
    if len(cuts) > _MOST_CUTS:
        step = len(cuts) / _MOST_CUTS
        cuts = sorted({cuts[0], cuts[-1], *(cuts[int(n * step)] for n in range(_MOST_CUTS))})
    merged: list[tuple[int, int, list[tuple[int, int]]]] = []
    for low, high in pairwise(cuts):
        spans = _merge_times((piece.start, piece.end) for piece in pieces if piece.low < high and low < piece.high)
        if merged and merged[-1][2] == spans and merged[-1][1] == low:
            merged[-1] = merged[-1][0], high, spans
        elif spans:
            merged.append((low, high, spans))
    return tuple(Piece(low, high, *span) for low, high, spans in merged for span in spans)


def _cut(value: Value, divide: bool) -> list[Piece]:
    if not divide:
        return [Piece(*_round(low, high), value.start, value.last) for low, high in value.ranges]
    pieces = []
    for low, high in value.ranges:
        low, high = _round(low, high)
        reads = {(time, *_round(*bounds)) for time, ranges in value.reads for bounds in ranges}
        cuts = sorted({low, high, *(n for _, start, stop in reads for n in (start, stop) if low < n < high)})
        if len(cuts) > _MOST_CUTS:
            cuts = [low, high]
        for first, last in pairwise(cuts):
            end = max([value.end, *(time for time, start, stop in reads if start < last and first < stop)])
            pieces.append(Piece(first, last, value.start, end))
    return pieces


def _round(low: int, high: int) -> tuple[int, int]:
    return low // ALIGNMENT * ALIGNMENT, -(-high // ALIGNMENT) * ALIGNMENT


def _merge_times(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def find_clashes(segments: Sequence[Segment], permits: Iterable[Permit]) -> list[tuple[int, int]]:
    """Return the pairs of segments that overlap without a permit."""
    rows = [(n, segment.region, p.low, p.high, p.start, p.end) for n, segment in enumerate(segments) for p in segment.pieces]
    if not rows:
        return []
    table = np.array(rows, np.int64)
    number, region, low, high, start, end = table.T
    allowed = {(p.first, p.second, p.time) for p in permits if p.offset == 0}
    allowed |= {(second, first, time) for first, second, time in allowed}
    clashes = set()
    for n in range(len(table)):
        rest = slice(n + 1, None)
        hit = (region[rest] == region[n]) & (number[rest] != number[n]) & (low[rest] < high[n]) & (low[n] < high[rest])
        hit &= (start[rest] <= end[n]) & (start[n] <= end[rest])
        for m in n + 1 + np.flatnonzero(hit):
            first, last = max(start[n], start[m]), min(end[n], end[m])
            if first != last or (number[n], number[m], first) not in allowed:
                clashes.add((int(number[n]), int(number[m])))
    return sorted(clashes)
