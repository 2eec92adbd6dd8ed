"""Dependencies between operations through memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ethorch.npu.ir import Op
from ethorch.npu.runs import Run


class Dependencies:
    """Operations that wrote the bytes that an operation reads."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.links: list[list[tuple[Run, int]]] = []  # by position: reads with their writers
        written: dict[int, list[_Written]] = {}
        for position, op in enumerate(ops):
            overlaps = [
                (written_run.order, number, read, written_run.writer)
                for number, read in enumerate(op.reads)
                for written_run in written.get(read.region, ())
                if written_run.low < read.high and read.low < written_run.high
            ]
            overlaps.sort(key=lambda link: link[:2])
            self.links.append([(read, writer) for _, _, read, writer in overlaps])
            for number, new in enumerate(op.writes):
                # A transfer overwrites its whole range. A feature map can leave gaps, so that parts of it remain.
                remaining = _subtract if op.is_dma else _subtract_covered
                entries = written.setdefault(new.region, [])
                if any(written_run.low < new.high and new.low < written_run.high for written_run in entries):
                    entries[:] = [rest for written_run in entries for rest in remaining(written_run, new)]
                entries.append(_Written(new.low, new.high, position, (position, number)))

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


class _Written(NamedTuple):
    low: int
    high: int
    writer: int
    order: tuple[int, int]


def _subtract(written_run: _Written, new: Run) -> Iterator[_Written]:
    if written_run.high <= new.low or new.high <= written_run.low:
        yield written_run
        return
    if written_run.low < new.low:
        yield written_run._replace(high=new.low)
    if new.high < written_run.high:
        yield written_run._replace(low=new.high)


def _subtract_covered(written_run: _Written, new: Run) -> Iterator[_Written]:
    if written_run.low < new.low or new.high < written_run.high:
        yield written_run
