"""Cycles of a command stream."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ethorch.npu.cycles.compute import Computation
from ethorch.npu.cycles.groups import CONVOLUTIONS, leaves_rows
from ethorch.npu.cycles.memories import CONSTANTS, INTERNAL_RATE, Regions
from ethorch.npu.cycles.operators import Operator, Transfer, read_operators
from ethorch.npu.cycles.traffic import (
    COPY,
    FAST_WEIGHT,
    SCALE,
    SCALES,
    WEIGHT,
    WEIGHTS,
    WRITE,
    Traffic,
    access_cycles,
    chained_traffic,
    channel_rate,
    copy_cycles,
    input_traffic,
    output_traffic,
    weight_passes,
)
from ethorch.npu.ir import Op, Stream
from ethorch.npu.ir.encode import MOST_TRANSFERS, derive_waits
from ethorch.npu.registers import Npu


@dataclass(frozen=True)
class Effects:
    """Changes to Vela's formulas. The default values change nothing."""

    kernel_start: int = 0  # cycles added to each kernel
    drain: int = 0  # cycles added to each wait
    overcounts: bool = True  # reused weights and transposed convolutions, as Vela does
    contention: bool = False  # early transfers share the constants' bus with kernels, and their number is limited


@dataclass(frozen=True)
class OperatorCycles:
    keys: tuple[int, ...]  # operations in the stream
    computation: Computation
    npu_cycles: int  # with waits for weights and tables
    access_cycles: dict[str, int]
    effects: int

    @property
    def cycles(self) -> int:
        """The larger of the NPU's cycles and the slowest memory's access cycles, plus the extra cycles in ``effects``."""
        return max([self.npu_cycles, *self.access_cycles.values()]) + self.effects


@dataclass(frozen=True)
class Estimate:
    operators: tuple[OperatorCycles, ...]

    @property
    def cycles(self) -> int:
        return sum(operator.cycles for operator in self.operators)


def estimate(
    stream: Stream, regions: Regions, effects: Effects = Effects(), rated: Sequence[RatedOperator] | None = None
) -> Estimate:
    """Estimate the cycles of a stream with Vela's formulas and ``effects``.

    Args:
        rated: Result of ``rate_operators``, if already computed.

    Raises:
        MachineFault: An operation has invalid registers.
    """
    rated = rate_operators(stream, regions, effects) if rated is None else rated
    results = []
    for rated_operator, (npu_cycles, accesses) in zip(rated, time_operators(stream.npu, regions, rated, effects), strict=True):
        keys = tuple(stream.ops[position].key for position in rated_operator.operator.positions)
        results.append(OperatorCycles(keys, rated_operator.operator.computation, npu_cycles, accesses, rated_operator.effects))
    return Estimate(tuple(results))


@dataclass(frozen=True)
class RatedOperator:
    """An operator and the part of its cycles that does not depend on the order of transfers."""

    operator: Operator
    effects: int
    accesses: dict[int, dict[str, int]] = field(
        default_factory=dict, compare=False
    )  # access cycles of each memory by bytes of early transfers

    def access_cycles(self, npu: Npu, regions: Regions, early_bytes: int) -> dict[str, int]:
        if early_bytes not in self.accesses:
            accesses = access_cycles(npu, _list_traffic(self.operator, regions, early_bytes))
            self.accesses[early_bytes] = {memory.name: cycles for memory, cycles in accesses.items()}
        return self.accesses[early_bytes]


def list_traffic(stream: Stream, regions: Regions, rated: Sequence[RatedOperator]) -> Iterator[tuple[int, Traffic]]:
    """Yield each access of an operator's kernels and transfers, with the key of the operator's first operation."""
    for rated_operator in rated:
        for access in _list_traffic(rated_operator.operator, regions, early_bytes=0):
            yield stream.ops[rated_operator.operator.first].key, access


def rate_operators(stream: Stream, regions: Regions, effects: Effects = Effects()) -> list[RatedOperator]:
    ops = stream.ops
    operators = read_operators(ops, regions)
    if effects.overcounts:
        operators = [_rate_whole_phase(ops, operator) for operator in operators]
    else:
        operators = [replace(operator, weights=[], _slack=None) if operator.is_shared else operator for operator in operators]
    waits = [len(rated_operator) for rated_operator in derive_waits(ops)] if effects.drain else [0] * len(ops)
    results = []
    for operator in operators:
        positions = [*operator.positions, *(transfer.position for transfer in operator.weights)]
        added = effects.kernel_start * sum(not ops[position].is_dma for position in positions)
        added += effects.drain * sum(waits[position] for position in positions)
        results.append(RatedOperator(operator, added))
    return results


def time_operators(
    npu: Npu,
    regions: Regions,
    rated: Sequence[RatedOperator],
    effects: Effects = Effects(),
    ranks: Mapping[int, float] = MappingProxyType({}),
) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield the NPU cycles of each operator, including waits, and its access cycles for each memory.

    Args:
        ranks: Fractional stream position of each transfer to be added, keyed by ``Transfer.position``.
    """
    bus = _Bus(npu, regions, [rated_operator.operator for rated_operator in rated], effects.contention, ranks)
    constants = regions[CONSTANTS].name
    for rated_operator in rated:
        cycles = rated_operator.operator.computation.cycles + bus.start(rated_operator.operator)
        accesses = rated_operator.access_cycles(npu, regions, bus.early_bytes(rated_operator.operator))
        if effects.contention and rated_operator.operator.reads_constants(regions):
            cycles = max(cycles, bus.read(accesses.get(constants, 0)))
        bus.finish(rated_operator.operator, max([cycles, *accesses.values()]) + rated_operator.effects)
        yield cycles, accesses


def rate_contention(npu: Npu, regions: Regions) -> float:
    """Return how much a read of constants delays transfers, as a share (0 to 1) of the read's cycles.

    On U85, latencies limit reads and transfers to parts of a memory's bandwidth, so that they can run concurrently.
    """
    memory = regions[CONSTANTS]
    used = channel_rate(npu, memory, WEIGHT) + channel_rate(npu, memory, COPY)
    return min(max(used / memory.bytes_per_cycle - 1, 0.0), 1.0)


def _rate_whole_phase(ops: Sequence[Op], operator: Operator) -> Operator:
    op = ops[operator.first]
    if op.is_dma or op.name not in CONVOLUTIONS or not leaves_rows(op) or len(operator.works) > 1:
        return operator
    work, values = operator.work, op.values
    pixel, row = work.out[2] * work.ofm.bits // 8, work.out[1] * values["OFM_STRIDE_X"]
    steps = (values["OFM_STRIDE_Y"] // row, values["OFM_STRIDE_X"] // pixel)
    height, width = (n * step - step + 1 for n, step in zip(work.out, steps, strict=False))
    size = (height, width, work.out[2])
    return replace(operator, works=(replace(work, out=size, ofm=replace(work.ofm, size=size)),))


@dataclass
class _Bus:
    """The transfers of weights and tables that overlap with kernels (Vela's slackBufferingCycles)."""

    npu: Npu
    regions: Regions
    operators: Sequence[Operator]
    contention: bool
    ranks: Mapping[int, float]
    now: int = 0
    slack: int = 0  # cycles before now in which a transfer can start
    free: int | None = None  # end of the last early transfer
    ends: dict[int, int] = field(default_factory=dict)  # of early transfers, by position

    def __post_init__(self) -> None:
        firsts = [operator.first for operator in self.operators if operator.works]
        early = []
        for operator in self.operators:
            if operator.weights and not operator.is_shared:
                number = bisect_left(firsts, operator.first)
                early += [each for each in operator.weights if bisect_right(firsts, self._rank(each.position)) < number]
        self._contention = rate_contention(self.npu, self.regions)
        self._early = deque(sorted(early, key=lambda transfer: self._rank(transfer.position)))

    def _rank(self, position: int) -> float:
        return self.ranks.get(position, position)

    def start(self, operator: Operator) -> int:
        """Return the cycles that transfers add to ``operator`` (Vela's EstimateFullOpPerformance)."""
        stall = 0
        while self._early and self._rank(self._early[0].position) < operator.first:
            transfer = self._early.popleft()
            running = list(self.ends.values())[-MOST_TRANSFERS[self.npu.family] :] if self.contention else []
            if len(running) == MOST_TRANSFERS[self.npu.family]:
                stall = max(stall, running[0] - self.now)
            start = self.now - self.slack if self.free is None else max(self.now - self.slack, self.free)
            self.ends[transfer.position] = self.free = start + self._copy_cycles(transfer)
        return max(stall, self._wait(operator))

    def _wait(self, operator: Operator) -> int:
        slack = self.slack if self.free is None else min(self.slack, self.now - self.free)
        table = 0
        if operator.table_bytes:
            table = copy_cycles(self.npu, self.regions[CONSTANTS], INTERNAL_RATE, operator.table_bytes)
        if not operator.weights:
            return max(table - slack, 0) if table else 0
        cycles = operator.computation.cycles
        last = operator.slack_cycles(self.regions)
        early = {} if operator.is_shared else self.ends
        late = [transfer for transfer in operator.weights if transfer.position not in early]
        ends = [early[transfer.position] - self.now for transfer in operator.weights if transfer.position in early]
        if ends and operator.slices == 1:  # it needs all parts of its weights at its start
            last = max(last, cycles)
        visible = max([0, *ends[:1], *(end + last - cycles for end in ends)])
        if late:
            total = self._copy_cycles(*late) - slack
            first = max(self._copy_cycles(late[0]) - slack, 0) if not ends else 0
            visible = max(visible, first, total + last - cycles)
        return visible + table

    def early_bytes(self, operator: Operator) -> int:
        first = {operator.weights[0].position} if operator.weights and operator.is_prebuffered else set()
        early = self.ends.keys() if not operator.is_shared else ()
        return sum(transfer.size_bytes for transfer in operator.weights if transfer.position in {*first, *early})

    def read(self, cycles: int) -> int:
        """Return the duration of a read of constants that takes ``cycles`` if no transfer uses the same bus."""
        shared = self._contention * cycles
        if not shared:
            return cycles
        backlog = max((self.free or 0) - self.now, 0)
        self.free = self.now + backlog + int(shared)
        return cycles + int(self._contention * backlog)

    def finish(self, operator: Operator, cycles: int) -> None:
        self.now += cycles
        self.slack = operator.slack_cycles(self.regions)

    def _copy_cycles(self, *transfers: Transfer) -> int:
        source, target = self.regions[transfers[0].source], self.regions[transfers[0].target]
        return copy_cycles(self.npu, source, target, sum(transfer.size_bytes for transfer in transfers))


def _list_traffic(operator: Operator, regions: Regions, early_bytes: int) -> Iterator[Traffic]:
    if operator.compound is not None:
        yield from operator.compound.traffic
        return
    head = operator.work
    yield from input_traffic(head)
    if not head.ofm.chained:
        yield output_traffic(head, head)
    for work in operator.works[1:]:
        yield from chained_traffic(head, work)
    if head.weights is None or head.scales is None:
        return
    passes = weight_passes(head)
    if operator.weights:
        source, target = regions[operator.weights[0].source], regions[operator.weights[0].target]
        late = max(min(head.weight_bytes, sum(transfer.size_bytes for transfer in operator.weights)) - early_bytes, 0)
        yield Traffic(source, COPY, WEIGHTS, late)
        yield Traffic(target, WRITE, WEIGHTS, late)
        yield Traffic(head.weights, FAST_WEIGHT if head.fast_weights else WEIGHT, WEIGHTS, passes * head.weight_bytes)
    else:
        yield Traffic(head.weights, WEIGHT, WEIGHTS, passes * head.weight_bytes)
    # Vela charges scales to the memory that they were transferred from.
    home = head.scales if operator.home is None else regions[operator.home]
    yield Traffic(home, SCALE, SCALES, passes * head.scale_bytes)
