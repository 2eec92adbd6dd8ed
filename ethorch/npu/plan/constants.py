"""The memory contents that are known constants at a given point in the stream."""

# Weights and scales can be decoded in advance only if every run reads the same bytes. Region 0 never changes. Bytes copied from
# region 0 by DMA are constant until the next write.

from __future__ import annotations

import numpy as np

from ethorch.npu.arrays import Bytes
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.memory import Span
from ethorch.npu.prepared import Prepared

Piece = tuple[int, int, int]  # start, stop, and origin of ``start`` in region 0


class Constants:
    """The bytes of memory that are constant in every run."""

    def __init__(self, constants: Bytes):
        self._bytes = constants
        self._pieces: dict[int, list[Piece]] = {0: [(0, constants.size, 0)]}

    def invalidate(self, region: int, start: int, stop: int) -> None:
        """Mark the bytes [start, stop) of a region as not constant."""
        pieces = self._pieces.get(region, [])
        if not any(a < stop and start < b for a, b, _ in pieces):
            return
        remaining: list[Piece] = []
        for a, b, origin in pieces:
            if a < start:
                remaining.append((a, min(b, start), origin))
            if b > stop:
                first = max(a, stop)
                remaining.append((first, b, origin + first - a))
        self._pieces[region] = [piece for piece in remaining if piece[0] < piece[1]]

    def copy(self, source: Span, target: Span) -> None:
        """Update the constant bytes after a contiguous DMA transfer."""
        shift = target.base - source.base
        stop = source.base + source.size_bytes
        moved = [
            (max(a, source.base) + shift, min(b, stop) + shift, origin + max(a, source.base) - a)
            for a, b, origin in self._pieces.get(source.region, [])
            if a < stop and source.base < b
        ]
        self.invalidate(target.region, target.base, target.base + target.size_bytes)
        self._pieces.setdefault(target.region, []).extend(moved)

    def apply(self, prepared: Prepared) -> None:
        """Update the constant bytes after an operation other than a contiguous DMA transfer."""
        if prepared.scattered is not None:
            self._pieces[prepared.scattered[1]] = []
        for access in prepared.writes:
            if isinstance(access, Span):
                self.invalidate(access.region, access.base, access.base + access.size_bytes)
            elif access.in_memory:
                for start, stop in reaches(access):
                    self.invalidate(access.region, start, stop)

    def read(self, span: Span) -> Bytes | None:
        """Return a span's bytes, or None if they are not all constant."""
        at, stop = span.base, span.base + span.size_bytes
        for a, b, origin in self._pieces.get(span.region, []):
            if a <= at and stop <= b:
                return self._bytes[origin + at - a : origin + stop - a]
        joined = np.empty(span.size_bytes, np.uint8)
        for a, b, origin in sorted(self._pieces.get(span.region, [])):
            if a <= at < b:
                end = min(b, stop)
                joined[at - span.base : end - span.base] = self._bytes[origin + at - a : origin + end - a]
                at = end
        return joined if at >= stop else None


def reaches(fm: FeatureMap) -> list[tuple[int, int]]:
    """Return the address range of each tile of a feature map."""
    sy, sx, sc = fm.strides
    if fm.bricks:
        z, inner = (-(-fm.depth // 16) - 1) * sc, min(fm.depth, 16)
    else:
        z, inner = 0, fm.depth
    extents = []
    for tile in fm.tiles:
        low = high = tile.base
        for step in ((tile.height - 1) * sy, (tile.width - 1) * sx, z):
            if step < 0:
                low += step
            else:
                high += step
        extents.append((low, high + inner * fm.dtype.itemsize))
    return extents
