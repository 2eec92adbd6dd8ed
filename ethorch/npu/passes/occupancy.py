"""Occupied memory at each operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np
import numpy.typing as npt

from ethorch.npu.arrays import Bytes
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.forms import Transfer
from ethorch.npu.ir import Op
from ethorch.npu.ir.image import Image
from ethorch.npu.memory import Access, Span

GRANULE = 16  # bytes, alignment of transfers and weights (npu-reference 7)


class Occupancy:
    """Granules of a region in use at each operation."""

    def __init__(self, ops: Sequence[Op], region: int, limit: int, image: Image) -> None:
        runs = [[run for run in (*op.reads, *op.writes) if run.region == region] for op in ops]
        ends = [high for where, _, high in (*image.inputs, *image.outputs) if where == region]
        size = max([0, *ends, *(run.high for op_runs in runs for run in op_runs)])
        self.limit = limit // GRANULE
        self.rows = np.zeros((len(ops), -(-size // GRANULE)), np.bool_)
        live = np.zeros(self.rows.shape[1] * GRANULE, np.uint8)
        for where, low, high in image.outputs:
            if where == region:
                live[low:high] = 1
        for index in reversed(range(len(ops))):
            self._mark(index, live)
            op = ops[index]
            for access in _list(op, region, writes=True):
                _fill(access, live, 0)
            for access in _list(op, region, writes=False):
                _fill(access, live, 1)
            self._mark(index, live)
            for run in runs[index]:
                self.rows[index, run.low // GRANULE : -(-run.high // GRANULE)] = True

    def copy(self) -> Occupancy:
        result = copy(self)
        result.rows = self.rows.copy()
        return result

    def _mark(self, index: int, live: Bytes) -> None:
        self.rows[index] |= live.reshape(-1, GRANULE).any(1)

    def set(self, first: int, last: int, low: int, high: int, is_used: bool) -> None:
        missing = -(-high // GRANULE) - self.rows.shape[1]
        if missing > 0:
            self.rows = np.pad(self.rows, ((0, 0), (0, missing)))
        self.rows[max(first, 0) : last + 1, low // GRANULE : -(-high // GRANULE)] = is_used

    def find(self, spans: Iterable[tuple[int, int, int, int]], size_bytes: int) -> int | None:
        """Return the lowest address at which all spans are free, or None.

        Args:
            spans: First operation, last operation, offset and size of each.
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


def _list(op: Op, region: int, writes: bool) -> list[Access]:
    """Exclude writes of strided transfers, which skip bytes."""
    prepared = op.prepared
    accesses: Sequence[Access]
    if isinstance(prepared.form, Transfer):
        runs = op.writes if writes else op.reads
        is_plain = len(op.writes) == 1 and all(isinstance(access, Span) for access in prepared.writes)
        accesses = [] if writes and not is_plain else [Span(run.register, run.region, run.low, run.high - run.low) for run in runs]
    else:
        accesses = prepared.writes if writes else prepared.reads
    stored = (access for access in accesses if not isinstance(access, FeatureMap) or access.in_memory)
    return [access for access in stored if access.region == region]


def _fill(access: Access, memory: npt.NDArray[np.uint8], byte: int) -> None:
    if isinstance(access, Span):
        memory[access.base : access.base + access.size_bytes] = byte
        return
    for view in access.views(memory):
        for array in view.arrays:
            array[...] = np.frombuffer(bytes([byte]) * array.dtype.itemsize, array.dtype)[0]
