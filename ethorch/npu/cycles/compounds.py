"""Matrix products and transpositions, which need many kernels on U55 and U65.

Sources: ethos_u55_register_cs_generator.cpp (InsertMatMulCommand, InsertTransposeCommand), ethos_u55_performance.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ethorch.npu import registers
from ethorch.npu.cycles.compute import Computation, compute
from ethorch.npu.cycles.hardware import Size
from ethorch.npu.cycles.traffic import IFM, IFM_STREAM, MAPS, WRITE, Traffic, transfer_bytes
from ethorch.npu.cycles.work import ELEMENTWISE, POOL, REDUCE_SUM, Map, Work, round_up, volume
from ethorch.npu.ir import Op

_MUL = 0
_AVERAGE = 1
_LARGEST_OFM_DEPTH = 128  # of a block (ArchEthosU55::ArchEthosU55)
_BLOCK_WIDTH = 8  # of shallow maps; the width of others has no influence


@dataclass(frozen=True)
class Compound:
    computation: Computation
    traffic: tuple[Traffic, ...]


def may_be_compound(op: Op) -> bool:
    return op.npu.family != registers.U85 and op.name in ("NPU_OP_POOL", "NPU_OP_ELEMENTWISE")


# --- matrix products --------------------------------------------------------------------------------------------------


def count_products(ops: Sequence[Op], works: Sequence[Work]) -> int:
    """Return the number of kernels at the start of ``ops`` that together compute one matrix product."""
    count = 0
    while count + 1 < len(works) and _is_product(ops[count], ops[count + 1], works[count], works[count + 1]):
        if count and (_sizes(works[count]), _sizes(works[count + 1])) != (_sizes(works[0]), _sizes(works[1])):
            break
        count += 2
    return count


def _is_product(first: Op, second: Op, mul: Work, reduction: Work) -> bool:
    if mul.kind != ELEMENTWISE or mul.mode != _MUL or reduction.kind != REDUCE_SUM:
        return False
    is_linked = first.registers["OFM_BASE0"] == second.registers["IFM_BASE0"] and reduction.ifms[0].bits == 32
    return mul.ofm.bits == 32 and len(mul.ifms) == 2 and mul.ifms[1].size[1] == 1 and is_linked


def _sizes(work: Work) -> tuple[object, ...]:
    return work.out, work.block, tuple(fm.size for fm in work.ifms)


def rate_product(ops: Sequence[Op], works: Sequence[Work]) -> Compound:
    """Return the cycles and traffic of a matrix product (Vela's EstimateMatMulCycles)."""
    batches = len({op.registers["IFM_BASE0"] for op in ops[::2]})
    columns = len(works) // 2 // batches
    height, width, depth = works[0].out
    size = (height * batches, width, depth)
    mul = works[0].resize(size)
    first = replace(mul.ifms[0], size=size)
    mul = replace(mul, ifms=(first, replace(mul.ifms[1], size=size)))
    reduction = works[1].resize((height * batches, width, 1))
    reduction = replace(reduction, ifms=(replace(reduction.ifms[0], bits=first.bits),))
    parts = compute((mul,)), compute((reduction,))
    computation = Computation(*(columns * sum(getattr(part, name) for part in parts) for name in ("cycles", "array", "output")))
    return Compound(computation, tuple(_product_traffic(mul, reduction, works[0].ifms[1], columns)))


def _product_traffic(mul: Work, reduction: Work, second: Map, columns: int) -> Iterator[Traffic]:
    npu, first, block = mul.npu, mul.ifms[0], reduction.ifm_block
    elements = first.elements * columns
    yield Traffic(first.memory, IFM, MAPS, transfer_bytes(npu, first, block, elements, write=False))
    operand = replace(second, size=(first.size[0], columns, first.size[2]))
    yield Traffic(second.memory, IFM_STREAM, MAPS, transfer_bytes(npu, operand, block, operand.elements, write=False))
    ofm = replace(reduction.ofm, size=(*first.size[:2], columns))
    yield Traffic(ofm.memory, WRITE, MAPS, transfer_bytes(npu, ofm, reduction.block, ofm.elements, write=True))
    # Vela counts elements of the intermediate map, not its four bytes each.
    yield Traffic(mul.ofm.memory, IFM_STREAM, MAPS, elements)
    yield Traffic(mul.ofm.memory, WRITE, MAPS, elements)


# --- transpositions ---------------------------------------------------------------------------------------------------


def count_transpositions(ops: Sequence[Op], works: Sequence[Work]) -> int:
    """Return the number of average pools at the start of ``ops`` that together transpose one feature map."""
    count = 0
    while count < len(works) and _is_transposition(ops[count], works[count]):
        if count and not _continues(ops[count - 1], ops[count], works[count - 1], works[count]):
            break
        count += 1
    return count


def _is_transposition(op: Op, work: Work) -> bool:
    if work.kind != POOL or work.mode != _AVERAGE or work.window.extent != (1, 1):
        return False
    has_rows = op.registers["OFM_STRIDE_Y"] >= work.out[1] * op.registers["OFM_STRIDE_X"]
    return not work.ofm.bricks and not work.ifms[0].bricks and work.out[0] * work.out[1] > 1 and not has_rows


def _continues(before: Op, after: Op, first: Work, second: Work) -> bool:
    steps = {after.registers[name] - before.registers[name] for name in ("IFM_BASE0", "OFM_BASE0")}
    return _sizes(first) == _sizes(second) and all(0 < step <= volume(first.out) * first.ofm.bits // 8 for step in steps)


def rate_transposition(ops: Sequence[Op], works: Sequence[Work]) -> Compound:
    """Return the cycles and traffic of a transposition (Vela's MeasureCycleCost)."""
    work = works[0]
    npu, elements = work.npu, volume(work.out) * len(works)
    height, width, depth = work.out
    channels = depth if depth > 4 else width * depth
    read_block, write_block = _transposition_blocks(work, channels)
    ifm = replace(work.ifms[0], size=(1, volume(work.out) // channels, channels))
    ofm = replace(work.ofm, size=(1, channels, volume(work.out) // channels) if depth <= 4 else (width, height, depth))
    read = transfer_bytes(npu, ifm, read_block, elements, write=False)
    written = transfer_bytes(npu, ofm, write_block, elements, write=True)
    cycles = max(
        int(read / ifm.memory.bytes_per_cycle) + ifm.memory.read_latency,
        int(written / ofm.memory.bytes_per_cycle) + ofm.memory.write_latency,
    )
    traffic = (Traffic(ifm.memory, IFM, MAPS, read), Traffic(ofm.memory, WRITE, MAPS, written))
    return Compound(Computation(cycles, 0, 0), traffic)


def _transposition_blocks(work: Work, channels: int) -> tuple[Size, Size]:
    # FindBlockConfig in ethos_u55.cpp, for the whole map
    depth = round_up(min(channels, 16), 4) if work.ifms[0].bits == 16 else round_up(min(channels, 32), 8)
    return (1, _BLOCK_WIDTH, depth), (1, _BLOCK_WIDTH, min(round_up(channels, work.microblock[2]), _LARGEST_OFM_DEPTH))
