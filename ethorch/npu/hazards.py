"""The optional checks ``overlap`` and ``uninitialized``."""

# ``overlap`` finds operations that can overwrite their inputs before reading them. The simulator reads all inputs first, but the
# hardware works in blocks and reads ahead. Vela lets the OFM overlap an input only in elementwise operations with equal layouts
# (feature ReuseIFM), which is safe.
#
# ``uninitialized`` finds operations that compute with bytes that neither the caller nor the stream has written.

from __future__ import annotations

import numpy as np

from ethorch.npu.arrays import Array, Bytes
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.memory import Access, Memory, Span
from ethorch.npu.output import ACC_IFM2
from ethorch.npu.prepared import Prepared, Step
from ethorch.support.errors import MachineFault


def check_overlap(m: Memory, step: Step) -> None:
    """Raise MachineFault if hardware could overwrite an input of the operation before reading it."""
    for ofm in step.prepared.writes:
        for read in step.prepared.reads:
            if isinstance(ofm, Span):
                clash = isinstance(read, Span) and _spans_clash(read, ofm) and not _onto_itself(step, read, ofm)
            elif isinstance(read, Span):
                clash = bool(np.any(_marks(m, ofm, read.region)[read.base : read.base + read.size_bytes]))
            else:
                clash = m.overlap(read, ofm) and not _in_place(step, read, ofm) and _maps_clash(m, read, ofm)
            if clash:
                raise MachineFault(
                    f"{ofm.name} overlaps {read.name}, so the operation could overwrite input bytes before reading them"
                )


def _spans_clash(a: Span, b: Span) -> bool:
    return a.region == b.region and a.base < b.base + b.size_bytes and b.base < a.base + a.size_bytes


def _onto_itself(step: Step, read: Span, written: Span) -> bool:
    plain = not any(step.op.state.get(f"DMA0_{end}_REGION.stride_mode", 0) for end in ("SRC", "DST"))
    return plain and (read.base, read.size_bytes) == (written.base, written.size_bytes)


def _marks(m: Memory, fm: FeatureMap, region: int) -> Bytes:
    marks = np.zeros(m.region(region).size, np.uint8)
    if fm.in_memory and fm.region == region:
        for view in fm.views(marks):
            for array in view.arrays:
                array[...] = -1 if array.dtype.kind == "i" else np.iinfo(array.dtype).max
    return marks


def _maps_clash(m: Memory, a: FeatureMap, b: FeatureMap) -> bool:
    return bool(np.any(_marks(m, a, a.region) & _marks(m, b, a.region)))


def _in_place(step: Step, read: FeatureMap, ofm: FeatureMap) -> bool:
    op = step.op
    if read.name == "IFM2" and op.state.get("ACC_FORMAT.input") == ACC_IFM2:
        pass  # initial values of the accumulators
    elif op.name in ("NPU_OP_POOL", "NPU_OP_DEPTHWISE"):
        if (op["KERNEL_HEIGHT"], op["KERNEL_WIDTH"], op["IFM_UPSCALE"]) != (1, 1, 0):
            return False
    elif op.name != "NPU_OP_ELEMENTWISE":
        return False
    moved = op.state.get("OFM_PRECISION.transpose", 0) or op.state.get("OFM_PRECISION.reverse", 0)
    return not moved and _layout(read) == _layout(ofm)


def _layout(fm: FeatureMap) -> tuple[object, ...]:
    tiles = [(t.y, t.x, t.height, t.width, t.base) for t in fm.tiles]
    return fm.shape, fm.dtype.itemsize, fm.bricks, fm.strides[: 3 if fm.bricks else 2], tiles


class Unwritten:
    """A record of a memory's unwritten bytes. Constants count as written."""

    def __init__(self, memory: Memory):
        self._marks = {n: np.full(r.size, n == 0, np.uint8) for n, r in memory.regions.items()}
        memory.watch = lambda span: self.mark(span.region, span.base, span.size_bytes)

    def mark(self, region: int, start: int, size_bytes: int) -> None:
        self._marks[region][start : start + size_bytes] = 1

    def check_reads(self, m: Memory, prepared: Prepared) -> None:
        """Raise MachineFault if the operation computes with unwritten bytes."""
        for access in prepared.reads:
            if not prepared.computes:
                continue  # a DMA can move bytes that are never used
            for marks in self._of(m, access):
                if not np.all(marks == _all_written(marks)):
                    raise MachineFault(f"{access.name} reads unwritten bytes of region {access.region}")

    def mark_writes(self, m: Memory, prepared: Prepared) -> None:
        for access in prepared.writes:
            for marks in self._of(m, access):
                marks[...] = _all_written(marks)

    def _of(self, m: Memory, access: Access) -> list[Array]:
        if isinstance(access, FeatureMap) and not access.in_memory:
            return []
        m.region(access.region)
        marks = self._marks[access.region]
        if isinstance(access, Span):
            return [marks[access.base : access.base + access.size_bytes]]
        return [a for view in access.views(marks) for a in view.arrays]


def _all_written(marks: Array) -> int:
    return sum(1 << (8 * i) for i in range(marks.itemsize))
