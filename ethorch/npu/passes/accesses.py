"""Memory accesses of operations, with their address registers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ethorch.npu.feature_map import BRICK, FeatureMap
from ethorch.npu.forms import Transfer
from ethorch.npu.ir import Op
from ethorch.npu.ir.image import Place
from ethorch.npu.memory import Span
from ethorch.npu.prepared import Prepared
from ethorch.npu.runs import Run
from ethorch.support.errors import MachineFault

Labels = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Access:
    """The bytes of one region that an operation accesses through one operand."""

    region: int
    runs: tuple[Run, ...]
    fm: FeatureMap | None = None  # None for contiguous bytes, and for transfers
    is_partial: bool = False  # a write may leave bytes of its ranges unchanged
    rows: FeatureMap | None = None  # bytes of a strided transfer

    @property
    def low(self) -> int:
        return min(run.low for run in self.runs)

    @property
    def high(self) -> int:
        return max(run.high for run in self.runs)

    def overlaps(self, access: Access) -> bool:
        if self.region != access.region:
            return False
        for a in self.runs:  # not any(): stream passes call this millions of times, mostly with one run each
            for b in access.runs:
                if a.low < b.high and b.low < a.high:
                    return True
        return False

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The accessed bytes, without the gaps between them."""
        fm = self.fm or self.rows
        if fm is None:
            return tuple(Block.of_span(run.low, run.high) for run in self.runs)
        size, (sy, sx, sc) = fm.dtype.itemsize, fm.strides
        full, rest = divmod(fm.depth, BRICK) if fm.bricks else (0, fm.depth)
        blocks = []
        for tile in fm.tiles:
            if full:
                blocks.append(_merge_axes(tile.base, (tile.height, full, tile.width, BRICK * size), (sy, sc, sx, 1)))
            if rest:
                blocks.append(_merge_axes(tile.base + full * sc, (tile.height, tile.width, rest * size), (sy, sx, 1)))
        return tuple(blocks)


class Block(NamedTuple):
    """A strided array of bytes, whose last axis is contiguous."""

    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of_span(cls, low: int, high: int) -> Block:
        return cls(low, (high - low,), (1,))


def _merge_axes(base: int, shape: Sequence[int], strides: Sequence[int]) -> Block:
    merged = [(shape[-1], strides[-1])]
    for extent, stride in zip(shape[-2::-1], strides[-2::-1], strict=True):
        inner, step = merged[-1]
        if stride == inner * step:
            merged[-1] = extent * inner, step
        elif extent > 1:
            merged.append((extent, stride))
    return Block(base, *map(tuple, zip(*reversed(merged), strict=True)))


class CoarseLabels:
    """The labels of the bytes in disjoint address ranges. Adjacent bytes share a label until an access covers only some of them."""

    def __init__(self, spaces: Iterable[Place]):
        self._spaces = sorted(spaces)
        for (region, low, high), after in pairwise(self._spaces):
            if after[0] == region and after[1] < high:
                raise MachineFault(f"buffers at {low:#x} and {after[1]:#x} in region {region} share bytes.")
        self._starts = [space[:2] for space in self._spaces]
        self._units = [high - low for _, low, high in self._spaces]  # bytes of each label
        self._labels: list[Labels] = [np.zeros(1, np.int32) for _ in self._spaces]

    def clear(self) -> None:
        for labels in self._labels:
            labels.fill(0)

    def views(self, region: int, blocks: Sequence[Block]) -> list[Labels]:
        """Return views of the labels of the bytes in ``blocks``."""
        base = min(block.base for block in blocks)
        number = bisect_right(self._starts, (region, base)) - 1
        if number < 0 or self._spaces[number][0] != region or self._spaces[number][2] <= base:
            raise MachineFault(f"an access to {base:#x} in region {region} is outside the allocated memory.")
        if any(0 in block.shape for block in blocks):
            raise MachineFault(f"an access to {base:#x} in region {region} has no bytes.")
        low, labels = self._spaces[number][1], self._labels[number]
        unit = gcd(self._units[number], *(n for base, shape, strides in blocks for n in (base - low, shape[-1], *strides[:-1])))
        if unit != self._units[number]:
            labels = self._labels[number] = np.repeat(labels, self._units[number] // unit)
            self._units[number] = unit
        return [_view(labels, unit, block._replace(base=block.base - low)) for block in blocks]


def _view(labels: Labels, unit: int, block: Block) -> Labels:
    size = labels.itemsize
    shape, strides = (*block.shape[:-1], block.shape[-1] // unit), (*(stride // unit * size for stride in block.strides[:-1]), size)
    try:
        return np.ndarray(shape, labels.dtype, labels, block.base // unit * size, strides)
    except ValueError as error:
        raise MachineFault(f"a tile of {block.shape} bytes at offset {block.base:#x} exceeds its address range.") from error


def find_labels(views: Iterable[Labels]) -> set[int]:
    labels: set[int] = set()
    for view in views:
        low, high = int(view.min()), int(view.max())
        if low == high:
            labels.add(low)
        else:
            labels.update((low + np.flatnonzero(np.bincount((view - low).ravel()))).tolist())
    return labels


def list_reads(op: Op, regions: Collection[int]) -> list[Access]:
    return [access for access in op.derive(_list_all_reads) if access.region in regions]


def list_writes(op: Op, regions: Collection[int]) -> list[Access]:
    return [access for access in op.derive(_list_all_writes) if access.region in regions]


def _list_all_reads(op: Op) -> list[Access]:
    return _list_accesses(op.prepared, op.reads, writes=False)


def _list_all_writes(op: Op) -> list[Access]:
    return _list_accesses(op.prepared, op.writes, writes=True)


def _list_accesses(prepared: Prepared, runs: Sequence[Run], *, writes: bool) -> list[Access]:
    if isinstance(prepared.form, Transfer):
        rows = {"DMA0_SRC": prepared.form.source_rows, "DMA0_DST": prepared.form.target_rows}
        is_partial = writes and prepared.form.by_target
        return [Access(run.region, (run,), is_partial=is_partial, rows=rows.get(run.register)) for run in runs]
    accesses = []
    for access in prepared.writes if writes else prepared.reads:
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
    """Return True if each OFM element depends only on the element that it replaces (Vela's ReuseIFM)."""
    if op.name != "NPU_OP_ELEMENTWISE" or read.fm is None or written.fm is None or read.region != written.region:
        return False
    values = op.values
    moved = values.get("OFM_PRECISION.transpose", 0) or values.get("OFM_PRECISION.reverse", 0)
    return not moved and _layout(read.fm) == _layout(written.fm)


def _layout(fm: FeatureMap) -> tuple[object, ...]:
    tiles = [(tile.y, tile.x, tile.height, tile.width, tile.base - fm.tiles[0].base) for tile in fm.tiles]
    return fm.shape, fm.dtype.itemsize, fm.bricks, fm.strides[: 3 if fm.bricks else 2], tiles
