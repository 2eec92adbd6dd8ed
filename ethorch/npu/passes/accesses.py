"""Accesses to memory, with their address registers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ethorch.npu.feature_map import BRICK, FeatureMap
from ethorch.npu.forms import Transfer
from ethorch.npu.ir import Op
from ethorch.npu.memory import Span
from ethorch.npu.prepared import Prepared
from ethorch.npu.runs import Run, iterate_reads, iterate_writes
from ethorch.support.errors import MachineFault

Labels = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Access:
    """Bytes of one region that an operation accesses through one operand."""

    region: int
    runs: tuple[Run, ...]
    fm: FeatureMap | None = None  # None for contiguous bytes
    is_partial: bool = False  # a write may leave bytes of its ranges unchanged

    @property
    def low(self) -> int:
        return min(run.low for run in self.runs)

    @property
    def high(self) -> int:
        return max(run.high for run in self.runs)

    def overlaps(self, access: Access) -> bool:
        if self.region != access.region:
            return False
        return any(a.low < b.high and b.low < a.high for a in self.runs for b in access.runs)

    def views(self, labels: Labels) -> Iterator[Labels]:
        """Yield the accessed elements of ``labels``, which has one per byte."""
        if self.fm is None:
            for run in self.runs:
                yield labels[run.low : run.high]
            return
        size, (sy, sx, sc) = self.fm.dtype.itemsize, self.fm.strides
        for tile in self.fm.tiles:
            full, rest = divmod(self.fm.depth, BRICK) if self.fm.bricks else (0, self.fm.depth)
            if full:
                yield _strided(labels, tile.base, (tile.height, full, tile.width, BRICK * size), (sy, sc, sx, 1))
            if rest:
                yield _strided(labels, tile.base + full * sc, (tile.height, tile.width, rest * size), (sy, sx, 1))


def _strided(labels: Labels, base: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Labels:
    step = labels.itemsize
    try:
        return np.ndarray(shape, labels.dtype, labels, base * step, tuple(step * stride for stride in strides))
    except ValueError as error:
        raise MachineFault(f"a feature map of shape {shape} at {base:#x} exceeds its region.") from error


def list_reads(op: Op, regions: Collection[int]) -> list[Access]:
    return _list_accesses(op.prepared, tuple(iterate_reads(op.prepared)), regions, writes=False)


def list_writes(op: Op, regions: Collection[int]) -> list[Access]:
    return _list_accesses(op.prepared, tuple(iterate_writes(op.prepared)), regions, writes=True)


def _list_accesses(prepared: Prepared, runs: Sequence[Run], regions: Collection[int], *, writes: bool) -> list[Access]:
    if isinstance(prepared.form, Transfer):
        return [Access(run.region, (run,), is_partial=writes) for run in runs if run.region in regions]
    accesses = []
    for access in prepared.writes if writes else prepared.reads:
        if access.region not in regions:
            continue
        if isinstance(access, Span):
            name = access.name if access.name.startswith("DMA0") else f"{access.name}_BASE"
            operand_runs = tuple(run for run in runs if run.register == name)
            fm = None
        elif access.in_memory:
            operand_runs, fm = tuple(run for run in runs if run.register.startswith(f"{access.name}_BASE")), access
        else:
            continue
        if operand_runs:
            accesses.append(Access(access.region, operand_runs, fm))
    return accesses


def is_in_place(op: Op, read: Access, written: Access) -> bool:
    """Return True if each OFM element depends only on the element that it replaces (ReuseIFM)."""
    if op.name != "NPU_OP_ELEMENTWISE" or read.fm is None or written.fm is None or read.region != written.region:
        return False
    values = op.values
    moved = values.get("OFM_PRECISION.transpose", 0) or values.get("OFM_PRECISION.reverse", 0)
    return not moved and _layout(read.fm) == _layout(written.fm)


def _layout(fm: FeatureMap) -> tuple[object, ...]:
    tiles = [(tile.y, tile.x, tile.height, tile.width, tile.base - fm.tiles[0].base) for tile in fm.tiles]
    return fm.shape, fm.dtype.itemsize, fm.bricks, fm.strides[: 3 if fm.bricks else 2], tiles
