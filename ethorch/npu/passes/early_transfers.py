"""Start weight transfers several operators early, and store the weights in free memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest

from ethorch.npu.cycles.model import RatedOperator, rate_operators
from ethorch.npu.ir import Stream
from ethorch.npu.passes.context import GROWTH_WORTH, Context
from ethorch.npu.passes.direct_reads import omit_transfers
from ethorch.npu.passes.occupancy import GRANULE
from ethorch.npu.passes.schedule import Schedule
from ethorch.npu.passes.weight_transfers import find_weights, stage_weights

#: Priority of an operator, from its number and the exposed cycles. Low values come first.
Order = Callable[[int, int], tuple[int, ...]]
#: Orders to try in turn: by exposed cycles, from the end, and every second operator first, so that slices alternate.
_ORDERS: tuple[Order, ...] = (
    lambda number, exposed: (-exposed,),
    lambda number, exposed: (-number,),
    lambda number, exposed: (number % 2, -exposed),
)
#: Maximum number of operators by which a transfer starts earlier, and of sweeps over all operators.
_AHEAD, _SWEEPS = (8, 32), 3
#: Minimum exposed cycles of an operator whose transfers are moved, as a share of the stream's cycles.
_LEAST_SHARE = 1e-4
#: Maximum number of times that operators are rated, in about ten seconds.
_MOST_WORK = 500_000
#: Maximum size of ``Occupancy`` in bytes: granules of the region times operations.
_MOST_GRANULES = 1 << 28


def run(stream: Stream, context: Context) -> Stream | None:
    unchanged, region = stream, context.find_fast_region(stream)
    if region is None:
        return None
    stream = omit_transfers(stream, context, region)
    earlier = _start_early(stream, context, region)
    return earlier if earlier is not None else None if stream is unchanged else stream


def _start_early(stream: Stream, context: Context, region: int) -> Stream | None:
    if len(stream.ops) * (context.grown_limit(stream, region) // GRANULE) > _MOST_GRANULES:
        return None
    rated = context.rate_operators(stream)
    weights = find_weights(stream, [rated_operator.operator for rated_operator in rated], region)
    if not weights:
        return None
    alternatives: dict[int, list[int]] = {}  # units by operator
    for unit, each in enumerate(weights):
        if each.transfer is None:
            alternatives.setdefault(each.operator, []).append(unit)
    staged: dict[int, RatedOperator] = {}
    for units in _group(alternatives):
        changed = stage_weights(stream, rated, [weights[unit] for unit in units], region)
        variants = rate_operators(changed, context.regions, context.effects)
        if len(variants) != len(rated):
            return None  # the transfers join other operators
        staged |= {unit: variants[weights[unit].operator] for unit in units}
    results: list[tuple[int, Stream | None]] = []
    grown: list[tuple[int, Stream | None]] = []
    work = 0
    for order in _ORDERS:
        schedule = Schedule(stream, context, region, rated, staged, weights)
        schedule.work += work
        _improve(schedule, order)
        results.append((schedule.cycles[0], schedule.build() if schedule.placements else None))
        if context.grown_limit(stream, region) > context.limit(stream, region):
            schedule.raise_limit(context.grown_limit(stream, region))
            _improve(schedule, order)
            grown.append((schedule.cycles[0], schedule.build() if schedule.placements else None))
        work = schedule.work
        if work > _MOST_WORK // 2 or sum(schedule.exposed) < GROWTH_WORTH * schedule.cycles[0]:
            break
    best = results[0]
    for result in (*results[1:], *sorted(grown, key=lambda result: result[0])):  # others may need more memory
        if result[0] <= (1 - GROWTH_WORTH) * best[0]:
            best = result
    return best[1]


def _group(alternatives: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
    """Yield lists of units of different, not adjacent operators. The model joins adjacent operators that transfer weights."""
    for parity in (0, 1):
        columns = [units for number, units in alternatives.items() if number % 2 == parity]
        for row in zip_longest(*columns):
            yield [unit for unit in row if unit is not None]


def _improve(schedule: Schedule, order: Order) -> None:
    for _ in range(_SWEEPS):
        before, exposed = schedule.cycles, schedule.exposed
        numbers = [weights.operator for weights in schedule.weights]
        for unit in sorted(range(len(numbers)), key=lambda unit: order(numbers[unit], exposed[numbers[unit]])):
            if schedule.work > _MOST_WORK:
                return
            if schedule.exposed[schedule.weights[unit].operator] > _LEAST_SHARE * schedule.cycles[0]:
                for ahead in _AHEAD:
                    schedule.place(unit, ahead)
        if schedule.cycles == before:
            break
