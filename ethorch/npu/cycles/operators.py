"""Operators of a command stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile

from ethorch.npu.cycles.compounds import (
    Compound,
    count_products,
    count_transpositions,
    may_be_compound,
    rate_product,
    rate_transposition,
)
from ethorch.npu.cycles.compute import Computation, compute
from ethorch.npu.cycles.copies import rate_copy
from ethorch.npu.cycles.dependencies import Dependencies
from ethorch.npu.cycles.groups import Group, find_groups
from ethorch.npu.cycles.memories import ARENA, CONSTANTS, MemoryRate, Regions
from ethorch.npu.cycles.work import POOL, Map, Work, read_work
from ethorch.npu.ir import Op
from ethorch.npu.ir.encode import has_conflict
from ethorch.npu.memory import INTERNAL


@dataclass(frozen=True)
class Transfer:
    position: int
    size_bytes: int
    source: int
    target: int


@dataclass
class Operator:
    """The kernels that Vela estimates as one operator, or a transfer of feature maps.

    Attributes:
        works: Chain of kernels, each with the total size of its slices or stripes.
        last_slice: Kernels of the last depth slice, or of the first stripe.
        home: Source region of scales that are transferred together with weights, or None.
        is_shared: Whether the weights were already transferred for an earlier operator. Vela counts such a transfer again.
            False if they were transferred before the stream's first kernel, e.g. by the pass ``resident-weights``.
        is_prebuffered: Whether the first transfer can overlap with the previous operator.
        moved: Value of ``compound`` if all feature maps were in the arena's memory.
    """

    positions: list[int]
    works: tuple[Work, ...] = ()
    last_slice: tuple[Work, ...] = ()
    slices: int = 1
    weights: list[Transfer] = field(default_factory=list)
    home: int | None = None
    is_shared: bool = False
    is_prebuffered: bool = False
    table_bytes: int = 0
    compound: Compound | None = None
    moved: Compound | None = None
    _slack: int | None = field(default=None, repr=False, compare=False)

    @property
    def first(self) -> int:
        return self.positions[0]

    @property
    def work(self) -> Work:
        return self.works[0]

    @cached_property
    def computation(self) -> Computation:
        return compute(self.works) if self.compound is None else self.compound.computation

    def with_weights(self, weights: list[Transfer], positions: list[int]) -> Operator:
        result = copy(self)
        result.weights, result.positions = weights, positions
        return result

    def reads_constants(self, regions: Regions) -> bool:
        """Return True if the weights are read without a transfer to another memory."""
        return not self.weights or self.work.weights == regions[CONSTANTS]

    def slack_cycles(self, regions: Regions) -> int:
        """Return the cycles during which transfers for the next operator can run (Vela's slackBufferingCycles)."""
        if self._slack is None:
            self._slack = self._compute_slack(regions)
        return self._slack

    def _compute_slack(self, regions: Regions) -> int:
        if self.compound is not None:
            return (self.moved or self.compound).computation.cycles
        works = self.last_slice if self.weights else self.works
        moved = (works[0].move_maps(regions[ARENA]), *works[1:])
        return compute(moved, is_first=self.slices == 1 or not self.weights).cycles


def read_operators(ops: Sequence[Op], regions: Regions) -> list[Operator]:
    dependencies = Dependencies(ops)
    owned: set[int] = set()
    groups = find_groups(ops, dependencies)
    works = {position: read_work(ops[position], regions) for group in groups for position in group.positions}
    operators: list[Operator] = []
    pending = 0
    while pending < len(groups):
        operator, count = _read_compound(ops, groups, pending, works, regions[ARENA])
        if operator is None:
            last = operators[-1].positions[-1] if operators else None
            operator, count = _read_operator(ops, groups[pending], last, works, dependencies, owned), 1
        operators.append(operator)
        pending += count
    copies = (position for position, op in enumerate(ops) if op.is_dma and position not in owned)
    operators += (Operator([position], compound=copy) for position in copies if (copy := rate_copy(ops[position], regions)))
    return sorted(operators, key=lambda operator: operator.first)


def _read_compound(
    ops: Sequence[Op], groups: Sequence[Group], start: int, works: Mapping[int, Work], arena: MemoryRate
) -> tuple[Operator | None, int]:
    positions = [group.first for group in groups[start : start + 2] if len(group.positions) == 1]
    if not positions or not may_be_compound(ops[positions[0]]):
        return None, 0
    for count_kernels, rate, fewest in ((count_products, rate_product, 4), (count_transpositions, rate_transposition, 1)):
        if count_kernels([ops[n] for n in positions], [works[n] for n in positions]):
            following = takewhile(lambda group: len(group.positions) == 1 and may_be_compound(ops[group.first]), groups[start:])
            positions = [group.first for group in following]
            kernels, sizes = [ops[n] for n in positions], [works[n] for n in positions]
            count = count_kernels(kernels, sizes)
            if count >= fewest:  # one product and its sum are rated alike on their own
                kernels, sizes = kernels[:count], sizes[:count]
                moved = rate(kernels, [work.move_maps(arena) for work in sizes])
                return Operator(positions[:count], tuple(sizes[:2]), compound=rate(kernels, sizes), moved=moved), count
    return None, 0


def _read_operator(
    ops: Sequence[Op], group: Group, before: int | None, works: Mapping[int, Work], dependencies: Dependencies, owned: set[int]
) -> Operator:
    units = [[works[position] for position in unit] for unit in group.units]
    merged = tuple(_merge([unit[n] for unit in units], group.slices > 1) for n in range(len(units[0])))
    by_position = {
        transfer.position: transfer for position in group.positions for transfer in _find_weights(ops, position, dependencies)
    }
    transfers = [transfer for position, transfer in by_position.items() if position not in owned]
    is_known = bool(by_position) and not transfers
    is_shared = is_known and any(not op.is_dma for op in ops[: max(by_position)])
    if is_shared:
        transfers = list(by_position.values())
    owned.update(by_position)
    is_prebuffered = False
    if transfers and before is not None:
        is_prebuffered = not has_conflict(ops[transfers[0].position], ops[before])
    table_bytes = 0
    if merged[0].table and _copies(ops[group.first], merged[0]):
        table_bytes = sum(run.high - run.low for run in ops[group.first].reads if run.region == INTERNAL)
        merged = (replace(merged[0], table=False), *merged[1:])
    last = tuple(units[-1]) if group.slices > 1 else tuple(units[0])
    links = dependencies.links[group.first]
    scales, weights = ({writer for read, writer in links if read.register.startswith(name)} for name in ("SCALE", "WEIGHT"))
    home = None
    if not weights.isdisjoint(transfer.position for transfer in transfers):
        home = next((ops[n].values["DMA0_SRC_REGION.region"] for n in sorted(scales & weights) if ops[n].is_dma), None)
    return Operator(group.positions, merged, last, group.slices, transfers, home, is_shared, is_prebuffered, table_bytes)


def _copies(op: Op, work: Work) -> bool:
    scale = op.values["OFM_SCALE.scale"], op.values["OFM_SCALE.shift"]
    return work.kind == POOL and work.window.extent == (1, 1) and scale in ((0, 0), (1, 0))


def _merge(units: Sequence[Work], are_slices: bool) -> Work:
    first, last = units[0], units[-1]
    height, width, _ = first.out
    if len(units) == 1:
        return first
    if not are_slices:
        top, left, _, right = first.window.pads
        pads = (top, left, last.window.pads[2], right)
        merged = first.resize((sum(unit.out[0] for unit in units), width, first.out[2]), pads)
        if first.is_array_work:
            return merged
        return replace(merged, ifms=tuple(_stretch(n, units) for n in range(len(first.ifms))))
    depth = sum(unit.out[2] for unit in units)
    merged = first.resize((height, width, depth))
    if not first.is_array_work:
        merged = replace(merged, ifms=tuple(replace(fm, size=(*fm.size[:2], depth if fm.size[2] > 1 else 1)) for fm in first.ifms))
    weight_bytes, scale_bytes = (sum(getattr(unit, name) for unit in units) for name in ("weight_bytes", "scale_bytes"))
    return replace(merged, weight_bytes=weight_bytes, scale_bytes=scale_bytes)


def _stretch(number: int, units: Sequence[Work]) -> Map:
    first = units[0].ifms[number]
    height, width, depth = first.size
    return replace(first, size=(sum(unit.ifms[number].size[0] for unit in units) if height > 1 else 1, width, depth))


def _find_weights(ops: Sequence[Op], position: int, dependencies: Dependencies) -> Iterator[Transfer]:
    writers = {writer for read, writer in dependencies.links[position] if read.register.startswith(("WEIGHT", "SCALE"))}
    for source in sorted(writers):
        if ops[source].is_dma:
            values = ops[source].values
            size = sum(run.high - run.low for run in ops[source].writes)
            yield Transfer(source, size, values["DMA0_SRC_REGION.region"], values["DMA0_DST_REGION.region"])
