from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ethorch.npu.cycles.dependencies import Dependencies
from ethorch.npu.cycles.model import RatedOperator
from ethorch.npu.cycles.operators import Operator
from ethorch.npu.ir import Op, Stream
from ethorch.npu.ir.image import CONSTANTS
from ethorch.npu.ir.stream import create_transfer
from ethorch.npu.passes.occupancy import GRANULE
from ethorch.npu.passes.placement import round_up
from ethorch.npu.runs import Run

_STREAMS = ("WEIGHT", "SCALE")
_FAR = 1 << 36  # address of weights without a place


@dataclass(frozen=True)
class Weights:
    """Adjacent weights and scales of one operator or depth slice, or only its scales."""

    operator: int
    low: int  # address in the constants
    size_bytes: int
    readers: tuple[int, ...]
    transfer: int | None = None  # position; None if kernels read the constants
    address: int = 0  # target of the transfer
    is_slice: bool = False
    scale_bytes: int = 0  # size of scales that precede the weights and have a transfer of their own

    def relocate(self, op: Op, region: int, address: int) -> Op:
        values: dict[str, int] = {}
        for run in _list_streams(op):
            if run.region != CONSTANTS and self.transfer is None:
                continue
            start = self.low if run.region == CONSTANTS else self.address
            if start <= run.low and run.high <= start + self.size_bytes:
                values[run.register] = address + run.low - start
                values[f"{_prefix(run)}_REGION"] = region
        return op.copy(**values)

    def divide(self, offset: int, size_bytes: int) -> list[tuple[int, int]]:
        """Divide a part into scales and weights, which have separate transfers. Return the offset and the size of each.

        The cycle model charges scales that are transferred alone to the memory from which kernels read them.
        """
        end, cut = offset + size_bytes, self.scale_bytes
        return [(offset, cut - offset), (cut, end - cut)] if offset < cut < end else [(offset, size_bytes)]

    def transfer_part(self, stream: Stream, region: int, address: int, offset: int, size_bytes: int, key: int) -> Op:
        registers: dict[str, int] = {}
        example = next((op for op in stream.ops if op.is_dma and op.reads[0].region == CONSTANTS), None)
        if example is not None:
            registers |= {name: raw for name, raw in example.registers.items() if name.startswith("DMA0_SIZE")}
        registers |= {"DMA0_SRC_REGION": CONSTANTS, "DMA0_DST_REGION": region, "DMA0_LEN": size_bytes}
        registers |= {"DMA0_SRC": self.low + offset, "DMA0_DST": address + offset}
        return create_transfer(stream.npu, key, **registers)


def _list_streams(op: Op) -> list[Run]:
    return [run for run in op.reads if run.register.startswith(_STREAMS)]


def _prefix(run: Run) -> str:
    return next(name for name in _STREAMS if run.register.startswith(name))


def find_streams(stream: Stream, operators: Sequence[Operator], region: int) -> list[Weights]:
    """Return the aligned weight and scale streams that are transferred, or that kernels read from constants."""
    candidates = []
    for each in find_weights(stream, operators, region):
        if each.transfer is not None:  # other operators may read the other bytes of the transfer
            (source,), (target,) = stream.ops[each.transfer].reads, stream.ops[each.transfer].writes
            candidates.append(replace(each, low=source.low, size_bytes=source.high - source.low, address=target.low))
    for number, operator in enumerate(operators):
        for position in operator.positions if operator.works else ():
            runs = [run for run in _list_streams(stream.ops[position]) if run.region == CONSTANTS]
            hulls = [
                (min(run.low for run in part), max(run.high for run in part))
                for name in _STREAMS
                if (part := [run for run in runs if _prefix(run) == name])
            ]
            if len(hulls) > 1 and max(low for low, _ in hulls) < min(high for _, high in hulls):  # interleaved by core
                hulls = [(min(low for low, _ in hulls), max(high for _, high in hulls))]
            candidates += [Weights(number, low, high - low, (position,)) for low, high in hulls]
    return [each for each in candidates if not (each.low | each.size_bytes) % GRANULE]


def find_weights(stream: Stream, operators: Sequence[Operator], region: int) -> list[Weights]:
    """Return the adjacent, aligned weights that a pass can transfer."""
    ops = stream.ops
    readers: dict[int, list[tuple[int, Run]]] = {}
    for position, reads in enumerate(Dependencies(ops).links):
        for run, writer in reads:
            readers.setdefault(writer, []).append((position, run))
    candidates: list[Weights | None] = []
    for number, operator in enumerate(operators):
        if not operator.works or operator.compound is not None or operator.is_shared:
            continue
        if not operator.weights and operator.slices == 1:
            candidates += [_find_constants(ops, number, operator, prefixes) for prefixes in (_STREAMS, ("SCALE",))]
        if operator.slices > 1 or len(operator.weights) == 1:
            positions = [transfer.position for transfer in operator.weights]
            candidates += [_find_transferred(stream, number, operator, at, readers.get(at, ()), region) for at in positions]
    return [each for each in candidates if each is not None and not (each.low | each.size_bytes | each.address) % GRANULE]


def _find_transferred(
    stream: Stream, number: int, operator: Operator, position: int, reads: Sequence[tuple[int, Run]], region: int
) -> Weights | None:
    op = stream.ops[position]
    if len(op.reads) != 1 or len(op.writes) != 1 or op.reads[0].region != CONSTANTS:
        return None
    target = op.writes[0]
    kernels = {kernel for kernel, _ in reads}
    is_read = all(run.register.startswith(_STREAMS) and target.low <= run.low and run.high <= target.high for _, run in reads)
    if target.region != region or not kernels or not is_read or not kernels <= set(operator.positions):
        return None
    if any(where == region and target.low < high and low < target.high for where, low, high in stream.image.outputs):
        return None
    low = min(run.low for _, run in reads) // GRANULE * GRANULE  # other transferred bytes are unused
    size = max(run.high for _, run in reads) - low
    source = op.reads[0].low + low - target.low
    return Weights(number, source, round_up(size), tuple(sorted(kernels)), position, low, operator.slices > 1)


def _find_constants(ops: Sequence[Op], number: int, operator: Operator, prefixes: tuple[str, ...]) -> Weights | None:
    runs = [run for position in operator.positions for run in _list_streams(ops[position]) if run.register.startswith(prefixes)]
    if not runs or any(run.region != CONSTANTS for run in runs):
        return None
    ordered = sorted({(run.low, run.high) for run in runs})
    if any(after[0] - before[1] >= GRANULE for before, after in pairwise(ordered)):
        return None
    low, high = ordered[0][0], max(end for _, end in ordered)
    ends = [run.high for run in runs if _prefix(run) == "SCALE"]
    starts = [run.low for run in runs if _prefix(run) == "WEIGHT"]
    scale_bytes = min(starts) - low if starts and ends and max(ends) <= min(starts) else 0
    readers = tuple(sorted(operator.positions))
    return Weights(number, low, high - low, readers, scale_bytes=0 if scale_bytes % GRANULE else scale_bytes)


def stage_weights(stream: Stream, rated: Sequence[RatedOperator], weights: Sequence[Weights], region: int) -> Stream:
    """Return a stream, usable only for estimates, with transfers for weights that kernels read from constants."""
    ops, key, address = list(stream.ops), stream.new_key(), _FAR
    before: dict[int, list[Op]] = {}
    for each in weights:
        first = rated[each.operator].operator.first
        before[first] = []
        for offset, size in each.divide(0, each.size_bytes):
            before[first].append(each.transfer_part(stream, region, address, offset, size, key))
            key -= 1
        for position in each.readers:
            ops[position] = each.relocate(ops[position], region, address)
        address += each.size_bytes
    staged: list[Op] = []
    for position, op in enumerate(ops):
        staged += [*before.get(position, ()), op]
    return replace(stream, ops=staged)
