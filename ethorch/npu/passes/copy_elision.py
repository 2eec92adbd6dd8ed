"""Remove kernels that only move elements: their readers or writers use other strides."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ethorch.npu.arrays import Ints
from ethorch.npu.feature_map import BRICK, FeatureMap
from ethorch.npu.ir import Op, Stream
from ethorch.npu.ir.moves import Move, find_move
from ethorch.npu.passes.accesses import Access, Block, CoarseLabels, list_reads, list_writes
from ethorch.npu.passes.allocation import allocate
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.lifetimes import find_lifetimes
from ethorch.npu.passes.placement import Separation, move_segments, separate

_MOST_ELEMENTS = 1 << 22  # of a moved map, whose addresses are compared one by one
_WORTH = 0.005  # minimum share of the cycles to save, because the extended lifetimes leave less memory to early transfers
_MOST_ATTEMPTS = 8  # to remove a subset of the moves
_WORK = 4_000  # operations that all attempts may visit, in about five seconds
_MOST_LEVELS = 6  # successive moves that one change replaces
_FORMAT = 1 << 6  # bit of IFM_PRECISION and similar registers that selects NHCWB16 (npu-reference 2.5)
_HOST = -1  # position of the host as a writer or reader


def run(stream: Stream, context: Context) -> Stream | None:
    """Return the stream with fewer moves and cycles, within the limits of RAM, or None."""
    moves = [position for position, op in enumerate(stream.ops) if find_move(op)]
    if not moves:
        return None
    apart = separate(stream)

    def attempt(removable: Collection[int]) -> tuple[Stream, set[int]] | None:
        elision = _Elision(apart, removable)
        elision.remove_moves()
        if not elision.removed:
            return None
        joined = _join(stream, apart, elision)
        if context.rate(joined) >= context.rate(best):
            return None
        changed = allocate(joined).stream
        fits = all(size <= context.limit(stream, region) for region, size in changed.image.sizes.items())
        return (changed, elision.removed) if fits else None

    best, accepted = stream, set[int]()
    groups = [moves]
    for _ in range(min(_MOST_ATTEMPTS, _WORK // len(stream.ops))):
        if not groups:
            break
        group = groups.pop()
        result = attempt({*accepted, *group})
        if result is not None and context.rate(result[0]) < context.rate(best):
            best, accepted = result
        elif len(group) > 1:
            middle = len(group) // 2
            groups += [group[middle:], group[:middle]]
    return best if context.rate(best) <= (1 - _WORTH) * context.rate(stream) else None


def _join(stream: Stream, apart: Separation, elision: _Elision) -> Stream:
    """Return the changed stream with the segments at their original addresses, except those with longer lifetimes."""
    ops = [op for position, op in enumerate(elision.ops) if position not in elision.removed]
    changed = replace(apart.stream, ops=ops)
    image = changed.image
    lifetimes = find_lifetimes(ops, elision.regions, image.inputs, image.outputs)
    starts = [segment.space[:2] for segment in apart.lifetimes.segments]
    order = sorted(range(len(starts)), key=starts.__getitem__)
    ends, moves = dict(stream.image.sizes), []
    for segment in lifetimes.segments:
        region, low, high = segment.space
        if any(place[0] == region and low <= place[1] < high for place in elision.places):
            moves.append(ends[region] - low)
            ends[region] += high - low
        else:
            number = order[bisect_right(order, (region, low), key=starts.__getitem__) - 1]
            moves.append(-apart.moves[number])
    return move_segments(changed, lifetimes, moves, ends)


@dataclass(frozen=True)
class _Read:
    """A read of bytes that an operation wrote.

    Attributes:
        position: Position of the reader, or ``_HOST``.
        fm: Map of the reader, or None if it reads a span.
        is_only: Whether one operation wrote all bytes that the reader reads.
    """

    position: int
    fm: FeatureMap | None
    is_only: bool


class _Elision:
    """The removal of moves from a stream with disjoint segments."""

    def __init__(self, apart: Separation, removable: Collection[int]):
        self.stream, self.removable = apart.stream, removable
        self.spaces = [segment.space for segment in apart.lifetimes.segments]
        self.ops = [op.copy() for op in self.stream.ops]
        self.regions = {region: size for region, size in self.stream.image.sizes.items() if size}
        self.inputs = [list_reads(op, self.regions) for op in self.ops]
        self.outputs = [list_writes(op, self.regions) for op in self.ops]
        self.places: set[tuple[int, int]] = set()  # region and address of maps with longer lifetimes
        self.removed: set[int] = set()
        self.reads: dict[int, list[_Read]] = {}  # by position of the writer
        self.writers: dict[int, set[int]] = {}  # of the bytes that an operation reads

    def remove_moves(self) -> None:
        while True:
            count = len(self.removed)
            for remove in (self._redirect_readers, self._redirect_writers):
                self._trace()
                for position in sorted(self.removable):
                    move = None if position in self.removed else find_move(self.ops[position])
                    if move is not None and move.target.elements <= _MOST_ELEMENTS:
                        remove(position, move)
            if len(self.removed) == count:
                return

    def _trace(self) -> None:
        """Find the readers and writers of each operation. Remove moves that no operation reads."""
        while True:
            self._trace_once()
            unread = {position for position in self.removable if position not in self.removed and not self.reads[position]}
            self.removed |= unread
            if not unread:
                return

    def _trace_once(self) -> None:
        labels = CoarseLabels(self.spaces)
        self.reads = {position: [] for position in range(len(self.ops))}
        self.writers = {position: set() for position in range(len(self.ops))}

        def read(position: int, access: Access, fm: FeatureMap | None) -> None:
            views = labels.views(access.region, access.blocks)
            origins = {int(label) - 1 for view in views for label in np.unique(view)}
            if position != _HOST:
                self.writers[position] |= origins
            for origin in origins - {_HOST}:
                self.reads[origin].append(_Read(position, fm, len(origins) == 1))

        for position in range(len(self.ops)):
            if position in self.removed:
                continue
            for access in self.inputs[position]:
                read(position, access, access.fm)
            for access in self.outputs[position]:
                if access.is_partial:
                    read(position, access, None)
                for view in labels.views(access.region, access.blocks):
                    view[...] = position + 1
        for region, low, high in self.stream.image.outputs:
            if region in self.regions and low < high:
                for view in labels.views(region, [Block.of_span(low, high)]):
                    for origin in {int(label) - 1 for label in np.unique(view)} - {_HOST}:
                        self.reads[origin].append(_Read(_HOST, None, False))

    def _redirect_readers(self, position: int, move: Move) -> None:
        """Let the readers of a move read its source, or the source of an earlier move."""
        changes: list[tuple[int, str, Mapping[str, int]]] = []
        for user in self.reads[position]:
            if user.fm is None or not user.is_only or user.position in self.removed:
                return
            change = self._redirect_reader(position, move, user.position, user.fm.name)
            if change is None:
                return
            changes.append((user.position, user.fm.name, change))
        for reader, name, registers in changes:
            self._change(reader, name, registers)
        self.removed.add(position)

    def _redirect_reader(self, position: int, move: Move, reader: int, name: str) -> dict[str, int] | None:
        op = self.ops[reader]
        if any(not read.in_memory for read in op.prepared.reads if isinstance(read, FeatureMap)):
            return None  # BLOCKDEP of the kernel that starts a chain covers only the maps that this kernel reads
        fm = next(fm for fm in op.prepared.reads if isinstance(fm, FeatureMap) and fm.name == name)
        addresses: Ints | None = fm.addresses() if fm.region == move.target.region else None
        for _ in range(_MOST_LEVELS):
            addresses = None if addresses is None else _map_addresses(addresses, move.target, move.find_sources())
            if addresses is None or move.source.region not in self.regions or self._is_written(position, reader):
                return None
            change = _with_addresses(op, fm, addresses, move.source)
            if change is not None:
                return change
            position = next(iter(self.writers[position])) if len(self.writers[position]) == 1 else _HOST
            earlier = None if position == _HOST or position in self.removed else find_move(self.ops[position])
            if earlier is None or earlier.target.elements > _MOST_ELEMENTS:
                return None
            move = earlier
        return None

    def _redirect_writers(self, position: int, move: Move) -> None:
        """Let the writers of a move's source write its target."""
        writers = self.writers[position]
        if move.target.region not in self.regions or not writers or _HOST in writers or writers & self.removed:
            return
        target = next(access for access in self.outputs[position] if access.fm is not None)
        changes = {}
        for writer in writers:
            op = self.ops[writer]
            if op.is_dma or any(user.position != position for user in self.reads[writer]):
                return
            maps = [fm for fm in op.prepared.writes if isinstance(fm, FeatureMap) and fm.in_memory]
            if len(maps) != 1 or any(access.overlaps(target) for access in self._accesses_between(writer, position)):
                return
            if maps[0].region != move.source.region:
                return
            addresses = _map_addresses(maps[0].addresses(), move.source, move.find_targets())
            change = None if addresses is None else _with_addresses(op, maps[0], addresses, move.target)
            if change is None:
                return
            changes[writer] = change
        for writer, change in changes.items():
            self._change(writer, "OFM", change)
        self.removed.add(position)

    def _change(self, position: int, name: str, registers: Mapping[str, int]) -> None:
        self.places.add((registers[f"{name}_REGION"], registers[f"{name}_BASE0"]))
        self.ops[position] = op = replace(self.ops[position].copy(**registers), before=None)
        self.inputs[position], self.outputs[position] = list_reads(op, self.regions), list_writes(op, self.regions)

    def _is_written(self, first: int, last: int) -> bool:
        """Return True if operations between a move and a reader write over values that the move reads, including unread bytes."""
        sources = [access for access in self.inputs[first] if access.fm is not None]
        sources += [access for writer in self.writers[first] - {_HOST} for access in self.outputs[writer]]
        between = (self.outputs[position] for position in range(first + 1, last) if position not in self.removed)
        return any(access.overlaps(source) for accesses in between for access in accesses for source in sources)

    def _accesses_between(self, first: int, last: int) -> Iterator[Access]:
        for position in range(first + 1, last):
            if position not in self.removed:
                yield from self.inputs[position]
                yield from self.outputs[position]


def _map_addresses(addresses: Ints, before: FeatureMap, after: Ints) -> Ints | None:
    """Return the new address of each element, or None if a map does not contain it.

    Args:
        after: New address of each element of ``before``, in the order of its box.
    """
    places = before.addresses()
    low = int(places.min())
    table = np.full(int(places.max()) - low + 1, -1, np.int64)
    table[(places - low).ravel()] = np.ascontiguousarray(after).ravel()
    offsets = addresses - low
    if offsets.min() < 0 or offsets.max() >= len(table):
        return None
    mapped: Ints = table[offsets]
    return None if mapped.min() < 0 else mapped


def _with_addresses(op: Op, fm: FeatureMap, addresses: Ints, place: FeatureMap) -> dict[str, int] | None:
    """Return the registers with which the elements of a map have these addresses, or None if no layout has them."""
    if len(fm.tiles) != 1 or fm.dtype.itemsize != place.dtype.itemsize:
        return None
    for bricks in (fm.bricks, not fm.bricks):
        if bricks and fm.name == "OFM" and fm.depth % BRICK and not place.bricks:
            continue  # the rest of the last brick may contain other data
        layout = _fit(addresses, fm.dtype.itemsize, bricks)
        if layout is not None:
            base, (sy, sx, sc) = layout
            precision = op.registers[f"{fm.name}_PRECISION"] & ~_FORMAT | (_FORMAT if bricks else 0)
            registers = {"BASE0": base, "STRIDE_Y": sy, "STRIDE_X": sx, "STRIDE_C": sc, "PRECISION": precision}
            return {f"{fm.name}_{name}": raw for name, raw in {**registers, "REGION": place.region}.items()}
    return None


def _fit(addresses: Ints, size: int, bricks: bool) -> tuple[int, tuple[int, int, int]] | None:
    """Return the base and the strides of a layout with these addresses [H, W, C], or None."""
    height, width, depth = addresses.shape
    base = int(addresses[0, 0, 0])
    sx = int(addresses[0, 1, 0]) - base if width > 1 else (BRICK if bricks else depth) * size
    sy = int(addresses[1, 0, 0]) - base if height > 1 else sx * width
    sc = (int(addresses[0, 0, BRICK]) - base if depth > BRICK else sx * width) if bricks else size
    if min(sy, sx, sc) <= 0 or (bricks and any(n % BRICK for n in (base, sy, sx, sc))):
        return None
    if bricks and width > 1 and sx % (BRICK * size):
        return None
    channels = np.arange(depth)
    steps = channels // BRICK * sc + channels % BRICK * size if bricks else channels * size
    rows, columns = np.arange(height)[:, None, None], np.arange(width)[:, None]
    return (base, (sy, sx, sc)) if np.array_equal(addresses, base + rows * sy + columns * sx + steps) else None
