"""What one run of a machine did, and cycles where nobody gives Vela's: per operation the larger of computing and moving bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ethorch.npu.counters import BEAT_BYTES, Counter
from ethorch.npu.registers import Npu
from ethorch.targets.boards.description import Memory, NpuSlot

ISSUE_CYCLES = 100  # of an operation that computes: its first IFM block in, its last OFM block out; a round number


@dataclass
class Done:
    """What an operation did in one run of the machine, all its turns together.

    Attributes:
        title: the command.
        turns: how often it was executed.
        read, written: bytes by region.
        computes: False for what moves bytes.
    """

    title: str
    turns: int
    macs: int
    computes: bool
    read: dict[int, int] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)


def done(before: Mapping[int, Counter], after: Mapping[int, Counter]) -> list[Done]:
    """The operations that have run between two looks at a machine's counters, in the order of the stream."""
    result = []
    for index, counter in sorted(after.items()):
        old = before.get(index)
        turns = counter.runs - (old.runs if old else 0)
        if not turns:
            continue
        result.append(
            Done(
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
    """Bytes by region, added up."""
    found: dict[int, int] = {}
    for part in parts:
        for region, size in part.items():
            found[region] = found.get(region, 0) + size
    return dict(sorted(found.items()))


def estimate_cycles(operation: Done, npu: Npu, slot: NpuSlot, memories: Mapping[int, Memory]) -> int:
    """Cycles of the NPU's clock that an operation takes: a lower bound, since bytes move once and all multipliers are busy.

    Args:
        memories: the memory that each region lies in.
    """
    moved: dict[str, float] = {}
    for region, size in total([operation.read, operation.written]).items():
        if region in memories:
            memory = memories[region]
            moved[memory.name] = moved.get(memory.name, 0.0) + size / bytes_per_cycle(memory, npu, slot)
    computing = -(-operation.macs // npu.macs) + (ISSUE_CYCLES * operation.turns if operation.computes else 0)
    return int(max([computing, *moved.values()]))


def bytes_per_cycle(memory: Memory, npu: Npu, slot: NpuSlot) -> float:
    """What the NPU moves from or to a memory in a cycle of its clock: one beat of a port where the board does not say."""
    if memory.bytes_per_second is None:
        return float(BEAT_BYTES[npu.family])
    return memory.bytes_per_second / slot.clock_hz
