"""Block sizes and internal memories of U85 (regor's ethos_u85.cpp)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ethorch.npu.arithmetic import ceil_div
from ethorch.npu.feature_map import BRICK, STORAGE_CHAINED
from ethorch.npu.output import TRANSPOSES
from ethorch.npu.registers import TRANSPOSE
from ethorch.npu.verify.instruction import Facts, reject
from ethorch.npu.verify.rejection import Rejection
from ethorch.npu.verify.shram import MOST_SUBKERNEL, UPSCALE_NEAREST, block_size, check_size
from ethorch.npu.window import Window

MOST_BLOCK = (128, 128, 1024)  # height, width, depth after a transposition
ACC_DEPTH_UNIT = 16
ACC_BITS = {0: 32, 1: 64}  # by ACC_FORMAT.format; 48-bit accumulators occupy 64 bits
CHAIN_BUFFERS = 6
BROADCAST_C = 4  # bit of IFM_BROADCAST and IFM2_BROADCAST
MICROBLOCKS = {0: (1, 1), 1: (1, 2), 2: (1, 4), 3: (2, 2), 4: (2, 4), 5: (4, 4)}  # height, width by ACC_FORMAT.microblock


class Memories(NamedTuple):
    """The sizes of an NPU's internal memories in bytes."""

    ifm: int
    accumulators: int
    results: int  # of elementwise operations
    chain: int  # buffers, which hold broadcast operands
    units: dict[
        int, tuple[tuple[int, int, int], ...]
    ]  # by microblock: (height, width, 128-bit words) for up to 128, up to 256, and more bits of depth


_UNITS_256 = ((2, 2, 1), (1, 2, 2), (1, 1, 4))
_UNITS_1X4 = ((1, 4, 1), (1, 2, 2), (1, 1, 4))
_UNITS_1024 = ((2, 4, 1), (2, 2, 2), (1, 2, 4))
_UNITS_2048 = ((4, 4, 1), (2, 4, 2), (2, 2, 4))
MEMORIES = {
    "ethos-u85-128": Memories(8 << 10, 8 << 10, 2 << 10, 768, dict.fromkeys((0, 1), ((1, 2, 1), (1, 1, 2), (1, 1, 2)))),
    "ethos-u85-256": Memories(
        16 << 10, 16 << 10, 2 << 10, 1536, {1: _UNITS_256, 3: _UNITS_256, 2: ((1, 4, 1), (1, 2, 2), (1, 1, 4))}
    ),
    "ethos-u85-512": Memories(16 << 10, 32 << 10, 4 << 10, 3072, {3: _UNITS_256, 2: _UNITS_1X4}),
    "ethos-u85-1024": Memories(
        16 << 10, 64 << 10, 4 << 10, 6144, {3: _UNITS_1024, 4: _UNITS_1024, 2: ((2, 4, 1), (1, 4, 2), (1, 2, 4))}
    ),
    "ethos-u85-2048": Memories(
        32 << 10, 128 << 10, 8 << 10, 12288, {3: _UNITS_2048, 5: _UNITS_2048, 2: ((4, 4, 1), (2, 4, 2), (1, 4, 4))}
    ),
}


def check_block(facts: Facts, index: int) -> Iterator[Rejection]:
    memories, values = MEMORIES[facts.npu.name], facts.values
    microblock = values["ACC_FORMAT.microblock"]
    if microblock not in memories.units:
        allowed = " or ".join(map(str, sorted(memories.units)))
        yield reject(facts, index, "block", "ACC_FORMAT.microblock", microblock, allowed)
        return
    block = block_size(facts)
    size_rejections = list(check_size(facts, index, block_units(facts), largest_block(facts)))
    if size_rejections:
        yield from size_rejections
        return
    size_text = "x".join(map(str, block))
    for name, needed, available in required_bytes(facts, memories):
        if needed > available:
            text = f"blocks that need at most {available} bytes for {name}; this one needs {needed}"
            yield reject(facts, index, "shram", "OFM_BLK_HEIGHT, _WIDTH, _DEPTH", size_text, text)


def block_units(facts: Facts) -> tuple[int, int, int]:
    if facts.name == "NPU_OP_RESIZE":
        return 1, 1, 1
    microblock = facts.values["ACC_FORMAT.microblock"]
    return *MICROBLOCKS[microblock], min(ACC_DEPTH_UNIT, facts.npu.ofm_units.get(microblock, ACC_DEPTH_UNIT))


def largest_block(facts: Facts) -> tuple[int, int, int]:
    order = TRANSPOSES[TRANSPOSE[facts.values["OFM_PRECISION.transpose"]]]
    most = [0, 0, 0]
    for target, source in enumerate(order):
        most[source] = MOST_BLOCK[target]
    if facts.name == "NPU_OP_RESIZE":
        return 1, most[1], ACC_DEPTH_UNIT
    return most[0], most[1], most[2]


def required_bytes(facts: Facts, memories: Memories) -> Iterator[tuple[str, int, int]]:
    """Yield the purpose, the required bytes and the available bytes of each internal memory."""
    height, width, depth = block_size(facts)
    values = facts.values
    if facts.name == "NPU_OP_ELEMENTWISE":
        most = _most_columns(facts, memories)
        if not _continues_chain(facts):
            yield "results of one row", width * depth, most * depth
        return
    if facts.name == "NPU_OP_RESIZE":
        return
    buffers = 1
    if facts.name == "NPU_OP_CONV" and (height, width, depth) > (*MICROBLOCKS[values["ACC_FORMAT.microblock"]], ACC_DEPTH_UNIT):
        buffers = 2  # of all blocks but the smallest
    accumulators = height * width * ceil_div(depth, ACC_DEPTH_UNIT) * ACC_DEPTH_UNIT
    needed = accumulators * ACC_BITS[values["ACC_FORMAT.format"]] // 8
    yield "accumulators", buffers * needed, memories.accumulators
    yield "IFM", buffers * _ifm_bytes(facts, memories), memories.ifm


def _continues_chain(facts: Facts) -> bool:
    return any(facts.values[f"{name}_PRECISION.storage"] == STORAGE_CHAINED for name in ("IFM", "IFM2"))


def _most_columns(facts: Facts, memories: Memories) -> int:
    rows, columns = MICROBLOCKS[facts.values["ACC_FORMAT.microblock"]]
    depth = facts.values["OFM_BLK_DEPTH"]
    most = max(memories.results // depth, 1)
    if any(facts.values[f"{name}_BROADCAST"] & BROADCAST_C for name in ("IFM", "IFM2")):
        most = max(most, memories.chain // CHAIN_BUFFERS // BRICK // rows)
    return ceil_div(most, columns) * columns


def _ifm_bytes(facts: Facts, memories: Memories) -> int:
    values = facts.values
    size = block_size(facts)
    element_bytes = 1 << values["IFM_PRECISION.precision"]
    sums = facts.name == "NPU_OP_CONV" or facts.mode == "REDUCE_SUM"
    depth = ifm_block_depth(facts) if sums else size[2]
    bits = depth * 8 * element_bytes
    unit = memories.units[values["ACC_FORMAT.microblock"]][0 if bits <= 128 else 1 if bits <= 256 else 2]
    units = (unit[0], unit[1], unit[2] * 16 // element_bytes)
    window = getattr(facts.prepared.form, "window", None) if facts.prepared else None
    if not isinstance(window, Window):
        return 0
    factor = 1 if window.upscale == 0 else 2
    nearest = window.upscale == UPSCALE_NEAREST
    block = [
        ceil_div((n - 1) * stride + min(extent, MOST_SUBKERNEL) + nearest, factor)
        for n, stride, extent in zip(size[:2], window.stride, window.extent, strict=True)
    ]
    ifm = window.ifm
    if sums:
        depth = min(depth, values["IFM_DEPTH"])
    needed = math.prod(ceil_div(n, u) * u for n, u in zip((*block, depth), units, strict=True))
    rounded = math.prod(ceil_div(n, u) * u for n, u in zip((ifm.height, ifm.width, ifm.depth), units, strict=True))
    return min(needed, rounded) * element_bytes


def ifm_block_depth(facts: Facts) -> int:
    """Return the number of channels in an IFM block of a kernel that sums over channels (npu-reference 4.3)."""
    values = facts.values
    bits = 8 << values["IFM_PRECISION.precision"]
    if facts.name == "NPU_OP_CONV" and values["KERNEL_STRIDE.weight_order"]:
        return 16
    sparse = bool(values["WEIGHT_FORMAT.sparsity"]) and facts.name == "NPU_OP_CONV"
    unit = facts.npu.ofm_units.get(values["ACC_FORMAT.microblock"], 0)
    if bits == 32 or (facts.npu.macs <= 256 and unit == 16 and not sparse):
        return 32
    return 128 if sparse and bits == 8 else 64
