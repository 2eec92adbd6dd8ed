"""Move feature maps to faster memory, or copy them there before operators read them repeatedly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ethorch.npu.ir import Stream
from ethorch.npu.ir.image import Place
from ethorch.npu.ir.stream import create_transfer, group_chains
from ethorch.npu.passes import allocation, early_transfers
from ethorch.npu.passes.context import GROWTH_WORTH, Context
from ethorch.npu.passes.lifetimes import find_lifetimes
from ethorch.npu.passes.placement import round_up
from ethorch.npu.passes.segments import ALIGNMENT

_WORTHS = 2e-3, 2e-2  # minimum shares of the cycles that a change saves, to try in turn
_MOST_TRIALS, _WORK = 24, 24_000  # changes to try, and operations that all trials allocate
_MOST_EVICTIONS = 4  # of maps in fast memory, to try for one change
_REGION_BITS = 7  # of a region register; the others contain the mode of a transfer
_MAP = re.compile(r"(IFM2?|OFM)_BASE\d")

#: Position and address register of an access.
Key = tuple[int, str]


@dataclass(frozen=True)
class _Change:
    """Accesses to redirect from a slow region to a fast one."""

    segment: int
    accesses: tuple[Key, ...]
    is_copied: bool  # the bytes are copied before the first access; otherwise, the segment moves


def run(stream: Stream, context: Context) -> Stream | None:
    """Return a stream with more maps in the fastest memory and fewer cycles, or None."""
    fast = context.find_fast_region(stream)
    if fast is None:
        return None
    rate = context.regions[fast].bytes_per_cycle
    slow = frozenset(region for region in stream.image.allocated if context.regions[region].bytes_per_cycle < rate)
    if not slow:
        return None
    found = [changed for worth in _WORTHS if (changed := _Search(context, fast, slow, worth).run(stream)) is not None]
    if not found:
        return None
    best = min([stream, *found], key=lambda each: _rate_with_transfers(each, context))
    return None if best is stream else best


def _rate_with_transfers(stream: Stream, context: Context) -> int:
    """Return the cycles after ``early-transfers``, which needs the same memory."""
    if context.passes is not None and "early-transfers" not in context.passes:
        return context.rate(stream)
    return context.rate(early_transfers.run(stream, context) or stream)


@dataclass(frozen=True)
class _Search:
    """A search for changes that each save at least ``worth``, a share of the stream's cycles."""

    context: Context
    fast: int
    slow: frozenset[int]
    worth: float

    def run(self, stream: Stream) -> Stream | None:
        best, tried, left = stream, set[tuple[tuple[int, str], ...]](), min(_MOST_TRIALS, _WORK // len(stream.ops))
        while left > 0:
            changed = None
            for change, keys in self._list_changes(best):
                if keys in tried:
                    continue
                tried.add(keys)
                left -= 1
                changed = self._apply(best, change)
                if changed is not None or left <= 0:
                    break
            if changed is None:
                break
            best = changed
        return None if best is stream else best

    def _list_changes(self, stream: Stream) -> Iterator[tuple[_Change, tuple[tuple[int, str], ...]]]:
        """Yield changes, first those that can save the most cycles, and keys that identify them in changed streams."""
        image = stream.image
        lifetimes = find_lifetimes(stream.ops, image.allocated, image.inputs, image.outputs)
        gains: dict[int, dict[int, int]] = {}  # by segment and position
        by_segment: dict[int, list[Key]] = {}
        for key, segment in lifetimes.accesses.items():
            if lifetimes.segments[segment].region in self.slow:
                by_segment.setdefault(segment, []).append(key)
        waits = self._find_waits(stream)
        for segment, keys in by_segment.items():
            for position, _ in keys:
                if waits.get(position):
                    gains.setdefault(segment, {})[position] = waits[position]
        least = self.worth * self.context.rate(stream)
        changes: list[tuple[int, _Change]] = []
        for segment, by_position in gains.items():
            keys = sorted(by_segment[segment])
            if not _are_maps(keys):
                continue
            if segment not in (*lifetimes.inputs, *lifetimes.outputs):
                changes.append((sum(by_position.values()), _Change(segment, tuple(keys), False)))
            changes += _list_copies(stream, segment, keys, by_position)
        for gain, change in sorted(changes, key=lambda pair: (-pair[0], pair[1].is_copied, pair[1].accesses)):
            if gain >= least:
                yield change, tuple((stream.ops[position].key, name) for position, name in change.accesses)

    def _find_waits(self, stream: Stream) -> dict[int, int]:
        """Return the cycles that each operator's kernels wait for memories of slow regions, divided among its kernels."""
        names = {self.context.regions[region].name for region in self.slow}
        waits: dict[int, int] = {}
        for rated, timed in zip(self.context.rate_operators(stream), self.context.estimate(stream).operators, strict=True):
            others = (cycles for name, cycles in timed.access_cycles.items() if name not in names)
            wait = timed.cycles - timed.effects - max([timed.npu_cycles, *others])
            kernels = [position for position in rated.operator.positions if not stream.ops[position].is_dma]
            if wait > 0 and kernels:
                waits |= dict.fromkeys(kernels, wait // len(kernels))
        return waits

    def _apply(self, stream: Stream, change: _Change) -> Stream | None:
        """Return the changed stream, or None if it is not faster or the fast region becomes too large."""
        place = _find_place(stream, change.accesses)
        if place[2] - place[1] > self.context.grown_limit(stream, self.fast):
            return None
        address = round_up(stream.image.sizes[self.fast])
        changed = _redirect(stream, change.accesses, place, self.fast)
        if change.is_copied:
            changed = _insert_copy(changed, min(position for position, _ in change.accesses), place, self.fast, address)
        if self.context.rate(changed) > (1 - self.worth) * self.context.rate(stream):
            return None
        after, missing = self._allocate(stream, changed)
        if after is not None or missing <= 0:
            return after
        for keys in _list_evictions(changed, self.fast, address, missing):
            evicted = _redirect(changed, keys, _find_place(changed, keys), place[0])
            if self.context.rate(evicted) <= (1 - self.worth) * self.context.rate(stream):
                after, _ = self._allocate(stream, evicted)
                if after is not None:
                    return after
        return None

    def _allocate(self, stream: Stream, changed: Stream) -> tuple[Stream | None, int]:
        """Return the reallocated stream, or None if it is not worth it, and the bytes by which the fast region is too large."""
        after = allocation.allocate(changed).stream
        size, cycles = after.image.sizes[self.fast], self.context.rate(stream)
        worth = self.worth if size <= self.context.limit(stream, self.fast) else GROWTH_WORTH
        missing = size - self.context.grown_limit(stream, self.fast)
        others_fit = all(n <= self.context.limit(stream, region) for region, n in after.image.sizes.items() if region != self.fast)
        is_worth = missing <= 0 and others_fit and self.context.rate(after) <= (1 - worth) * cycles
        return (after if is_worth else None), missing


def _list_copies(stream: Stream, segment: int, keys: Sequence[Key], gains: Mapping[int, int]) -> Iterator[tuple[int, _Change]]:
    """Yield copies for all readers after the last write, and for each of these readers."""
    written = max((position for position, name in keys if name.startswith(("OFM", "DMA0_DST"))), default=-1)
    reads = [key for key in keys if key[0] > written and key[1].startswith("IFM")]
    positions = sorted({position for position, _ in reads})
    if len(positions) > 1:
        yield sum(gains.get(position, 0) for position in positions), _Change(segment, tuple(reads), True)
    for position in positions:
        if position in gains:
            yield gains[position], _Change(segment, tuple(key for key in reads if key[0] == position), True)


def _find_place(stream: Stream, keys: Sequence[Key]) -> Place:
    """Return the region and the address range of accesses, rounded to ALIGNMENT."""
    ops = stream.ops
    runs = [run for position, name in keys for run in (*ops[position].reads, *ops[position].writes) if run.register == name]
    return runs[0].region, min(run.low for run in runs) // ALIGNMENT * ALIGNMENT, round_up(max(run.high for run in runs))


def _redirect(stream: Stream, keys: Sequence[Key], place: Place, region: int) -> Stream:
    """Return the stream with accesses to ``place`` redirected to the end of ``region``."""
    _, low, high = place
    address, ops = round_up(stream.image.sizes.get(region, 0)), list(stream.ops)
    for position, name in keys:
        op, prefix = ops[position], name.partition("_BASE")[0]
        registers = {name: op.registers[name] - low + address}
        registers[f"{prefix}_REGION"] = op.registers[f"{prefix}_REGION"] & ~_REGION_BITS | region
        ops[position] = op.copy(**registers)
    return replace(stream, ops=ops, image=replace(stream.image, sizes={**stream.image.sizes, region: address + high - low}))


def _insert_copy(stream: Stream, position: int, place: Place, fast: int, address: int) -> Stream:
    """Insert a transfer from ``place`` to ``address`` in the fast region before the chain of the kernel at ``position``."""
    region, low, high = place
    registers = {"DMA0_SRC_REGION": region, "DMA0_DST_REGION": fast, "DMA0_LEN": high - low, "DMA0_SRC": low, "DMA0_DST": address}
    transfer, start = create_transfer(stream.npu, stream.new_key(), **registers), 0
    for group in group_chains(stream.ops):
        if start + len(group) > position:
            break
        start += len(group)
    return replace(stream, ops=[*stream.ops[:start], transfer, *stream.ops[start:]])


def _list_evictions(stream: Stream, fast: int, address: int, missing: int) -> list[tuple[Key, ...]]:
    """Return the accesses of maps live at the same time as the last segment, first those with the least traffic."""
    image = stream.image
    lifetimes = find_lifetimes(stream.ops, image.allocated, image.inputs, image.outputs)
    segments = lifetimes.segments
    times = [p for segment in segments if segment.region == fast and segment.low >= address for p in segment.pieces]
    keys: dict[int, list[Key]] = {}
    for key, number in lifetimes.accesses.items():
        keys.setdefault(number, []).append(key)
    hosts = {*lifetimes.inputs, *lifetimes.outputs}
    found = []
    for number, accesses in keys.items():
        segment = segments[number]
        is_live = any(p.start <= q.end and q.start <= p.end for p in segment.pieces for q in times)
        is_movable = segment.region == fast and segment.low < address and number not in hosts and _are_maps(accesses)
        if is_live and is_movable and segment.high - segment.low >= missing:
            found.append((len(accesses) * (segment.high - segment.low), tuple(sorted(accesses))))
    return [accesses for _, accesses in sorted(found)][:_MOST_EVICTIONS]


def _are_maps(keys: Iterable[Key]) -> bool:
    return all(_MAP.fullmatch(name) or name in ("DMA0_SRC", "DMA0_DST") for _, name in keys)
