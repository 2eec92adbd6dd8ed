from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

from ethorch.npu.ir import Op
from ethorch.npu.ir.image import Image
from ethorch.npu.ir.stream import group_chains
from ethorch.npu.passes.lifetimes import find_lifetimes

GRANULE = 16  # bytes, alignment of transfers and weights (npu-reference 7)


class Occupancy:
    """The granules (GRANULE bytes each) of one region in use during each operation."""

    def __init__(self, ops: Sequence[Op], region: int, limit: int, image: Image) -> None:
        ends = [high for where, _, high in (*image.inputs, *image.outputs) if where == region]
        ends += [run.high for op in ops for run in (*op.reads, *op.writes) if run.region == region]
        size = max(ends, default=0)
        self.limit = limit // GRANULE
        self.rows = np.zeros((len(ops), -(-size // GRANULE)), np.bool_)
        lifetimes = find_lifetimes(ops, {region: size}, image.inputs, image.outputs)
        times = [time for time, group in enumerate(group_chains(ops), 1) for _ in group]
        for piece in (piece for segment in lifetimes.segments for piece in segment.pieces):
            used = slice(bisect_left(times, piece.start), bisect_right(times, piece.end))
            self.rows[used, piece.low // GRANULE : -(-piece.high // GRANULE)] = True

    def set(self, first: int, last: int, low: int, high: int, is_used: bool) -> None:
        missing = -(-high // GRANULE) - self.rows.shape[1]
        if missing > 0:
            self.rows = np.pad(self.rows, ((0, 0), (0, missing)))
        self.rows[max(first, 0) : last + 1, low // GRANULE : -(-high // GRANULE)] = is_used

    def find(self, spans: Iterable[tuple[int, int, int, int]], size_bytes: int) -> int | None:
        """Return the lowest address at which all spans are free, or None if they do not fit.

        Args:
            spans: First operation, last operation, offset from the address, and size in bytes of each span.
        """
        granules, columns = -(-size_bytes // GRANULE), self.rows.shape[1]
        count = min(self.limit - granules, columns) + 1
        if count <= 0:
            return None
        fits = np.ones(count, np.bool_)
        for first, last, offset, size in spans:
            used = np.cumsum(np.pad(self.rows[max(first, 0) : last + 1].any(0), (1, granules)))
            low, high = offset // GRANULE, -(-(offset + size) // GRANULE)
            fits &= used[high : high + count] == used[low : low + count]
        return int(np.argmax(fits)) * GRANULE if fits.any() else None
