"""The tensors in an NPU's memory, by its commands alone: what is written, where, and until when it is read.

A feature map that several commands write (the stripes of an operation) is one tensor; names are those of the layers that write it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ethorch.npu import Program
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.memory import Access, Span
from ethorch.npu.prepared import PREPARE, Prepared

Range = tuple[int, int]  # first address, the one behind the last


def extent(access: Access) -> Range:
    """The addresses that an access can touch, from its lowest to behind its highest; NHCWB16 in whole bricks."""
    if isinstance(access, Span):
        return access.base, access.base + access.size_bytes
    tiles = access.extents()
    return (min(low for low, _ in tiles), max(high for _, high in tiles)) if tiles else (0, 0)


def accesses(found: tuple[Access, ...]) -> Iterator[Access]:
    """Those of a command that lie in one of the NPU's regions, not inside it or in no memory."""
    for access in found:
        if access.region >= 0 and (isinstance(access, Span) or access.in_memory):
            yield access


def highest(program: Program, region: int) -> int:
    """The address behind all that the commands of a stream touch in a region, on a multiple of 16; 0 where they touch none."""
    found = 0
    for op in program.operations():
        prepare = PREPARE.get((op.name, op.npu.family))
        if prepare is not None:
            prepared = prepare(op)
            for access in accesses((*prepared.reads, *prepared.writes)):
                if access.region == region:
                    found = max(found, extent(access)[1])
    return -(-found // 16) * 16


@dataclass
class StreamTensor:
    """Bytes of a region that commands write and read.

    Attributes:
        region: number.
        start, end: addresses.
        first, last: positions of the layers that write it first and read it last.
        dtype, layout: of a feature map; of what a DMA wrote, empty.
    """

    region: int
    start: int
    end: int
    first: int
    last: int
    dtype: str = ""
    layout: str = ""

    def overlaps(self, region: int, where: Range) -> bool:
        """Does it share a byte with a range?"""
        return self.region == region and self.start < where[1] and where[0] < self.end


class StreamTensors:
    """The tensors of a stream, found by going through its commands once."""

    def __init__(self) -> None:
        self.done: list[StreamTensor] = []
        self._live: list[StreamTensor] = []

    def given(self, region: int, where: Range) -> None:
        """Bytes that are there before the first command: an input."""
        self._live.append(StreamTensor(region, *where, first=0, last=0))

    def read_to_the_end(self, region: int, where: Range, position: int) -> None:
        """Bytes that are read behind the last command: an output."""
        for tensor in self._live:
            if tensor.overlaps(region, where):
                tensor.last = max(tensor.last, position)

    def add(self, position: int, prepared: Prepared) -> None:
        """A command of the layer at a position: what it reads lives on; what it overwrites ends, but for its own layer's."""
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
            same = tensor.first == position and tensor.dtype == dtype
            if tensor.region == access.region and same and tensor.start <= where[1] and where[0] <= tensor.end:
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
        """All of them, in the order of their first layers."""
        self.done += self._live
        self._live = []
        return sorted(self.done, key=lambda tensor: (tensor.first, tensor.region, tensor.start))
