"""Let kernels read weights from constants if a transfer would delay them, e.g. at the start of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from ethorch.npu.cycles.memories import CONSTANTS
from ethorch.npu.ir import Stream
from ethorch.npu.passes.context import Context
from ethorch.npu.passes.weight_transfers import Weights, find_weights

#: Most operators whose transfers are omitted, the minimum share of the cycles that each waits, and most slices to combine.
_MOST_OPERATORS, _LEAST_SHARE, _MOST_SLICES = 8, 5e-3, 3


def omit_transfers(stream: Stream, context: Context, region: int) -> Stream:
    """Return the stream without the transfers of weights to ``region`` that take longer than reading the weights directly."""
    tried: set[int] = set()
    while len(tried) < _MOST_OPERATORS:
        rated, results = context.rate_operators(stream), context.estimate(stream).operators
        transferred: dict[int, list[Weights]] = {}
        for weights in find_weights(stream, [each.operator for each in rated], region):
            if weights.transfer is not None:
                transferred.setdefault(weights.operator, []).append(weights)
        waits = {number: results[number].npu_cycles - rated[number].operator.computation.cycles for number in transferred}
        keys = {number: stream.ops[rated[number].operator.first].key for number in transferred}
        number = max((n for n in waits if keys[n] not in tried), key=lambda n: waits[n], default=None)
        if number is None or waits[number] < _LEAST_SHARE * context.rate(stream):
            break
        tried.add(keys[number])
        stream = min([stream, *_list_variants(stream, transferred[number])], key=context.rate)
    return stream


def _list_variants(stream: Stream, slices: Sequence[Weights]) -> Iterator[Stream]:
    """Yield streams without the transfers of all slices, of each slice and, if there are few, of other subsets."""
    sizes = range(1, len(slices)) if len(slices) <= _MOST_SLICES else (1,)
    for chosen in (tuple(slices), *(subset for size in sizes for subset in combinations(slices, size))):
        ops = list(stream.ops)
        for weights in chosen:
            for position in weights.readers:
                ops[position] = weights.relocate(ops[position], CONSTANTS, weights.low)
        omitted = {weights.transfer for weights in chosen}
        yield replace(stream, ops=[op for position, op in enumerate(ops) if position not in omitted])
