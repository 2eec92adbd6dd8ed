"""The optional ``overlap`` check: an operation whose OFM lies on what it still has to read.

This machine computes an operation as if all inputs were read first. Hardware works block by block and reads ahead, so
an OFM may lie on an input only where every element is written to the very place it alone was read from: operations
element by element, same layout on both sides. Vela makes such operations to save memory (its feature ReuseIFM).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ethorch.errors import MachineFault
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.kernel import Span
from ethorch.npu.output import ACC_IFM2

if TYPE_CHECKING:
    from ethorch.npu.machine import Machine
    from ethorch.npu.program import Step


def check_overlap(m: Machine, step: Step) -> None:
    """MachineFault when the operation may race with itself."""
    for ofm in step.kernel.writes:
        for read in step.kernel.reads:
            if isinstance(ofm, Span):
                clash = isinstance(read, Span) and _spans_clash(read, ofm) and not _onto_itself(step, read, ofm)
            elif isinstance(read, Span):
                clash = bool(np.any(_marks(m, ofm, read.region)[read.base : read.base + read.size_bytes]))
            else:
                clash = m.overlap(read, ofm) and not _in_place(step, read, ofm) and _maps_clash(m, read, ofm)
            if clash:
                raise MachineFault(f"{ofm.name} lies on {read.name}, which is still being read while it is written")


def _spans_clash(a: Span, b: Span) -> bool:
    return a.region == b.region and a.base < b.base + b.size_bytes and b.base < a.base + a.size_bytes


def _onto_itself(step: Step, read: Span, written: Span) -> bool:
    """A plain DMA from a place to the same place, which Vela makes of a copy that its allocation has made needless."""
    plain = not any(step.op.state.get(f"DMA0_{end}_REGION.stride_mode", 0) for end in ("SRC", "DST"))
    return plain and (read.base, read.size_bytes) == (written.base, written.size_bytes)


def _marks(m: Machine, fm: FeatureMap, region: int) -> np.ndarray:
    """A byte per byte of a region: is it part of the feature map?"""
    marks = np.zeros(m.region(region).size, np.uint8)
    if fm.in_memory and fm.region == region:
        for view in fm.views(marks):
            for array in view.arrays:
                array[...] = -1 if array.dtype.kind == "i" else np.iinfo(array.dtype).max
    return marks


def _maps_clash(m: Machine, a: FeatureMap, b: FeatureMap) -> bool:
    return bool(np.any(_marks(m, a, a.region) & _marks(m, b, a.region)))


def _in_place(step: Step, read: FeatureMap, ofm: FeatureMap) -> bool:
    """Whether each element of ``ofm`` depends on that element of ``read`` alone, and takes its place."""
    op = step.op
    if read.name == "IFM2" and op.state.get("ACC_FORMAT.input") == ACC_IFM2:
        pass  # what an accumulator starts from
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
