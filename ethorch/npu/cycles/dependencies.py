"""Dependencies between operations through memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ethorch.npu.forms import Copy
from ethorch.npu.ir import Op
from ethorch.npu.runs import Run


class Dependencies:
    """The links from each operation to the earlier operations whose results it reads."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.links: list[list[tuple[Run, int]]] = []  # by position: reads with their writers
        written: dict[int, _Ranges] = {}
        for position, op in enumerate(ops):
            overlaps = [
                (*order, number, low, read)
                for number, read in enumerate(op.reads)
                if read.region in written
                for low, order in written[read.region].find(read.low, read.high)
            ]
            overlaps.sort(key=lambda link: link[:4])
            self.links.append([(read, writer) for writer, _, _, _, read in overlaps])
            is_whole = op.is_dma and isinstance(op.prepared.form, Copy)
            for number, new in enumerate(op.writes):
                written.setdefault(new.region, _Ranges()).write(new.low, new.high, (position, number), is_whole=is_whole)

    def reaches(self, position: int, source: int) -> bool:
        pending, seen = [position], {position}
        while pending:
            for _, earlier in self.links[pending.pop()]:
                if earlier == source:
                    return True
                if earlier > source and earlier not in seen:
                    seen.add(earlier)
                    pending.append(earlier)
        return False


class _Ranges:
    """The byte ranges written in one region, with the writer and output number of each. Ranges may overlap."""

    def __init__(self) -> None:
        self._table = np.empty((4, 64), np.int64)
        self._count = 0

    def find(self, low: int, high: int) -> list[tuple[int, tuple[int, int]]]:
        return [(start, (writer, number)) for start, _, writer, number in self._table[:, self._overlap(low, high)].T.tolist()]

    def write(self, low: int, high: int, order: tuple[int, int], *, is_whole: bool) -> None:
        """Add a range. If it has gaps (``is_whole=False``), it replaces only ranges inside it."""
        overlapping = self._overlap(low, high)
        if len(overlapping):
            rows = self._table[:, overlapping]
            covered = (rows[0] >= low) & (rows[1] <= high)
            replaced = overlapping if is_whole else overlapping[covered]
            if len(replaced):
                self._remove(replaced)
            if is_whole:
                for start, end, *of in rows.T[~covered].tolist():
                    if start < low:
                        self._append(start, low, *of)
                    if high < end:
                        self._append(high, end, *of)
        self._append(low, high, *order)

    def _overlap(self, low: int, high: int) -> npt.NDArray[np.intp]:
        starts, ends = self._table[0, : self._count], self._table[1, : self._count]
        return np.flatnonzero((starts < high) & (ends > low))

    def _remove(self, places: npt.NDArray[np.intp]) -> None:
        rest = np.delete(self._table[:, : self._count], places, 1)
        self._count = rest.shape[1]
        self._table[:, : self._count] = rest

    def _append(self, *row: int) -> None:
        if self._count == self._table.shape[1]:
            self._table = np.concatenate([self._table, np.empty_like(self._table)], 1)
        self._table[:, self._count] = row
        self._count += 1
