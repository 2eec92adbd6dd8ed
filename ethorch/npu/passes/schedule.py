"""Order of transfers among operators."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

from ethorch.npu.cycles.memories import CONSTANTS
from ethorch.npu.cycles.model import RatedOperator, time_operators
from ethorch.npu.cycles.operators import Transfer
from ethorch.npu.cycles.traffic import copy_cycles
from ethorch.npu.ir import Op, Stream
from ethorch.npu.ir.encode import MOST_KERNELS
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.occupancy import GRANULE, Occupancy
from ethorch.npu.passes.weight_transfers import Weights

#: Smallest part of a transfer, in bytes.
_LEAST_PART = 1024


@dataclass(frozen=True)
class Part:
    """A transfer of a part of weights."""

    gap: int  # number of the operator before which it is issued
    offset: int  # first byte of the weights
    size_bytes: int


@dataclass(frozen=True)
class Placement:
    """Transfers of weights, and their address in the fast memory."""

    parts: tuple[Part, ...]
    address: int


#: Position of an operation of the stream, or (position in ``weights``, part) of a new transfer.
Entry = int | tuple[int, Part]


class Schedule:
    """The order of transfers among operators.

    Attributes:
        staged: Variants with transfers of operators that read constants.
        placements: Placements by position in ``weights``.
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
        self.unchanged, self.staged, self.weights = list(rated), staged, weights
        self.placements: dict[int, Placement] = {}
        self._tried: set[tuple[int, Placement]] = set()
        self._times: dict[bool, tuple[list[int], list[int]]] = {}
        self.occupancy = Occupancy(stream.ops, region, context.limit(stream, region), stream.image)
        self.cycles = self.rate({})

    def copy(self) -> Schedule:
        result = copy(self)
        result.placements, result._tried, result._times = dict(self.placements), set(), {}
        result.occupancy = self.occupancy.copy()
        return result

    # --- cycles -------------------------------------------------------------------------------------------------------

    def rate(self, placements: Mapping[int, Placement]) -> tuple[int, int]:
        """Return the cycles with Vela's formulas, and with contention."""
        first, second = (sum(self._list_cycles(placements, contention)[0]) for contention in (False, True))
        return first, second

    def exposed_cycles(self) -> list[int]:
        """Return each operator's cycles in which the NPU does not compute."""
        rated, _ = self._arrange(self.placements)
        cycles = self._list_cycles(self.placements, False)[0]
        return [time - rated_operator.operator.computation.cycles for time, rated_operator in zip(cycles, rated, strict=True)]

    def _list_cycles(self, placements: Mapping[int, Placement], contention: bool) -> tuple[list[int], list[int]]:
        """Return each operator's cycles, and those of accesses to constants."""
        is_current = placements is self.placements
        if is_current and contention in self._times:
            return self._times[contention]
        rated, ranks = self._arrange(placements)
        effects = replace(self.context.effects, contention=contention)
        times = list(time_operators(self.stream.npu, self.context.regions, rated, effects, ranks))
        constants = self.context.regions[CONSTANTS].name
        cycles = [max([npu_cycles, *accesses.values()]) for npu_cycles, accesses in times]
        result = cycles, [accesses.get(constants, 0) for _, accesses in times]
        if is_current:
            self._times[contention] = result
        return result

    def _arrange(self, placements: Mapping[int, Placement]) -> tuple[list[RatedOperator], dict[int, int]]:
        ranks: dict[int, int] = {}
        numbers: dict[Entry, int] = {}
        for rank, unit_or_position in enumerate(self._order(placements)):
            position = (
                unit_or_position
                if isinstance(unit_or_position, int)
                else numbers.setdefault(unit_or_position, len(self.stream.ops) + len(numbers))
            )
            ranks[position] = rank
        rated = list(self.unchanged)
        for unit, placement in placements.items():
            number, replaced = self.weights[unit].operator, self.weights[unit].transfer
            parts = [Transfer(numbers[unit, part], part.size_bytes, CONSTANTS, self.region) for part in placement.parts]
            base = self.staged[number] if replaced is None else rated[number]
            transfers: list[Transfer] = []
            for transfer in base.operator.weights:
                transfers += parts if replaced in (None, transfer.position) else [transfer]
            operator = base.operator.with_weights(transfers, rated[number].operator.positions)
            rated[number] = replace(base, operator=operator)
        return rated, ranks

    def _order(self, placements: Mapping[int, Placement]) -> list[Entry]:
        before: dict[int, list[Entry]] = {}
        for unit in sorted(placements):
            for part in placements[unit].parts:
                before.setdefault(self.unchanged[part.gap].operator.first, []).append((unit, part))
        replaced = {self.weights[unit].transfer for unit in placements}
        order: list[Entry] = []
        for position in range(len(self.stream.ops)):
            order += before.get(position, ())
            if position not in replaced:
                order.append(position)
        return order

    # --- placements ---------------------------------------------------------------------------------------------------

    def place(self, unit: int, ahead: int) -> bool:
        """Transfer weights up to ``ahead`` operators early. Return False if that saves no cycles."""
        placement = self._plan(unit, ahead)
        if placement is None or (unit, placement) in self._tried:
            return False
        self._tried.add((unit, placement))
        placements = {**self.placements, unit: placement}
        if sum(self._list_cycles(placements, False)[0]) >= self.cycles[0]:
            return False
        cycles = self.rate(placements)
        if cycles[1] > self.cycles[1]:
            return False
        self._mark(unit, False)
        self.placements, self.cycles, self._times, self._tried = placements, cycles, {}, set()
        self._mark(unit, True)
        return True

    def _mark(self, unit: int, is_used: bool) -> None:
        weights, placement = self.weights[unit], self.placements.get(unit)
        if placement is not None:
            for part in placement.parts:
                start, low = self.unchanged[part.gap].operator.first, placement.address + part.offset
                self.occupancy.set(start, weights.readers[-1], low, low + part.size_bytes, is_used)
        elif weights.transfer is not None:
            low = weights.address
            self.occupancy.set(weights.transfer, weights.readers[-1], low, low + weights.size_bytes, is_used)

    def _plan(self, unit: int, ahead: int) -> Placement | None:
        weights = self.weights[unit]
        idle = self._find_idle(unit)
        gaps = range(weights.operator, max(weights.operator - ahead, 0), -1)
        if weights.is_slice:  # the cycle model expects one transfer for each slice
            most = self._copy_cycles(weights.size_bytes)
            parts = [Part(gap, 0, weights.size_bytes) for gap in gaps if idle[gap - 1] >= most][:1]
        else:
            parts = self._divide(weights, [(gap, self._bytes_in(idle[gap - 1])) for gap in gaps])
        if not parts:
            return None
        self._mark(unit, False)
        spans = [(self._first_position(part.gap), weights.readers[-1], part.offset, part.size_bytes) for part in parts]
        address = self.occupancy.find(spans, weights.size_bytes)
        self._mark(unit, True)
        return None if address is None else Placement(tuple(parts), address)

    def _divide(self, weights: Weights, gaps: Iterable[tuple[int, int]]) -> list[Part]:
        parts: list[Part] = []
        left = weights.size_bytes
        for gap, most in gaps:
            size = min(left, most // GRANULE * GRANULE)
            if left and size >= min(left, _LEAST_PART):
                left -= size
                parts.insert(0, Part(gap, left, size))
        if left:
            parts = [replace(part, offset=part.offset - left) for part in parts]
            parts.append(Part(weights.operator, weights.size_bytes - left, left))
        return parts

    def _find_idle(self, unit: int) -> list[int]:
        weights, placement = self.weights[unit], self.placements.get(unit)
        rated, ranks = self._arrange(self.placements)
        cycles, reads = self._list_cycles(self.placements, True)
        firsts = [ranks[rated_operator.operator.first] for rated_operator in rated]
        loads = [0] * len(rated)
        for number, rated_operator in enumerate(rated):
            operator = rated_operator.operator
            if not operator.weights and number != weights.operator:
                loads[number] += reads[number]
            for transfer in () if operator.is_shared else operator.weights:
                after = bisect_left(firsts, ranks[transfer.position])
                loads[max(after - 1, 0)] += self._copy_cycles(transfer.size_bytes)
        if placement is not None:
            for part in placement.parts:
                loads[max(part.gap - 1, 0)] -= self._copy_cycles(part.size_bytes)
        elif weights.transfer is not None:
            after = bisect_left(firsts, ranks[weights.transfer])
            loads[max(after - 1, 0)] -= self._copy_cycles(weights.size_bytes)
        idle, backlog = [], 0
        for load, time in zip(loads, cycles, strict=True):
            idle.append(max(time - load - backlog, 0))
            backlog = max(backlog + load - time, 0)
        return idle

    def _copy_cycles(self, size_bytes: int) -> int:
        regions = self.context.regions
        return copy_cycles(self.stream.npu, regions[CONSTANTS], regions[self.region], size_bytes)

    def _bytes_in(self, cycles: int) -> int:
        latency = self._copy_cycles(0)
        rate = (self._copy_cycles(1 << 20) - latency) / (1 << 20)
        return max(int((cycles - latency) / rate), 0)

    def _first_position(self, gap: int) -> int:
        """Return the first kernel that may run when a transfer before an operator starts."""
        left = MOST_KERNELS
        for position in range(self.unchanged[gap].operator.first - 1, -1, -1):
            left -= not self.stream.ops[position].is_dma
            if not left:
                return position
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
        for unit_or_position in self._order(self.placements):
            if isinstance(unit_or_position, int):
                result.append(ops[unit_or_position])
                continue
            unit, part = unit_or_position
            weights, address = self.weights[unit], self.placements[unit].address
            result.append(weights.transfer_part(self.stream, self.region, address, part.offset, part.size_bytes, key))
            key -= 1
        return replace(self.stream, ops=result, image=replace(self.stream.image, sizes=sizes))
