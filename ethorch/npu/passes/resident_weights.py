"""Copy weights read repeatedly, such as those of a recurrent network, to fast memory once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ethorch.npu.cycles import estimate
from ethorch.npu.cycles.compute import compute
from ethorch.npu.cycles.memories import CONSTANTS
from ethorch.npu.cycles.traffic import copy_cycles
from ethorch.npu.ir import Op, Stream
from ethorch.npu.ir.stream import group_chains
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.placement import round_up
from ethorch.npu.passes.weight_transfers import Weights, find_streams

#: Address in the constants and bytes of weights.
Range = tuple[int, int]
#: Most ranges to try, and most operations that all trials rate.
_MOST_TRIALS, _WORK = 16, 16_000
#: Most later starts of the copies to try.
_MOST_DELAYS = 4
#: Buffers for scales. A kernel reads one of them while the next kernel's scales are transferred to the other.
_SCALE_BUFFERS = 2


def run(stream: Stream, context: Context) -> Stream | None:
    """Return a stream with one copy of each repeatedly read weight, or None if that does not save cycles."""
    region = context.find_fast_region(stream)
    if region is None or not context.resident_bytes:
        return None
    users: dict[Range, list[Weights]] = {}
    for each in find_streams(stream, [rated.operator for rated in context.rate_operators(stream)], region):
        users.setdefault((each.low, each.size_bytes), []).append(each)
    repeated = {place: weights for place, weights in users.items() if len(weights) > 1 and place[1] <= context.resident_bytes}
    gains = _bound_gains(repeated, stream, context, region)
    best, least, chosen = stream, context.rate(stream), list[Range]()
    trials = max(min(_MOST_TRIALS, _WORK // len(stream.ops)), 1)
    for place in sorted(gains, key=lambda place: (-gains[place] / place[1], place))[:trials]:
        ranges = sorted([*chosen, place])
        if any(low + size > following for (low, size), (following, _) in pairwise(ranges)):
            continue
        scales = _find_scales(users, ranges)
        for transferred in ({}, scales) if scales else ({},):
            changed = _copy(stream, region, {place: users[place] for place in ranges}, transferred)
            grown = changed.image.sizes[region] - round_up(stream.image.sizes[region])
            if grown > context.resident_bytes:
                continue
            cycles = estimate(changed, context.regions, context.effects).cycles
            if cycles < least:
                best, least, chosen = changed, cycles, ranges
    if not chosen:
        return None
    readers = {stream.ops[position].key for place in chosen for each in users[place] for position in each.readers}
    return min([best, *_delay(best, len(chosen), readers)], key=context.rate)


def _delay(stream: Stream, count: int, readers: Collection[int]) -> Iterator[Stream]:
    """Yield streams in which transfers that precede the readers run before the copies, the first ``count`` operations."""
    copies, rest = stream.ops[:count], stream.ops[count:]
    position, places = 0, list[int]()
    for group in group_chains(rest):
        if any(op.key in readers for op in group):
            break
        position += len(group)
        if group[0].is_dma:
            places.append(position)
    for place in places[:_MOST_DELAYS]:
        yield replace(stream, ops=[*rest[:place], *copies, *rest[place:]])


def _bound_gains(users: Mapping[Range, Sequence[Weights]], stream: Stream, context: Context, region: int) -> dict[Range, int]:
    """Return the positive upper bounds on the cycles saved by copying each range."""
    constants, fast = context.regions[CONSTANTS], context.regions[region]
    rated, results = context.rate_operators(stream), context.estimate(stream).operators
    savings = dict[int, int]()
    for number in {each.operator for weights in users.values() for each in weights}:
        head, *rest = rated[number].operator.works
        computing = compute((replace(head, weights=fast, scales=fast), *rest)).cycles
        others = (cycles for name, cycles in results[number].access_cycles.items() if name != constants.name)
        savings[number] = results[number].cycles - results[number].effects - max([computing, *others])
    gains = {
        place: sum(savings[each.operator] for each in weights) - copy_cycles(stream.npu, constants, fast, place[1])
        for place, weights in users.items()
    }
    return {place: gain for place, gain in gains.items() if gain > 0}


def _find_scales(users: Mapping[Range, Sequence[Weights]], ranges: Sequence[Range]) -> dict[int, Weights]:
    """Return the constant scales that only one reader of ``ranges`` uses, by the position of the reader."""
    readers = {position for place in ranges for each in users[place] for position in each.readers}
    return {
        each.readers[0]: each
        for place, weights in users.items()
        for each in weights
        if place not in ranges and len(weights) == 1 and each.transfer is None and readers.issuperset(each.readers)
    }


def _copy(stream: Stream, region: int, users: Mapping[Range, Sequence[Weights]], scales: Mapping[int, Weights]) -> Stream:
    """Copy ranges at the start of the stream, and the ``scales`` of their readers before each reader."""
    ops, address, key = list(stream.ops), round_up(stream.image.sizes[region]), stream.new_key()
    copies: list[Op] = []
    replaced: set[int | None] = set()
    for (_, size), weights in users.items():
        copies.append(weights[0].transfer_part(stream, region, address, 0, size, key))
        for each in weights:
            replaced.add(each.transfer)
            for position in each.readers:
                ops[position] = each.relocate(ops[position], region, address)
        address, key = address + size, key - 1
    most = max((each.size_bytes for each in scales.values()), default=0)
    before: dict[int, Op] = {}
    for number, (position, each) in enumerate(sorted(scales.items())):
        target = address + number % _SCALE_BUFFERS * most
        before[position] = each.transfer_part(stream, region, target, 0, each.size_bytes, key)
        ops[position] = each.relocate(ops[position], region, target)
        key -= 1
    kept, position = list[Op](), 0
    for group in group_chains(stream.ops):  # a transfer precedes the chain of its reader
        positions = range(position, position + len(group))
        kept += [before[n] for n in positions if n in before]
        kept += [ops[n] for n in positions if n not in replaced]
        position += len(group)
    sizes = {**stream.image.sizes, region: address + min(len(scales), _SCALE_BUFFERS) * most}
    return replace(stream, ops=[*copies, *kept], image=replace(stream.image, sizes=sizes))
