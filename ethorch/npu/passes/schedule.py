"""The order of weight transfers among operators."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ethorch.npu.cycles.memories import CONSTANTS
from ethorch.npu.cycles.model import RatedOperator, rate_contention, time_operators
from ethorch.npu.cycles.operators import Transfer
from ethorch.npu.cycles.traffic import copy_cycles
from ethorch.npu.ir import Op, Stream
from ethorch.npu.ir.encode import MOST_KERNELS
from ethorch.npu.ir.stream import group_chains
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.lifetimes import find_overlaps
from ethorch.npu.passes.occupancy import GRANULE, Occupancy
from ethorch.npu.passes.weight_transfers import Weights

#: Smallest part of a transfer, in bytes.
_LEAST_PART = 1024


@dataclass(frozen=True)
class Part:
    """The transfer of one part of an operator's weights."""

    gap: int  # number of the operator before which it is issued
    offset: int  # first byte of the weights
    size_bytes: int


@dataclass(frozen=True)
class Placement:
    """The transfers of an operator's weights, and the weights' address in fast memory."""

    parts: tuple[Part, ...]
    address: int


class Schedule:
    """The positions of weight transfers in the sequence of operators.

    Attributes:
        staged: For each unit of ``weights`` that kernels read from constants, an operator variant that transfers it first.
        placements: ``Placement`` objects, keyed by index into ``weights``.
        cycles: Total cycles without and with contention between transfers and kernels.
        exposed: Cycles of each operator that earlier transfers can save.
    """

    def __init__(
        self,
        stream: Stream,
        context: Context,
        region: int,
        rated: Sequence[RatedOperator],
        staged: Mapping[int, RatedOperator],
        weights: Sequence[Weights],
    ) -> None:
        self.stream, self.context, self.region = stream, context, region
        self.unchanged, self.staged, self.weights = rated, staged, weights
        self.work = 0  # ratings of operators
        self._contention = rate_contention(stream.npu, context.regions)
        self._numbers: dict[tuple[int, Part], int] = {}  # positions of new transfers, after those of the stream
        self._units: dict[int, list[int]] = {}  # by operator
        for unit, each in enumerate(weights):
            self._units.setdefault(each.operator, []).append(unit)
        self._computing = [each.operator.computation.cycles for each in rated]  # least of all variants
        for unit, variant in staged.items():
            number = weights[unit].operator
            self._computing[number] = min(self._computing[number], variant.operator.computation.cycles)
        self._firsts = [each.operator.first for each in rated]
        self._starts, _ = find_overlaps(stream.ops)
        self._chains: list[range] = []  # by position: the chain of each operation
        for group in group_chains(stream.ops):
            self._chains += [range(len(self._chains), len(self._chains) + len(group))] * len(group)
        self.occupancy = Occupancy(stream.ops, region, context.limit(stream, region), stream.image)
        cycles, (contended, reads) = self._list_cycles(rated, {}, False)[0], self._list_cycles(rated, {}, True)
        self._start({}, rated, {}, cycles, contended, reads)

    def _start(
        self,
        placements: dict[int, Placement],
        rated: Sequence[RatedOperator],
        ranks: Mapping[int, float],
        cycles: Sequence[int],
        contended: Sequence[int],
        reads: Sequence[int],
    ) -> None:
        self.placements, self._rated, self._ranks = placements, rated, ranks
        self.cycles = sum(cycles), sum(contended)
        self.exposed = [time - computing for time, computing in zip(cycles, self._computing, strict=True)]
        slacks = [each.operator.slack_cycles(self.context.regions) for each in rated]
        # An operator that has the bus to itself leaves no cycles beyond its slack.
        self._slacks = list(contended if self._contention == 1 else map(min, slacks, contended))
        self._contended, self._reads = contended, reads
        self._loads = self._list_loads(reads)
        self._idle: dict[int, list[int]] = {}
        self._tried: set[tuple[int, Placement]] = set()

    # --- cycles -------------------------------------------------------------------------------------------------------

    def _list_cycles(
        self, rated: Sequence[RatedOperator], ranks: Mapping[int, float], contention: bool
    ) -> tuple[list[int], list[int]]:
        """Return each operator's cycles, and the cycles in which its accesses to the constants' memory delay transfers."""
        self.work += len(rated)
        effects = replace(self.context.effects, contention=contention)
        times = list(time_operators(self.stream.npu, self.context.regions, rated, effects, ranks))
        constants = self.context.regions[CONSTANTS].name
        cycles = [max([npu_cycles, *accesses.values()]) for npu_cycles, accesses in times]
        return cycles, [int(self._contention * accesses.get(constants, 0)) for _, accesses in times]

    def _replace_transfers(self, number: int, placements: Mapping[int, Placement]) -> RatedOperator:
        rated = self.unchanged[number]
        for unit in self._units[number]:
            if unit not in placements:
                continue
            replaced = self.weights[unit].transfer
            parts = [Transfer(self._number(unit, part), part.size_bytes, CONSTANTS, self.region) for part in placements[unit].parts]
            base = self.staged[unit] if replaced is None else rated
            transfers = parts if replaced is None else []
            for transfer in () if replaced is None else base.operator.weights:
                transfers += parts if replaced == transfer.position else [transfer]
            rated = replace(base, operator=base.operator.with_weights(transfers, rated.operator.positions))
        return rated

    def _number(self, unit: int, part: Part) -> int:
        return self._numbers.setdefault((unit, part), len(self.stream.ops) + len(self._numbers))

    def _rank_transfers(self, placements: Mapping[int, Placement]) -> dict[int, float]:
        return {
            self._number(*entry): first - 1 + count / (len(entries) + 1)
            for first, entries in self._list_transfers(placements).items()
            for count, entry in enumerate(entries, 1)
        }

    def _list_transfers(self, placements: Mapping[int, Placement]) -> dict[int, list[tuple[int, Part]]]:
        # (unit, part) by the position that they precede
        entries: dict[int, list[tuple[int, Part]]] = {}
        for unit in sorted(placements):
            for part in placements[unit].parts:
                entries.setdefault(self.unchanged[part.gap].operator.first, []).append((unit, part))
        return entries

    # --- placements ---------------------------------------------------------------------------------------------------

    def raise_limit(self, limit: int) -> None:
        """Change the maximum size of the region, in bytes."""
        self.occupancy.limit = limit // GRANULE
        self._tried.clear()

    def place(self, unit: int, ahead: int) -> bool:
        """Transfer a unit of weights up to ``ahead`` operators early. Return False if that is impossible or saves no cycles."""
        placement = self._plan(unit, ahead)
        if placement is None or (unit, placement) in self._tried:
            return False
        self._tried.add((unit, placement))
        number = self.weights[unit].operator
        others = [other for other in self._units[number] if other != unit and other in self.staged]
        placements = {other: place for other, place in self.placements.items() if other not in others} | {unit: placement}
        ranks = self._rank_transfers(placements)
        rated = [*self._rated[:number], self._replace_transfers(number, placements), *self._rated[number + 1 :]]
        cycles, _ = self._list_cycles(rated, ranks, False)
        if sum(cycles) >= self.cycles[0]:
            return False
        contended, reads = self._list_cycles(rated, ranks, True)
        if sum(contended) > self.cycles[1]:
            return False
        for changed in (*others, unit):
            self._mark(changed, False)
        self._start(placements, rated, ranks, cycles, contended, reads)
        self._mark(unit, True)
        return True

    def _mark(self, unit: int, is_used: bool) -> None:
        weights, placement = self.weights[unit], self.placements.get(unit)
        if placement is not None:
            for part in placement.parts:
                start, low = self.unchanged[part.gap].operator.first, placement.address + part.offset
                self.occupancy.set(start, weights.readers[-1], low, low + part.size_bytes, is_used)
        elif weights.transfer is not None:
            first, last = self._chains[self._starts[weights.transfer]][0], self._chains[weights.readers[-1]][-1]
            self.occupancy.set(first, last, weights.address, weights.address + weights.size_bytes, is_used)

    def _plan(self, unit: int, ahead: int) -> Placement | None:
        weights = self.weights[unit]
        idle = self._find_idle(unit)
        gaps = range(weights.operator, max(weights.operator - ahead, 0), -1)
        if weights.is_slice:  # the cycle model expects one transfer for each slice
            most = self._copy_cycles(weights.size_bytes)
            parts = [Part(gap, 0, weights.size_bytes) for gap in gaps if idle[gap] >= most][:1]
        else:
            parts = self._divide(weights, gaps, idle)
        if not parts:
            return None
        parts = [Part(part.gap, *place) for part in parts for place in weights.divide(part.offset, part.size_bytes)]
        self._mark(unit, False)
        spans = [
            (self._find_concurrent(self._firsts[part.gap]), weights.readers[-1], part.offset, part.size_bytes) for part in parts
        ]
        address = self.occupancy.find(spans, weights.size_bytes)
        self._mark(unit, True)
        return None if address is None else Placement(tuple(parts), address)

    def _divide(self, weights: Weights, gaps: Sequence[int], idle: Sequence[int]) -> list[Part]:
        parts: list[Part] = []
        left = weights.size_bytes
        for gap in gaps:
            size = min(left, self._bytes_in(idle[gap]) // GRANULE * GRANULE)
            if left and size >= min(left, _LEAST_PART):
                left -= size
                parts.insert(0, Part(gap, left, size))
        if not left:
            return parts
        needed = self._copy_cycles(weights.size_bytes)
        for gap, cycles in zip(gaps, accumulate(idle[gap] for gap in gaps), strict=True):
            if cycles >= needed:  # a transfer during several operators
                return [Part(gap, 0, weights.size_bytes)]
        parts = [replace(part, offset=part.offset - left) for part in parts]
        return [*parts, Part(weights.operator, weights.size_bytes - left, left)]

    def _find_idle(self, unit: int) -> list[int]:
        """Return the cycles for additional transfers before each operator, ignoring transfers of ``unit``."""
        # As in Vela's formulas, a transfer overlaps with the computing of the previous operator, but not with its waits for memory.
        if unit in self._idle:
            return self._idle[unit]
        loads, number = list(self._loads), self.weights[unit].operator
        placement, transfer = self.placements.get(unit), self.weights[unit].transfer
        if self._rated[number].operator.reads_constants(self.context.regions):
            self._add_reads(loads, number, -self._reads[number])
        if placement is not None:
            for part in placement.parts:
                loads[part.gap] -= self._copy_cycles(part.size_bytes)
        elif transfer is not None:
            loads[self._find_gap(transfer)] -= self._copy_cycles(self.weights[unit].size_bytes)
        idle, backlog = [], 0
        for load, before, time, slack in zip(loads, [0, *self._slacks[:-1]], self._contended, self._slacks, strict=True):
            rest = before + time - slack - load - backlog
            idle.append(rest if rest > 0 else 0)
            backlog = -rest if rest < 0 else 0
        if number:
            idle[number] = min(idle[number], self._slacks[number - 1])
        self._idle[unit] = idle
        return idle

    def _list_loads(self, reads: Sequence[int]) -> list[int]:
        """Return the cycles in which transfers before each operator, or concurrent operators, read constants."""
        loads = [0] * len(self._rated)
        for number, rated in enumerate(self._rated):
            operator = rated.operator
            if operator.reads_constants(self.context.regions):
                self._add_reads(loads, number, reads[number])
            for transfer in () if operator.is_shared else operator.weights:
                loads[self._find_gap(transfer.position)] += self._copy_cycles(transfer.size_bytes)
        return loads

    def _add_reads(self, loads: list[int], number: int, cycles: int) -> None:
        """Add cycles in which an operator reads constants to the transfers before it and before the next operator."""
        later = cycles * self._slacks[number] // max(self._contended[number], 1)
        loads[number] += cycles - later
        loads[min(number + 1, len(loads) - 1)] += later

    def _find_gap(self, position: int) -> int:
        """Return the number of the operator before which a transfer is issued."""
        return min(bisect_left(self._firsts, self._ranks.get(position, position)), len(self._firsts) - 1)

    def _copy_cycles(self, size_bytes: int) -> int:
        regions = self.context.regions
        return copy_cycles(self.stream.npu, regions[CONSTANTS], regions[self.region], size_bytes)

    def _bytes_in(self, cycles: int) -> int:
        latency = self._copy_cycles(0)
        rate = (self._copy_cycles(1 << 20) - latency) / (1 << 20)
        return max(int((cycles - latency) / rate), 0)

    def _find_concurrent(self, end: int) -> int:
        """Return the position of the first kernel or chain that may run when a transfer at position ``end`` starts."""
        left = MOST_KERNELS
        for position in range(end - 1, -1, -1):
            left -= not self.stream.ops[position].is_dma
            if not left:
                return self._chains[position][0]
        return 0

    # --- result -------------------------------------------------------------------------------------------------------

    def build(self) -> Stream:
        ops: list[Op] = list(self.stream.ops)
        sizes = dict(self.stream.image.sizes)
        for unit, placement in self.placements.items():
            weights = self.weights[unit]
            sizes[self.region] = max(sizes[self.region], placement.address + weights.size_bytes)
            for position in weights.readers:
                ops[position] = weights.relocate(ops[position], self.region, placement.address)
        key = self.stream.new_key()
        result: list[Op] = []
        replaced = {self.weights[unit].transfer for unit in self.placements}
        transfers = self._list_transfers(self.placements)
        for position, op in enumerate(ops):
            for unit, part in transfers.get(position, ()):
                weights, address = self.weights[unit], self.placements[unit].address
                result.append(weights.transfer_part(self.stream, self.region, address, part.offset, part.size_bytes, key))
                key -= 1
            if position not in replaced:
                result.append(op)
        return replace(self.stream, ops=result, image=replace(self.stream.image, sizes=sizes))
