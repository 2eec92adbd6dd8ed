from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from ethorch.npu.arrays import Ints
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.ir import Op, Stream
from ethorch.npu.ir.image import Place
from ethorch.npu.ir.kernel_copies import KernelCopy, find_kernel_copy
from ethorch.npu.passes.accesses import Access, Block, CoarseLabels, find_labels, list_reads, list_writes
from ethorch.npu.passes.allocation import allocate
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.lifetimes import find_lifetimes
from ethorch.npu.passes.placement import Separation, move_segments, round_up
from ethorch.npu.passes.strides import AddressTable
from ethorch.npu.runs import Run

HOST = -1  # position of the host as a writer or reader
_MOST_ELEMENTS = 1 << 22  # of a copied map
_MOST_COMPARISONS = 1 << 25  # of addresses in one graph, in about a second
_MOST_LEVELS = 6  # successive copies that one change replaces


@dataclass(frozen=True)
class Read:
    """An access that reads bytes written by an operation."""

    position: int  # of the reader, or HOST
    fm: FeatureMap | None = None  # None for a contiguous range, or a transfer
    is_only: bool = False  # a single operation wrote all of them


class CopyGraph:
    """The copy operations of a stream with disjoint segments.

    Attributes:
        copies: Copies that may still be removed, by position.
        reads: For each operation's position, the accesses that read bytes written by that operation.
        writers: For each operation's position, the positions of the operations that wrote its input bytes.
        places: Address ranges of feature maps whose lifetimes have been extended.
        comparisons: Number of addresses that may still be compared.
    """

    def __init__(self, apart: Separation, removable: Collection[int]):
        self.apart, self.stream, self.removable = apart, apart.stream, removable
        self.spaces = [segment.space for segment in apart.lifetimes.segments]
        self.regions = self.stream.image.allocated
        self.ops = list(self.stream.ops)
        self.inputs = [list_reads(op, self.regions) for op in self.ops]
        self.outputs = [list_writes(op, self.regions) for op in self.ops]
        self.places: set[Place] = set()
        self.removed: set[int] = set()
        self.comparisons = _MOST_COMPARISONS

    def trace(self) -> None:
        """Find ``copies``, ``reads`` and ``writers`` of the current operations."""
        labels = CoarseLabels(self.spaces)
        self.reads: dict[int, list[Read]] = {position: [] for position in range(len(self.ops))}
        self.writers: dict[int, set[int]] = {position: set() for position in self.reads}
        self._tables: dict[int, AddressTable] = {}  # from the target of a copy to its source
        self._kept: dict[int, int] = {}  # by copy: the position up to which its source is not overwritten

        def read(position: int, region: int, blocks: Iterable[Block], fm: FeatureMap | None = None) -> None:
            origins = {label - 1 for label in find_labels(labels.views(region, list(blocks)))}
            if position != HOST:
                self.writers[position] |= origins
            for origin in origins - {HOST}:
                self.reads[origin].append(Read(position, fm, len(origins) == 1))

        for position in self.iterate(range(len(self.ops))):
            for access in self.inputs[position]:
                read(position, access.region, access.blocks, access.fm)
            for access in self.outputs[position]:
                if access.is_partial:
                    read(position, access.region, access.blocks)
                for view in labels.views(access.region, access.blocks):
                    view[...] = position + 1
        for region, low, high in self.stream.image.outputs:
            if region in self.regions and low < high:
                read(HOST, region, [Block.of_span(low, high)])
        self.copies: dict[int, KernelCopy] = {}
        for position in sorted({*self.removable} - self.removed):
            copy = find_kernel_copy(self.ops[position])
            if copy is not None and copy.target.elements <= _MOST_ELEMENTS:
                self.copies[position] = copy

    def iterate(self, positions: Iterable[int]) -> Iterator[int]:
        return (position for position in positions if position not in self.removed)

    def iterate_sources(
        self, position: int, fm: FeatureMap, stop: int, changed: Collection[int] = ()
    ) -> Iterator[tuple[int, FeatureMap, Ints]]:
        """Yield the sources of ``fm``, a part of the target of the copy at ``position``.

        The first source is that of the copy itself. Each further source is that of the copy that wrote the previous one.
        Iteration ends before the first copy that is in ``changed``, or whose source is overwritten before position ``stop``.

        Yields:
            The position of each copy, its source, and the source address of each element of ``fm``.
        """
        addresses = fm.addresses()
        for _ in range(_MOST_LEVELS):
            copy = self.copies[position]
            self.comparisons -= fm.elements + copy.target.elements * (position not in self._tables)
            if copy.source.region not in self.regions or copy.source.dtype.itemsize != fm.dtype.itemsize or self.comparisons < 0:
                return
            if position not in self._tables:
                self._tables[position] = AddressTable(copy.target, copy.find_sources())
            found = self._tables[position].find(addresses)
            if found is None or self._is_overwritten(position, stop):
                return
            addresses = found
            yield position, copy.source, addresses
            if len(self.writers[position]) != 1:
                return
            (position,) = self.writers[position]
            if position in changed or position not in self.copies:
                return

    def _is_overwritten(self, position: int, stop: int) -> bool:
        """Return True if an operation before position ``stop`` overwrites part of a value read by the copy at ``position``."""
        start = self._kept.get(position, position + 1)
        if start < stop:
            values = [access for access in self.inputs[position] if access.fm is not None]
            values += [access for writer in self.writers[position] - {HOST} for access in self.outputs[writer]]
            if HOST in self.writers[position]:
                values += [_access_place(place) for place in self.stream.image.inputs]
            later = self.iterate(range(start, stop))
            over = (n for n in later if any(access.overlaps(value) for access in self.outputs[n] for value in values))
            start = self._kept[position] = next(over, stop)
        return start < stop

    def list_ops(self) -> list[Op]:
        return [op for position, op in enumerate(self.ops) if position not in self.removed]


def _access_place(place: Place) -> Access:
    region, low, high = place
    return Access(region, (Run("", region, low, low, high),))


def reallocate(stream: Stream, graph: CopyGraph, context: Context, most: int) -> Stream | None:
    """Return the stream with the graph's operations, or None if its cycles reach ``most`` or a region becomes too large.

    Segments keep their addresses in ``stream`` unless their lifetimes have been extended.
    """
    apart, ops = graph.apart, graph.list_ops()
    changed = replace(apart.stream, ops=ops)
    image = changed.image
    lifetimes = find_lifetimes(ops, graph.regions, image.inputs, image.outputs, spaces=graph.spaces)
    spaces = sorted((*space, move) for space, move in zip(graph.spaces, apart.moves, strict=True))
    ends, moves = {region: round_up(size) for region, size in stream.image.sizes.items()}, []
    for segment in lifetimes.segments:
        region, low, high = segment.space
        if any(place[0] == region and place[1] < high and low < place[2] for place in graph.places):
            moves.append(ends[region] - low)
            ends[region] += high - low
        else:
            moves.append(-spaces[bisect_right(spaces, (region, low), key=lambda space: space[:2]) - 1][3])
    joined = move_segments(changed, lifetimes, moves, ends)
    if context.rate(joined) >= most:
        return None
    after = allocate(joined).stream
    fits = all(size <= context.limit(stream, region) for region, size in after.image.sizes.items())
    return after if fits and context.rate(after) < most else None
