"""Compute the bytes that a command stream accesses in each region, before the stream runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.memory import Span
from ethorch.npu.prepared import Step
from ethorch.npu.program import Program
from ethorch.npu.staging import reaches


@dataclass
class Extent:
    """The bytes that a command stream accesses in one region.

    Attributes:
        start, end: Offset of the first accessed byte, and offset after the last.
        last: First command that accesses the last byte.
        read, written: Merged and sorted (start, end) ranges.
    """

    start: int
    end: int
    writes: bool
    last: str
    read: list[tuple[int, int]]
    written: list[tuple[int, int]]


def extents(program: Program) -> dict[int, Extent]:
    """Return the extent of each region for a stream without branches.

    Indexed DMAs are omitted. Raise MachineFault if an operation cannot be prepared.
    """
    extent_by_region: dict[int, Extent] = {}
    for step in program.steps():
        for writes, accesses in ((False, step.prepared.reads), (True, step.prepared.writes)):
            for access in accesses:
                if (isinstance(access, FeatureMap) and not access.in_memory) or access.region < 0:
                    continue
                for start, end in _ranges(access):
                    _add(extent_by_region, access.region, start, end, writes, step)
    for extent in extent_by_region.values():
        extent.read, extent.written = merge_ranges(extent.read), merge_ranges(extent.written)
    return extent_by_region


def reachable(program: Program) -> dict[int, Extent]:
    """Return the byte range that a stream with branches can access in each region, over all paths."""
    extent_by_region: dict[int, Extent] = {}
    for op in program.operations():
        for region, end in reaches(op):
            extent = extent_by_region.setdefault(region, Extent(0, 0, True, "", [], []))
            extent.end = max(extent.end, end)
    for extent in extent_by_region.values():
        extent.read = extent.written = [(0, extent.end)]
    return extent_by_region


def _add(extent_by_region: dict[int, Extent], region: int, start: int, end: int, writes: bool, step: Step) -> None:
    title = f"command {step.op.index} at byte {step.op.offset:#x}, {step.op.title}"
    extent = extent_by_region.get(region)
    if extent is None:
        extent = extent_by_region[region] = Extent(start, end, writes, title, [], [])
    if end > extent.end:
        extent.end, extent.last = end, title
    extent.start = min(extent.start, start)
    extent.writes |= writes
    (extent.written if writes else extent.read).append((start, end))


def _ranges(access: FeatureMap | Span) -> Iterable[tuple[int, int]]:
    if isinstance(access, Span):
        yield access.base, access.base + access.size_bytes
        return
    size = access.dtype.itemsize
    stride_y, stride_x, stride_c = access.strides
    for tile in access.tiles:
        steps = [(tile.height - 1) * stride_y, (tile.width - 1) * stride_x]
        if access.bricks:
            steps.append((access.depth - 1) // 16 * stride_c)
            tail = min(access.depth, 16) * size
        else:
            tail = access.depth * size
        yield tile.base + sum(min(step, 0) for step in steps), tile.base + sum(max(step, 0) for step in steps) + tail


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge overlapping and adjacent ranges, and sort them."""
    result: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result
