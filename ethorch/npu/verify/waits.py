"""Waits between transfers and kernels.

Source: ``CalcCommandWaits``, ``GenerateDMA`` and ``GenerateCommon`` of regor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ethorch.npu.memory import INTERNAL
from ethorch.npu.registers import U55, U65, U85
from ethorch.npu.runs import Run
from ethorch.npu.verify.instruction import Facts, Instruction, reject
from ethorch.npu.verify.rejection import Rejection
from ethorch.npu.verify.shram import tables_share_banks

MOST_KERNELS = 2
MOST_TRANSFERS = {U55: 1, U65: 2, U85: 4}
_STREAMS = ("WEIGHT", "SCALE")


@dataclass
class Unfinished:
    """The positions of operations that may be running, oldest first."""

    transfers: list[int] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)

    def wait(self, instruction: Instruction) -> None:
        for wait in instruction.waits:
            running = self.transfers if wait.is_dma else self.kernels
            del running[: max(0, len(running) - wait.count)]

    def start(self, facts: Facts, index: int) -> None:
        running, most = (self.transfers, MOST_TRANSFERS[facts.npu.family]) if facts.is_dma else (self.kernels, MOST_KERNELS)
        running.append(index)
        del running[:-most]


def check_waits(instructions: Sequence[Instruction], all_facts: Sequence[Facts]) -> Iterator[Rejection]:
    unfinished = Unfinished()
    for index, (instruction, facts) in enumerate(zip(instructions, all_facts, strict=True)):
        unfinished.wait(instruction)
        for is_dma, running in ((True, unfinished.transfers), (False, unfinished.kernels)):
            for position, earlier in enumerate(running):
                run = find_conflict(all_facts[earlier], facts)
                if run is not None:
                    count = len(running) - 1 - position
                    yield _missing_wait(facts, index, instruction, is_dma, count, earlier, run)
        unfinished.start(facts, index)


def _missing_wait(
    facts: Facts, index: int, instruction: Instruction, is_dma: bool, count: int, earlier: int, run: Run
) -> Rejection:
    name = "NPU_OP_DMA_WAIT" if is_dma else "NPU_OP_KERNEL_WAIT"
    counts = [wait.count for wait in instruction.waits if wait.is_dma == is_dma]
    text = f"at most {count}, because operation {earlier} accesses bytes of {run.register}"
    return reject(facts, index, "wait", name, min(counts) if counts else "missing", text)


def find_conflict(first: Facts, second: Facts) -> Run | None:
    """Return an access of ``second`` that must wait for ``first``, or None if they do not conflict."""
    if first.is_dma or second.is_dma:
        return _overlap(second.reads, _writes(first)) or _overlap(_writes(second), (*first.reads, *_writes(first)))
    return _overlap([run for run in second.reads if run.register.startswith(_STREAMS)], first.writes)


def _writes(facts: Facts) -> tuple[Run, ...]:
    if not facts.is_dma and tables_share_banks(facts.npu):
        return (*facts.writes, Run("AB_START", INTERNAL, 0, 0, facts.npu.internal_bytes))
    return facts.writes


def _overlap(runs: Sequence[Run], others: Sequence[Run]) -> Run | None:
    for run in runs:
        for second in others:
            if run.region == second.region and run.low < second.high and second.low < run.high:
                return run
    return None
