"""Reallocate buffers according to their exact lifetimes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ethorch.npu.ir import Stream
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.lifetimes import Lifetimes, find_lifetimes
from ethorch.npu.passes.packing import Packing, pack
from ethorch.npu.passes.placement import move_segments, round_up
from ethorch.npu.passes.segments import ALIGNMENT, Permit


@dataclass(frozen=True)
class Allocation:
    """A stream with reallocated buffers."""

    stream: Stream
    bounds: Mapping[int, int]  # minimum size by region for this order of operations


def run(stream: Stream, context: Context) -> Stream | None:
    """Return the stream with smaller regions and no additional cycles, or None if that is impossible."""
    rate = context.rate(stream)
    moved = allocate(stream).stream
    if count_bytes(moved) < count_bytes(stream) and context.rate(moved) > rate:
        # The cycle model recognizes stripes of one operator by the distances of their maps.
        operators = [each.operator.positions for each in context.rate_operators(stream)]
        moved = allocate(stream, operators=[positions for positions in operators if len(positions) > 1]).stream
    return moved if count_bytes(moved) < count_bytes(stream) and context.rate(moved) <= rate else None


def count_bytes(stream: Stream) -> int:
    return sum(stream.image.sizes.values())


def allocate(stream: Stream, *, divide: bool = False, operators: Iterable[Sequence[int]] = ()) -> Allocation:
    """Reallocate the buffers of a stream to make its regions smaller. See ``find_lifetimes`` for the arguments.

    Raises:
        MachineFault: An operation has invalid registers.
    """
    image = stream.image
    sizes = image.allocated
    lifetimes = find_lifetimes(stream.ops, sizes, image.inputs, image.outputs, divide=divide, operators=operators)
    moves, packings = [0] * len(lifetimes.segments), {}
    for region in sizes:
        numbers = [n for n, segment in enumerate(lifetimes.segments) if segment.region == region]
        if numbers:
            packings[region] = packing = _pack_region(lifetimes, numbers)
            for n, move in zip(numbers, packing.moves, strict=True):
                moves[n] = move
    after = {region: round_up(packing.size_bytes) for region, packing in packings.items()}
    bounds = {region: packing.bound for region, packing in packings.items()}
    return Allocation(move_segments(stream, lifetimes, moves, after), bounds)


def _pack_region(lifetimes: Lifetimes, numbers: Sequence[int]) -> Packing:
    index = {n: at for at, n in enumerate(numbers)}
    permits = [
        Permit(index[p.first], index[p.second], p.time, p.offset)
        for p in lifetimes.permits
        if p.first in index and p.second in index and p.offset % ALIGNMENT == 0
    ]
    return pack([lifetimes.segments[n] for n in numbers], permits)
