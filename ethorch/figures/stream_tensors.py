"""Derive the tensors in NPU memory from NPU commands.

If several commands write stripes of one feature map, the feature map is one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ethorch.npu import Program
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.memory import Access, Span
from ethorch.npu.prepared import PREPARE, Prepared

Range = tuple[int, int]  # first address, end address


def extent(access: Access) -> Range:
    """Return the address range of an access. Accesses in NHCWB16 are extended to whole blocks of 16 channels."""
    if isinstance(access, Span):
        return access.base, access.base + access.size_bytes
    tiles = access.extents()
    return (min(low for low, _ in tiles), max(high for _, high in tiles)) if tiles else (0, 0)


def accesses(candidates: tuple[Access, ...]) -> Iterator[Access]:
    """Iterate over the accesses to NPU regions, skipping accesses to internal memories."""
    for access in candidates:
        if access.region >= 0 and (isinstance(access, Span) or access.in_memory):
            yield access


def highest(program: Program, region: int) -> int:
    """Return the highest end address accessed in a region, rounded up to a multiple of 16, or 0 if unused."""
    end = 0
    for op in program.operations():
        prepare = PREPARE.get((op.name, op.npu.family))
        if prepare is not None:
            prepared = prepare(op)
            for access in accesses((*prepared.reads, *prepared.writes)):
                if access.region == region:
                    end = max(end, extent(access)[1])
    return -(-end // 16) * 16


@dataclass
class StreamTensor:
    """A tensor's address range, derived from its accesses.

    Attributes:
        start, end: First address of the tensor, and first address after it.
        first, last: Positions of the layers with the first write and the last read.
        dtype, layout: Properties of a feature map, or "" for delegate inputs and DMA transfers.
    """

    region: int
    start: int
    end: int
    first: int
    last: int
    dtype: str = ""
    layout: str = ""

    def overlaps(self, region: int, where: Range) -> bool:
        """Return True if the tensor shares at least one byte with an address range of a region."""
        return self.region == region and self.start < where[1] and where[0] < self.end


class StreamTensors:
    """The tensors of a command stream, collected in one pass over its commands."""

    def __init__(self) -> None:
        self.done: list[StreamTensor] = []
        self._live: list[StreamTensor] = []

    def add_input(self, region: int, where: Range) -> None:
        """Add an input tensor, which is alive from the first layer on."""
        self._live.append(StreamTensor(region, *where, first=0, last=0))

    def add_output(self, region: int, where: Range, position: int) -> None:
        """Extend the lifetimes of tensors that overlap an output."""
        for tensor in self._live:
            if tensor.overlaps(region, where):
                tensor.last = max(tensor.last, position)

    def add(self, position: int, prepared: Prepared) -> None:
        """Add a command of the layer at ``position``.

        A read extends the lifetime of the tensors it accesses. A write ends the lifetime of the bytes it overwrites, unless
        it writes another stripe of the same layer.
        """
        for access in accesses(prepared.reads):
            where = extent(access)
            for tensor in self._live:
                if tensor.overlaps(access.region, where):
                    tensor.last = max(tensor.last, position)
        for access in accesses(prepared.writes):
            self._write(position, access)

    def _write(self, position: int, access: Access) -> None:
        where = extent(access)
        dtype = access.dtype.name if isinstance(access, FeatureMap) else ""
        layout = ("NHCWB16" if access.bricks else "NHWC") if isinstance(access, FeatureMap) else ""
        for tensor in self._live:
            is_same_layer = tensor.first == position and tensor.dtype == dtype
            if tensor.region == access.region and is_same_layer and tensor.start <= where[1] and where[0] <= tensor.end:
                tensor.start, tensor.end = min(tensor.start, where[0]), max(tensor.end, where[1])  # another stripe
                return
        live: list[StreamTensor] = []
        for tensor in self._live:
            if not tensor.overlaps(access.region, where):
                live.append(tensor)
                continue
            left, right = (tensor.start, where[0]), (where[1], tensor.end)
            self.done.append(replace(tensor, start=max(tensor.start, where[0]), end=min(tensor.end, where[1])))
            live += [replace(tensor, start=start, end=end) for start, end in (left, right) if start < end]
        self._live = [*live, StreamTensor(access.region, *where, position, position, dtype, layout)]

    def finish(self) -> list[StreamTensor]:
        """Return all tensors, sorted by first layer."""
        self.done += self._live
        self._live = []
        return sorted(self.done, key=lambda tensor: (tensor.first, tensor.region, tensor.start))
