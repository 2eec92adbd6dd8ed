"""Copy repeatedly read weights, such as those of a recurrent network, to fast memory once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ethorch.npu.cycles import OperatorCycles
from ethorch.npu.cycles.memories import CONSTANTS
from ethorch.npu.cycles.traffic import copy_cycles
from ethorch.npu.ir import Op, Stream
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.placement import round_up
from ethorch.npu.passes.weight_transfers import Weights, find_streams

#: Address in the constants and bytes of weights.
Range = tuple[int, int]


def run(stream: Stream, context: Context) -> Stream | None:
    """Return a stream that copies repeatedly read weights at its start, or None if that does not save cycles."""
    region = context.find_fast_region(stream)
    if region is None or not context.resident_bytes:
        return None
    users: dict[Range, list[Weights]] = {}
    for each in find_streams(stream, [rated.operator for rated in context.rate_operators(stream)], region):
        users.setdefault((each.low, each.size_bytes), []).append(each)
    chosen = _choose(users, stream, context, region)
    if not chosen:
        return None
    changed = _copy(stream, region, {place: users[place] for place in chosen})
    return changed if context.rate(changed) < context.rate(stream) else None


def _choose(users: Mapping[Range, Sequence[Weights]], stream: Stream, context: Context, region: int) -> list[Range]:
    # Prefers ranges that save the most cycles per byte. Returns disjoint ranges in order of address.
    operators, gains = context.estimate(stream).operators, dict[Range, int]()
    for place, weights in users.items():
        copy = copy_cycles(stream.npu, context.regions[CONSTANTS], context.regions[region], place[1])
        gains[place] = sum(min(_count_waits(operators[each.operator], context), copy) for each in weights) - copy
    chosen: list[Range] = []
    room = context.resident_bytes
    for low, size in sorted(gains, key=lambda place: (-gains[place] / place[1], place)):
        is_apart = all(low + size <= start or start + length <= low for start, length in chosen)
        if gains[low, size] > 0 and is_apart and size <= room:
            chosen.append((low, size))
            room -= size
    return sorted(chosen)


def _count_waits(operator: OperatorCycles, context: Context) -> int:
    constants = context.regions[CONSTANTS].name
    others = (cycles for name, cycles in operator.access_cycles.items() if name != constants)
    return operator.cycles - operator.effects - max([operator.computation.cycles, *others])


def _copy(stream: Stream, region: int, users: Mapping[Range, Sequence[Weights]]) -> Stream:
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
    kept = [op for position, op in enumerate(ops) if position not in replaced]
    return replace(stream, ops=[*copies, *kept], image=replace(stream.image, sizes={**stream.image.sizes, region: address}))
