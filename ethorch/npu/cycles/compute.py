"""Cycles of the MAC array and the output unit.

Sources: Vela 5.2's ethos_u55_performance.cpp and ethos_u85_performance.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ethorch.npu import registers
from ethorch.npu.arithmetic import ceil_div
from ethorch.npu.cycles.hardware import SUBKERNEL, U55_THROUGHPUT, U85_THROUGHPUT, Size
from ethorch.npu.cycles.traffic import first_block_cycles, last_block_cycles
from ethorch.npu.cycles.work import (
    CONV,
    DEPTHWISE,
    ELEMENTWISE,
    POOL,
    REDUCE_SUM,
    RESIZE,
    Work,
    clip,
    divide_up,
    round_depth,
    volume,
)

_MUL, _ADD, _SUB, _DIV = 0, 1, 2, 11
_MAX_POOL = 0
_SCALE_BYTES = 10  # scale and bias of one channel
_SCALE_READ_BYTES = 256  # per latency
_DPU_COMMANDS = 4  # commands that overlap


@dataclass(frozen=True)
class Computation:
    """The cycles of a kernel, excluding waits for memory."""

    cycles: int
    array: int  # if the array is the limit
    output: int  # if the output unit is the limit


def compute(works: Sequence[Work], *, is_first: bool = True, is_last: bool = True) -> Computation:
    """Return the cycles of one depth slice of a chain of kernels (Vela's MeasureCycleCost).

    The first slice's cycles include reading the first IFM block, and the last slice's cycles include writing the last OFM block.
    """
    work, per_element = works[0], sum(output_cycles(work) for work in works)
    if work.kind in (ELEMENTWISE, RESIZE):
        return _compute_elementwise(work, per_element)
    return _compute_array(work, per_element, is_first, is_last)


def _compute_elementwise(work: Work, per_element: float) -> Computation:
    elements = round_depth(work.ofm.size, work.ofm.bricks)
    output = math.ceil(per_element * elements)
    transfers = max(first_block_cycles(work), last_block_cycles(work))
    issue = math.ceil((transfers / volume(work.block) + per_element) / _DPU_COMMANDS * elements)
    return Computation(max(issue, output), 0, output)


def _compute_array(work: Work, per_element: float, is_first: bool, is_last: bool) -> Computation:
    microblock = _microblock(work)
    block = clip(work.ofm.size, work.block)
    blocks = volume(divide_up(work.ofm.size, microblock)) / volume(divide_up(block, microblock))
    computed = math.ceil(per_element * volume(block))
    scales = 0.0
    if work.kind in (CONV, DEPTHWISE) and work.weights is not None and work.scales is not None:
        # Vela uses the latency of the weights, because its scales are in the same memory or a slower one.
        latency = min(work.weights.read_latency, work.scales.read_latency)
        scales = _SCALE_BYTES * block[2] * latency / _SCALE_READ_BYTES
    output, array = max(float(computed), scales), float(array_cycles(work))
    read, write = first_block_cycles(work), last_block_cycles(work)
    issue = ((abs(write - read) if blocks > 1 else 0) + array + output) / _DPU_COMMANDS
    slower, faster = max(array, issue), max(output, issue)
    if slower > faster:
        total = int(slower * blocks) + (faster if is_last else 0)
    else:
        total = faster * blocks + slower
    total = int(total) + (write if is_last else 0) + (read if is_first else 0)
    return Computation(total, int(array * blocks + output), int(computed * blocks + array))


def _microblock(work: Work) -> Size:
    # GetOfmMicroBlock
    height, width, _ = work.ofm.size
    has_rows = work.npu.family != registers.U85 and work.microblock[0] == 2 and work.kind == CONV
    is_flat = height == 1 and width % 2 == 0 and work.window.size[0] == 1
    return (1, 4, work.microblock[2]) if has_rows and is_flat else work.microblock


def array_cycles(work: Work) -> int:
    """Return the MAC array's cycles for one OFM block (Vela's EstimateMacCyclesPerBlock)."""
    npu, ifm = work.npu, work.ifms[0]
    is_u85 = npu.family == registers.U85
    ifm_block, microblock = clip(ifm.size, work.ifm_block), _microblock(work)
    units = divide_up(clip(work.ofm.size, work.block), microblock)
    area, depth = units[0] * units[1], units[2]
    decode = 4 * microblock[2] // (npu.cores if is_u85 else 1)
    groups = ceil_div(ifm_block[2], 8)
    total = 0
    for elements in _subkernels(work):
        if work.kind == POOL:
            steps, cycles = 1, max(4, elements) * volume(units) * (1 if npu.macs == 32 else ifm.bits // 2)
        elif work.kind == DEPTHWISE:
            steps = ceil_div(elements, 4)
            cycles = max(decode, 4 * area * (ifm.bits // 8)) * steps * depth
        elif not work.part_kernel:
            steps = elements
            cycles = max(decode, ifm_block[2] // 8 * area if is_u85 else 4 * area) * steps * depth
            cycles *= ifm.bits // 8 if is_u85 else 1
        else:
            steps = ceil_div(elements, 2 if ifm.bits == 16 else 4)
            cycles = max(decode, 4 * area) * steps * depth * groups
        if work.sparse:
            cycles //= 2
        total += cycles + _delay(work, units, steps) * (groups if work.part_kernel else 1)
    if work.kind in (CONV, REDUCE_SUM):
        total *= ceil_div(ifm.size[2], ifm_block[2])
    return total if is_u85 else total // npu.cores


def _subkernels(work: Work) -> Iterator[int]:
    height, width = work.window.size
    for x in range(0, width, SUBKERNEL):
        for y in range(0, height, SUBKERNEL):
            yield min(height - y, SUBKERNEL) * min(width - x, SUBKERNEL)


def _delay(work: Work, units: Size, steps: int) -> int:
    npu, depth = work.npu, units[2]
    is_small = npu.macs == 32 and npu.family == registers.U55
    delay = (7 if work.wide else 3) if is_small else 3 if work.wide and npu.macs <= 128 else 2
    cycles = 0
    if units[0] * units[1] == 1:
        cycles = delay * steps if depth == 1 else delay * (steps - 1) * depth
    if is_small and work.wide and depth > 1 and 1 in units[:2]:
        cycles += delay * depth
    return cycles


def output_cycles(work: Work) -> float:
    """Return the output unit's cycles per element (Vela's EstimateAOCyclesPerElement)."""
    bits = work.ifms[0].bits
    if work.npu.family == registers.U85:
        rates = U85_THROUGHPUT[work.npu.macs]
        activation = rates.activation[1 if work.half_rate else 0] if work.table or work.half_rate else 0.0
        return max(_u85_output_cycles(work, rates.output), activation)
    rates = U55_THROUGHPUT[work.npu.macs]
    elementwise = work.kind == ELEMENTWISE
    if elementwise and bits == 32:
        row = 1 if len(work.ifms) > 1 else 0
    elif elementwise and work.mode == _MUL:
        row = 2 if work.ofm.bits == 32 else 3
    elif not elementwise and work.wide:
        row = 3
    elif elementwise and work.mode in (_ADD, _SUB):
        row = 5
    else:
        row = 6 if work.kind == POOL and work.mode == _MAX_POOL else 7
    return max(rates.output[row], rates.activation[0 if work.table else 2])


def _u85_output_cycles(work: Work, rates: tuple[float, ...]) -> float:
    # GetOutputCyclesPerElement; without activation
    if work.kind == ELEMENTWISE and work.mode == _DIV:
        return 33.0
    bits, ofm_bits = work.ifms[0].bits, work.ofm.bits
    if work.ofm.chained and 32 in (bits, ofm_bits):
        return rates[4]
    if ofm_bits == 64:
        return rates[3]
    if work.kind == ELEMENTWISE and len(work.ifms) > 1 and bits == 32:
        return rates[5 if ofm_bits == 32 else 4]
    return rates[{32: 2, 16: 1}.get(ofm_bits, 0)]
