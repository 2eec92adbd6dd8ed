"""Remove kernels that only copy elements, by changing the strides with which other kernels read or write them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from ethorch.npu.arrays import Ints
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.ir import Op, Stream
from ethorch.npu.ir.kernel_copies import KernelCopy, find_kernel_copy
from ethorch.npu.ir.stream import group_chains
from ethorch.npu.passes.accesses import Access, list_reads, list_writes
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.copy_graph import HOST, CopyGraph, reallocate
from ethorch.npu.passes.placement import Separation, separate
from ethorch.npu.passes.strides import AddressTable, iterate_layouts
from ethorch.npu.verify import check_operation, collect_forms
from ethorch.npu.verify.instruction import describe

_WORTH = 0.005  # minimum share of the cycles to save, because the extended lifetimes leave less memory to early transfers
_MOST_ATTEMPTS = 8  # to remove a subset of the copies
_WORK = 4_000  # operations that all attempts may visit


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
        changed = reallocate(stream, elision, context, context.rate(best)) if elision.removed else None
        if changed is not None:
            best, accepted = changed, elision.removed
        elif len(group) > 1:
            middle = len(group) // 2
            groups += [group[middle:], group[:middle]]
    return best if context.rate(best) <= (1 - _WORTH) * context.rate(stream) else None


class _Elision(CopyGraph):
    """The removal of copies from a stream with disjoint segments."""

    def __init__(self, apart: Separation, removable: Collection[int], forms: frozenset[str]):
        super().__init__(apart, removable)
        self.forms = forms
        self.chains = [range(end - len(group), end) for group, end in _iterate_chains_with_ends(self.ops) for _ in group]
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
        self.trace()
        self.is_traced = True
        unread = [position for position in self.removable if position not in self.removed and not self.reads[position]]
        while unread:
            position = unread.pop()
            self.removed.add(position)
            for writer in self.writers.pop(position) - {HOST}:
                self.reads[writer] = [user for user in self.reads[writer] if user.position != position]
                if writer in self.removable and not self.reads[writer]:
                    unread.append(writer)
        self.changed = set(self.removed)
        self.copies = {position: copy for position, copy in self.copies.items() if position not in self.removed}

    def _redirect_readers(self, position: int, _: KernelCopy) -> None:
        # Changes the readers of a copy to read its source, or the source of an earlier copy.
        changes: list[tuple[Op, int, str]] = []
        for user in self.reads[position]:
            if user.fm is None or not user.is_only or user.position in self.changed:
                return
            changed = self._redirect_reader(position, user.position, user.fm)
            if changed is None or any(user.position == other for _, other, _ in changes):
                return
            changes.append((changed, user.position, user.fm.name))
        self._apply(position, changes)

    def _redirect_reader(self, position: int, reader: int, fm: FeatureMap) -> Op | None:
        for _, source, addresses in self.iterate_sources(position, fm, self.chains[reader].stop, self.changed):
            changed = self._change(reader, fm, addresses, source)
            if changed is not None:
                return changed
        return None

    def _redirect_writers(self, position: int, copy: KernelCopy) -> None:
        # Changes the writers of a copy's source to write its target.
        writers = self.writers[position]
        if copy.target.region not in self.regions or not writers or HOST in writers or writers & self.changed:
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
            base = op.registers[f"{name}_BASE0"]
            self.places.add((op.registers[f"{name}_REGION"], base, base + 1))
            self.ops[other] = op
            self.inputs[other], self.outputs[other] = list_reads(op, self.regions), list_writes(op, self.regions)
            self.changed.add(other)
        self.removed.add(position)
        self.changed.add(position)
        self.is_traced = False

    def _is_used(self, writer: int, position: int) -> bool:
        """Return True if a copy's target overlaps inputs of the writer's chain, or values used between the chain and the copy."""
        (target,) = self.outputs[position]
        chain = self.chains[writer]
        accesses: list[Access] = [access for n in chain for access in self.inputs[n]]
        for n in self.iterate(range(chain.stop, position)):
            accesses += self.inputs[n] + self.outputs[n]
            for other in self.writers[n] - {HOST}:
                accesses += self.outputs[other]
        return any(access.overlaps(target) for access in accesses)


def _iterate_chains_with_ends(ops: list[Op]) -> Iterator[tuple[list[Op], int]]:
    end = 0
    for group in group_chains(ops):
        end += len(group)
        yield group, end
