"""Cycles of a stream where nobody gives Vela's estimate: per operation the larger of computing and moving bytes."""

from __future__ import annotations

from collections.abc import Mapping

from ethorch.board.description import Memory, NpuSlot
from ethorch.npu.counters import BEAT_BYTES
from ethorch.npu.memory import Span
from ethorch.npu.prepared import Step
from ethorch.npu.registers import Npu

ISSUE_CYCLES = 100  # of an operation that computes: its first IFM block in, its last OFM block out; a round number


def step_cycles(step: Step, npu: Npu, slot: NpuSlot, memories: Mapping[int, Memory]) -> int:
    """Cycles of the NPU's clock that an operation takes: a lower bound, since bytes move once and all multipliers are busy.

    Args:
        memories: the memory that each region lies in.
    """
    prepared = step.prepared
    moved: dict[str, float] = {}
    for access in (*prepared.reads, *prepared.writes):
        if (isinstance(access, Span) or access.in_memory) and access.region in memories:
            memory = memories[access.region]
            moved[memory.name] = moved.get(memory.name, 0) + access.size_bytes / bytes_per_cycle(memory, npu, slot)
    computing = -(-prepared.macs // npu.macs) + (ISSUE_CYCLES if prepared.computes else 0)
    return int(max(computing, *moved.values(), 0) if moved else computing)


def bytes_per_cycle(memory: Memory, npu: Npu, slot: NpuSlot) -> float:
    """What the NPU moves from or to a memory in a cycle of its clock: one beat of a port where the board does not say."""
    if memory.bytes_per_second is None:
        return float(BEAT_BYTES[npu.family])
    return memory.bytes_per_second / slot.clock_hz
