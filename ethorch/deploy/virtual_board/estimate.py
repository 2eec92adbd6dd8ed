"""Compute the activity of an NPU run, and estimate cycles without Vela."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ethorch.npu.counters import BEAT_BYTES, Counter
from ethorch.npu.registers import Npu
from ethorch.targets.boards.description import Memory, NpuSlot

ISSUE_CYCLES = 100  # estimated cycles to read the first IFM block and to write the last OFM block of a computation


@dataclass
class OperationActivity:
    """The activity of an operation in one run, summed over its executions.

    Attributes:
        turns: Number of executions.
        read, written: Region -> bytes.
        computes: False for a DMA transfer.
    """

    title: str
    turns: int
    macs: int
    computes: bool
    read: dict[int, int] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)


def list_operations(before: Mapping[int, Counter], after: Mapping[int, Counter]) -> list[OperationActivity]:
    """Return the operations that ran between two snapshots of a machine's counters, in stream order."""
    result = []
    for index, counter in sorted(after.items()):
        old = before.get(index)
        turns = counter.runs - (old.runs if old else 0)
        if not turns:
            continue
        result.append(
            OperationActivity(
                counter.op.title,
                turns,
                counter.macs - (old.macs if old else 0),
                counter.blocks > 0,
                _more(old.read_bytes if old else {}, counter.read_bytes),
                _more(old.written_bytes if old else {}, counter.written_bytes),
            )
        )
    return result


def _more(before: Mapping[int, int], after: Mapping[int, int]) -> dict[int, int]:
    return {region: size - before.get(region, 0) for region, size in after.items() if region >= 0 and size > before.get(region, 0)}


def total(parts: list[dict[int, int]]) -> dict[int, int]:
    bytes_by_region: dict[int, int] = {}
    for part in parts:
        for region, size in part.items():
            bytes_by_region[region] = bytes_by_region.get(region, 0) + size
    return dict(sorted(bytes_by_region.items()))


def estimate_cycles(operation: OperationActivity, npu: Npu, slot: NpuSlot, memories: Mapping[int, Memory]) -> int:
    """Estimate an operation's minimum cycles, assuming one transfer per byte and use of all multipliers after ISSUE_CYCLES."""
    moved: dict[str, float] = {}
    for region, size in total([operation.read, operation.written]).items():
        if region in memories:
            memory = memories[region]
            moved[memory.name] = moved.get(memory.name, 0.0) + size / bytes_per_cycle(memory, npu, slot)
    computing = -(-operation.macs // npu.macs) + (ISSUE_CYCLES * operation.turns if operation.computes else 0)
    return int(max([computing, *moved.values()]))


def bytes_per_cycle(memory: Memory, npu: Npu, slot: NpuSlot) -> float:
    """Return a memory's bandwidth in bytes per NPU cycle, assuming one beat per cycle if the bandwidth is unknown."""
    if memory.bytes_per_second is None:
        return float(BEAT_BYTES[npu.family])
    return memory.bytes_per_second / slot.clock_hz
