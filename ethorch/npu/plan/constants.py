"""Which bytes of memory hold constants of the program at a point of the stream.

Weights and scales may be decoded when the plan is made only if every run finds the same bytes there. Region 0 cannot change.
Other regions hold constants where a DMA has copied them to, until something else is written there. One walk over the stream,
with what its operations read and write, tells it.
"""

from __future__ import annotations

import numpy as np

from ethorch.npu.arrays import Bytes
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.memory import Span
from ethorch.npu.prepared import Prepared

Piece = tuple[int, int, int]  # start, stop, and where ``start`` comes from in region 0


class Constants:
    """What is known to be constant. ``constants`` are the bytes of region 0."""

    def __init__(self, constants: Bytes):
        self._bytes = constants
        self._pieces: dict[int, list[Piece]] = {0: [(0, constants.size, 0)]}

    def written(self, region: int, start: int, stop: int) -> None:
        """Bytes start..stop of a region have been written with something unknown."""
        pieces = self._pieces.get(region, [])
        if not any(a < stop and start < b for a, b, _ in pieces):
            return
        kept: list[Piece] = []
        for a, b, origin in pieces:
            if a < start:
                kept.append((a, min(b, start), origin))
            if b > stop:
                first = max(a, stop)
                kept.append((first, b, origin + first - a))
        self._pieces[region] = [piece for piece in kept if piece[0] < piece[1]]

    def copied(self, source: Span, target: Span) -> None:
        """A DMA has copied ``source`` to ``target``."""
        shift = target.base - source.base
        stop = source.base + source.size_bytes
        moved = [
            (max(a, source.base) + shift, min(b, stop) + shift, origin + max(a, source.base) - a)
            for a, b, origin in self._pieces.get(source.region, [])
            if a < stop and source.base < b
        ]
        self.written(target.region, target.base, target.base + target.size_bytes)
        self._pieces.setdefault(target.region, []).extend(moved)

    def ran(self, prepared: Prepared) -> None:
        """An operation has run, other than a plain copy."""
        if prepared.scattered is not None:
            self._pieces[prepared.scattered[1]] = []
        for access in prepared.writes:
            if isinstance(access, Span):
                self.written(access.region, access.base, access.base + access.size_bytes)
            elif access.in_memory:
                for start, stop in reaches(access):
                    self.written(access.region, start, stop)

    def read(self, span: Span) -> Bytes | None:
        """A run of bytes, if all of them are known."""
        at, stop = span.base, span.base + span.size_bytes
        for a, b, origin in self._pieces.get(span.region, []):
            if a <= at and stop <= b:
                return self._bytes[origin + at - a : origin + stop - a]
        found = np.empty(span.size_bytes, np.uint8)
        for a, b, origin in sorted(self._pieces.get(span.region, [])):
            if a <= at < b:
                end = min(b, stop)
                found[at - span.base : end - span.base] = self._bytes[origin + at - a : origin + end - a]
                at = end
        return found if at >= stop else None


def reaches(fm: FeatureMap) -> list[tuple[int, int]]:
    """(first byte, behind the last) of each tile of a feature map in memory."""
    sy, sx, sc = fm.strides
    if fm.bricks:
        z, inner = (-(-fm.depth // 16) - 1) * sc, min(fm.depth, 16)
    else:
        z, inner = 0, fm.depth
    result = []
    for tile in fm.tiles:
        low = high = tile.base
        for step in ((tile.height - 1) * sy, (tile.width - 1) * sx, z):
            if step < 0:
                low += step
            else:
                high += step
        result.append((low, high + inner * fm.dtype.itemsize))
    return result
