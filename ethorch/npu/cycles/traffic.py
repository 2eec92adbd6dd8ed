"""Bus traffic of operations, in bytes and cycles.

Sources: Vela 5.2's ethos_u55_performance.cpp and ethos_u85_performance.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ethorch.npu import registers
from ethorch.npu.arithmetic import ceil_div
from ethorch.npu.cycles.hardware import SUBKERNEL, U85_READ_WORDS, Size
from ethorch.npu.cycles.memories import MemoryRate
from ethorch.npu.cycles.work import (
    CONV,
    ELEMENTWISE,
    REDUCE_SUM,
    RESIZE,
    Map,
    Work,
    clip,
    divide_up,
    round_depth,
    volume,
)
from ethorch.npu.registers import Npu

#: Channels of U85 (MemChannel in ethos_u85_performance.hpp).
COPY, IFM_STREAM, WEIGHT, FAST_WEIGHT, IFM, SCALE, WRITE = range(1, 8)
MAPS, WEIGHTS, SCALES = "maps", "weights", "scales"
_USED = 0.8  # share of outstanding transactions, and of the resulting rate (ChannelBW)


@dataclass(frozen=True)
class Traffic:
    """The bytes that one memory channel moves."""

    memory: MemoryRate
    channel: int
    content: str  # MAPS, WEIGHTS or SCALES
    size_bytes: int


def transfer_bytes(npu: Npu, fm: Map, block: Size, elements: int, *, write: bool) -> int:
    """Return the bytes that a transfer occupies on the bus, including unused parts of bursts (Vela's EstimateMemoryTransfer)."""
    cores = npu.cores if npu.family != registers.U85 else 1
    _, width, depth = block
    if fm.bricks:
        is_whole = fm.size[1] * fm.bits * 16 // 8 == depth
        burst = fm.bits * width * depth if is_whole else 16 * fm.bits * width * (cores if write else 1)
    else:
        is_whole = fm.size[2] * fm.bits // 8 == depth and (not write or depth <= 16)
        burst = fm.bits * width * depth if is_whole else fm.bits * depth
        if write and not is_whole:
            burst = min(512, 16 * fm.bits * cores, burst)
    longest = fm.memory.burst_bytes
    return elements * fm.bits // 8 * longest // min(longest, burst // 8)


def first_block_cycles(work: Work) -> int:
    """Return the cycles needed to read the first IFM block (Vela's MinimumIfmCycles)."""
    return max((_block_cycles(work, fm, work.ifm_block, write=False) for fm in work.ifms), default=0)


def last_block_cycles(work: Work) -> int:
    """Return the cycles needed to write the last OFM block (Vela's MinimumOfmCycles)."""
    return _block_cycles(work, work.ofm, work.block, write=True)


def _block_cycles(work: Work, fm: Map, block: Size, *, write: bool) -> int:
    moved = transfer_bytes(work.npu, fm, block, volume(clip(fm.size, block)), write=write)
    return (fm.memory.write_latency if write else fm.memory.read_latency) + int(moved / fm.memory.bytes_per_cycle)


def weight_passes(work: Work) -> int:
    blocks = divide_up(work.ofm.size, clip(work.ofm.size, work.block))
    return blocks[0] * blocks[1]


def input_traffic(work: Work) -> Iterator[Traffic]:
    for number, (fm, elements) in enumerate(zip(work.ifms, _read_elements(work), strict=True)):
        if not fm.chained:
            channel = IFM_STREAM if work.kind in (ELEMENTWISE, RESIZE) or number else IFM
            size = transfer_bytes(work.npu, fm, work.ifm_block, elements, write=False)
            yield Traffic(fm.memory, channel, MAPS, size)


def chained_traffic(head: Work, work: Work) -> Iterator[Traffic]:
    """Yield the traffic of a kernel after the first in a chain. Vela counts only its first feature map outside the chain."""
    for fm in work.ifms:
        if not fm.chained:
            if fm.elements > 1:
                size = transfer_bytes(head.npu, fm, head.ifm_block, round_depth(fm.size, fm.bricks), write=False)
                yield Traffic(fm.memory, IFM_STREAM, MAPS, size)
            return
    if not work.ofm.chained:
        yield output_traffic(head, work)


def output_traffic(head: Work, work: Work) -> Traffic:
    fm = work.ofm
    return Traffic(fm.memory, WRITE, MAPS, transfer_bytes(head.npu, fm, head.block, round_depth(fm.size, fm.bricks), write=True))


def _read_elements(work: Work) -> Iterator[int]:
    first = work.ifms[0]
    if work.kind == ELEMENTWISE and work.npu.family == registers.U85:
        is_encoded = False  # one scalar is part of the command
        for fm in work.ifms:
            yield round_depth(fm.size, first.bricks) if fm.elements > 1 or is_encoded else 0
            is_encoded |= fm.elements == 1
    elif work.kind == ELEMENTWISE:
        for fm in work.ifms:
            is_encoded = fm.elements == 1 and fm.bits == 8
            yield 0 if is_encoded else round_depth(work.ofm.size if fm.elements > 1 else fm.size, first.bricks)
    elif work.kind == RESIZE:
        yield round_depth(first.size, first.bricks)
    else:
        blocks = divide_up(work.ofm.size, clip(work.ofm.size, work.block))
        count = blocks[0] * blocks[1] * (blocks[2] if work.kind in (CONV, REDUCE_SUM) else 1)
        height, width, _ = clip(first.size, work.ifm_block)
        kernels = ceil_div(work.window.size[0], SUBKERNEL) * ceil_div(work.window.size[1], SUBKERNEL)
        yield round_depth((height, width, first.size[2]), first.bricks) * kernels * count
        yield from (0 for _ in work.ifms[1:])


def channel_rate(npu: Npu, memory: MemoryRate, channel: int) -> float:
    """Return a channel's bytes per cycle: Vela's ChannelBW on U85, and the memory's rate on other NPUs."""
    if npu.family != registers.U85:
        return memory.bytes_per_cycle
    write = channel == WRITE
    latency = memory.write_latency if write else memory.read_latency
    pending = (memory.max_writes if write else memory.max_reads) * memory.ports * _USED
    if not write:
        pending = min(pending, U85_READ_WORDS[npu.macs][channel - 1] / max(memory.burst_bytes // 16, 1))
    return memory.bytes_per_cycle if not latency else min(memory.bytes_per_cycle, memory.burst_bytes * pending / latency * _USED)


def access_cycles(npu: Npu, traffic: Iterable[Traffic]) -> dict[MemoryRate, int]:
    """Return the access cycles of each memory (Vela's MeasureAccessCycles)."""
    sizes: dict[MemoryRate, dict[tuple[int, str], int]] = {}
    for access in traffic:
        channels, key = sizes.setdefault(access.memory, {}), (access.channel, access.content)
        channels[key] = channels.get(key, 0) + access.size_bytes
    cycles = {}
    for memory, channels in sizes.items():
        by_channel: dict[int, int] = {}
        if npu.family == registers.U85:
            for (channel, _), size in channels.items():
                by_channel[channel] = by_channel.get(channel, 0) + int(size / channel_rate(npu, memory, channel))
        cycles[memory] = max(int(sum(channels.values()) / memory.bytes_per_cycle), *by_channel.values(), 0)
    return cycles


def copy_cycles(npu: Npu, source: MemoryRate, target: MemoryRate, size_bytes: int, rows: int = 1) -> int:
    """Return the cycles of a transfer (Vela's MemToMemCycles)."""
    read = int(count_bus_bytes(source, size_bytes, rows) / channel_rate(npu, source, COPY)) + source.read_latency
    written = int(count_bus_bytes(target, size_bytes, rows) / channel_rate(npu, target, WRITE)) + target.write_latency
    return max(read, written)


def count_bus_bytes(memory: MemoryRate, size_bytes: int, rows: int) -> int:
    """Return the bytes that a transfer of equally long rows occupies on the bus.

    Vela emits only single-row transfers. With several rows, each row occupies whole bursts, as in ``transfer_bytes``.
    """
    burst = memory.burst_bytes
    return size_bytes if rows == 1 else rows * ceil_div(size_bytes, rows * burst) * burst
