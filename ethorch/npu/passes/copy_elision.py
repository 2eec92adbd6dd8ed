"""Remove kernels that only copy elements, by changing the strides with which other kernels read or write them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from ethorch.npu.arrays import Ints
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.ir import Op, Stream
from ethorch.npu.ir.image import Place
from ethorch.npu.ir.kernel_copies import KernelCopy, find_kernel_copy
from ethorch.npu.ir.stream import group_chains
from ethorch.npu.passes.accesses import Access, Block, CoarseLabels, find_labels, list_reads, list_writes
from ethorch.npu.passes.allocation import allocate
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.lifetimes import find_lifetimes
from ethorch.npu.passes.placement import Separation, move_segments, round_up, separate
from ethorch.npu.passes.strides import AddressTable, iterate_layouts
from ethorch.npu.runs import Run
from ethorch.npu.verify import check_operation, collect_forms
from ethorch.npu.verify.instruction import describe

_WORTH = 0.005  # minimum share of the cycles to save, because the extended lifetimes leave less memory to early transfers
_MOST_ELEMENTS = 1 << 22  # of a copied map
_MOST_COMPARISONS = 1 << 25  # of addresses in one attempt, in about a second
_MOST_ATTEMPTS = 8  # to remove a subset of the copies
_WORK = 4_000  # operations that all attempts may visit
_MOST_LEVELS = 6  # successive copies that one change replaces
_HOST = -1  # position of the host as a writer or reader


def run(stream: Stream, context: Context) -> Stream | None:
    """Return a stream that has fewer copies and cycles and fits the maximum sizes of its regions, or None."""
    copies = [position for position, op in enumerate(stream.ops) if find_kernel_copy(op)]
    if not copies:
        return None
    apart, best, accepted = separate(stream), stream, set[int]()
    forms = collect_forms(map(describe, apart.stream.ops))
    groups = [copies]
    for _ in range(min(_MOST_ATTEMPTS, _WORK // len(stream.ops))):
        if not groups:
            break
        group = groups.pop()
        elision = _Elision(apart, {*accepted, *group}, forms)
        elision.remove_copies()
        changed = _allocate(stream, apart, elision, context, context.rate(best)) if elision.removed else None
        if changed is not None:
            best, accepted = changed, elision.removed
        elif len(group) > 1:
            middle = len(group) // 2
            groups += [group[middle:], group[:middle]]
    return best if context.rate(best) <= (1 - _WORTH) * context.rate(stream) else None


def _allocate(stream: Stream, apart: Separation, elision: _Elision, context: Context, most: int) -> Stream | None:
    """Return the changed stream, or None if it needs ``most`` or more cycles or exceeds a region."""
    ops = [op for position, op in enumerate(elision.ops) if position not in elision.removed]
    changed = replace(apart.stream, ops=ops)
    image = changed.image
    lifetimes = find_lifetimes(ops, elision.regions, image.inputs, image.outputs, spaces=elision.spaces)
    spaces = sorted((*space, move) for space, move in zip(elision.spaces, apart.moves, strict=True))
    ends, moves = {region: round_up(size) for region, size in stream.image.sizes.items()}, []
    for segment in lifetimes.segments:
        region, low, high = segment.space
        if any(place[0] == region and low <= place[1] < high for place in elision.places):
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


@dataclass(frozen=True)
class _Read:
    """An access that reads bytes written by an operation."""

    position: int  # of the reader, or _HOST
    fm: FeatureMap | None = None  # None for a contiguous range
    is_only: bool = False  # a single operation wrote all of them


class _Elision:
    """The removal of copies from a stream with disjoint segments."""

    def __init__(self, apart: Separation, removable: Collection[int], forms: frozenset[str]):
        self.stream, self.removable, self.forms = apart.stream, removable, forms
        self.spaces = [segment.space for segment in apart.lifetimes.segments]
        self.regions = {region: size for region, size in self.stream.image.sizes.items() if size}
        self.ops = list(self.stream.ops)
        self.inputs = [list_reads(op, self.regions) for op in self.ops]
        self.outputs = [list_writes(op, self.regions) for op in self.ops]
        self.chains = [range(end - len(group), end) for group, end in _iterate_chains_with_ends(self.ops) for _ in group]
        self.places: set[tuple[int, int]] = set()  # region and address of maps with longer lifetimes
        self.removed: set[int] = set()
        self.comparisons = _MOST_COMPARISONS
        self.is_traced = False  # whether reads and writers are those of the current operations

    def remove_copies(self) -> None:
        count = -1
        while count < len(self.removed):
            count = len(self.removed)
            for remove in (self._redirect_readers, self._redirect_writers):
                if not self.is_traced:
                    self._start_round()
                for position, copy in list(self.copies.items()):
                    if position not in self.changed:
                        remove(position, copy)

    def _start_round(self) -> None:
        # Finds the readers and writers of each operation. Removes copies that no operation reads.
        self._trace()
        self.is_traced = True
        unread = [position for position in self.removable if position not in self.removed and not self.reads[position]]
        while unread:
            position = unread.pop()
            self.removed.add(position)
            for writer in self.writers.pop(position) - {_HOST}:
                self.reads[writer] = [user for user in self.reads[writer] if user.position != position]
                if writer in self.removable and not self.reads[writer]:
                    unread.append(writer)
        self.changed = set(self.removed)
        self.copies = {}
        for position in sorted({*self.removable} - self.removed):
            copy = find_kernel_copy(self.ops[position])
            if copy is not None and copy.target.elements <= _MOST_ELEMENTS:
                self.copies[position] = copy
        self.tables: dict[int, AddressTable] = {}  # from the target of a copy to its source
        self.overwritten: dict[int, int] = {}

    def _trace(self) -> None:
        labels = CoarseLabels(self.spaces)
        self.reads: dict[int, list[_Read]] = {position: [] for position in range(len(self.ops))}  # by position of the writer
        self.writers: dict[int, set[int]] = {position: set() for position in self.reads}  # of the bytes that an operation reads

        def read(position: int, region: int, blocks: Iterable[Block], fm: FeatureMap | None = None) -> None:
            origins = {label - 1 for label in find_labels(labels.views(region, list(blocks)))}
            if position != _HOST:
                self.writers[position] |= origins
            for origin in origins - {_HOST}:
                self.reads[origin].append(_Read(position, fm, len(origins) == 1))

        for position in self._iterate(range(len(self.ops))):
            for access in self.inputs[position]:
                read(position, access.region, access.blocks, access.fm)
            for access in self.outputs[position]:
                if access.is_partial:
                    read(position, access.region, access.blocks)
                for view in labels.views(access.region, access.blocks):
                    view[...] = position + 1
        for region, low, high in self.stream.image.outputs:
            if region in self.regions and low < high:
                read(_HOST, region, [Block.of_span(low, high)])

    def _iterate(self, positions: Iterable[int]) -> Iterator[int]:
        return (position for position in positions if position not in self.removed)

    def _redirect_readers(self, position: int, copy: KernelCopy) -> None:
        # Changes the readers of a copy to read its source, or the source of an earlier copy.
        changes: list[tuple[Op, int, str]] = []
        for user in self.reads[position]:
            if user.fm is None or not user.is_only or user.position in self.changed:
                return
            changed = self._redirect_reader(position, copy, user.position, user.fm)
            if changed is None or any(user.position == other for _, other, _ in changes):
                return
            changes.append((changed, user.position, user.fm.name))
        self._apply(position, changes)

    def _redirect_reader(self, position: int, copy: KernelCopy, reader: int, fm: FeatureMap) -> Op | None:
        addresses = fm.addresses()
        for _ in range(_MOST_LEVELS):
            self.comparisons -= fm.elements + copy.target.elements * (position not in self.tables)
            if copy.source.region not in self.regions or copy.source.dtype.itemsize != fm.dtype.itemsize or self.comparisons < 0:
                return None
            if position not in self.tables:
                self.tables[position] = AddressTable(copy.target, copy.find_sources())
            found = self.tables[position].find(addresses)
            if found is None or self._find_overwriting(position) < self.chains[reader].stop:
                return None
            addresses = found
            changed = self._change(reader, fm, addresses, copy.source)
            if changed is not None or len(self.writers[position]) != 1:
                return changed
            (position,) = self.writers[position]
            if position in self.changed or position not in self.copies:
                return None
            copy = self.copies[position]
        return None

    def _redirect_writers(self, position: int, copy: KernelCopy) -> None:
        # Changes the writers of a copy's source to write its target.
        writers = self.writers[position]
        if copy.target.region not in self.regions or not writers or _HOST in writers or writers & self.changed:
            return
        table: AddressTable | None = None
        changes: list[tuple[Op, int, str]] = []
        for writer in writers:
            fms = [fm for fm in self.ops[writer].prepared.writes if isinstance(fm, FeatureMap) and fm.in_memory]
            if len(fms) != 1 or any(user.position != position for user in self.reads[writer]):
                return
            (fm,) = fms
            self.comparisons -= fm.elements + copy.source.elements * (table is None)
            if self.comparisons < 0 or fm.dtype.itemsize != copy.source.dtype.itemsize or self._is_used(writer, position):
                return
            table = table or AddressTable(copy.source, copy.find_targets())
            addresses = table.find(fm.addresses())
            changed = None if addresses is None else self._change(writer, fm, addresses, copy.target)
            if changed is None:
                return
            changes.append((changed, writer, "OFM"))
        self._apply(position, changes)

    def _change(self, position: int, fm: FeatureMap, addresses: Ints, place: FeatureMap) -> Op | None:
        op = self.ops[position]
        for registers in iterate_layouts(op, fm, addresses, place):
            changed = replace(op.copy(**registers), before=None)
            if not any(check_operation(describe(changed), position, self.stream.image, self.forms)):
                return changed
        return None

    def _apply(self, position: int, changes: Iterable[tuple[Op, int, str]]) -> None:
        """Remove a copy. ``changes`` contains each changed operation, its position and its changed feature map."""
        for op, other, name in changes:
            self.places.add((op.registers[f"{name}_REGION"], op.registers[f"{name}_BASE0"]))
            self.ops[other] = op
            self.inputs[other], self.outputs[other] = list_reads(op, self.regions), list_writes(op, self.regions)
            self.changed.add(other)
        self.removed.add(position)
        self.changed.add(position)
        self.is_traced = False

    def _find_overwriting(self, position: int) -> int:
        """Return the position of the first later operation that overwrites bytes of the values that a copy reads."""
        if position not in self.overwritten:
            values = [access for access in self.inputs[position] if access.fm is not None]
            values += [access for writer in self.writers[position] - {_HOST} for access in self.outputs[writer]]
            if _HOST in self.writers[position]:
                values += [_access_place(place) for place in self.stream.image.inputs]
            later = self._iterate(range(position + 1, len(self.ops)))
            over = (n for n in later if any(access.overlaps(value) for access in self.outputs[n] for value in values))
            self.overwritten[position] = next(over, len(self.ops))
        return self.overwritten[position]

    def _is_used(self, writer: int, position: int) -> bool:
        """Return True if a copy's target overlaps values that the writer's chain reads, or that are used before the copy."""
        (target,) = self.outputs[position]
        chain = self.chains[writer]
        accesses: list[Access] = [access for n in chain for access in self.inputs[n]]
        for n in self._iterate(range(chain.stop, position)):
            accesses += self.inputs[n] + self.outputs[n]
            for other in self.writers[n] - {_HOST}:
                accesses += self.outputs[other]
        return any(access.overlaps(target) for access in accesses)


def _access_place(place: Place) -> Access:
    region, low, high = place
    return Access(region, (Run("", region, low, low, high),))


def _iterate_chains_with_ends(ops: list[Op]) -> Iterator[tuple[list[Op], int]]:
    end = 0
    for group in group_chains(ops):
        end += len(group)
        yield group, end
