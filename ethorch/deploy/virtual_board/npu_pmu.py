"""The NPU's performance counters (npu-reference 9.1)."""

from __future__ import annotations

from collections.abc import Mapping

from ethorch.deploy.virtual_board import npu_registers as regs
from ethorch.npu.registers import Npu


class Pmu:
    """The performance counters, which do not advance between runs."""

    def __init__(self, npu: Npu):
        self.start, self.counters = regs.PMU_OFFSET[npu.family], regs.EVENT_COUNTERS[npu.family]
        self.reset()

    def reset(self) -> None:
        self.enabled = self.overflowed = self.interrupting = self.control = self.cycles = 0
        self.events = [0] * self.counters
        self.types = [0] * self.counters
        self.rest = {regs.PMCCNTR_CFG: 0, regs.PMCAXI_CHAN: 0}

    @property
    def irq(self) -> bool:
        return bool(self.overflowed & self.interrupting)

    def owns(self, offset: int) -> bool:
        at = offset - self.start
        return regs.PMCR <= at <= regs.PMCAXI_CHAN or regs.PMEVCNTR <= at < regs.PMEVTYPER + 4 * self.counters

    def read(self, offset: int) -> int:
        at = offset - self.start
        if at >= regs.PMEVTYPER:
            return self.types[(at - regs.PMEVTYPER) // 4]
        if at >= regs.PMEVCNTR:
            return self.events[(at - regs.PMEVCNTR) // 4]
        if at in (regs.PMCNTENSET, regs.PMCNTENCLR):
            return self.enabled
        if at in (regs.PMOVSSET, regs.PMOVSCLR):
            return self.overflowed
        if at in (regs.PMINTSET, regs.PMINTCLR):
            return self.interrupting
        if at == regs.PMCCNTR:
            return self.cycles & 0xFFFFFFFF
        if at == regs.PMCCNTR_HI:
            return self.cycles >> 32
        if at == regs.PMCR:
            return self.control | self.counters << 11
        return self.rest.get(at, 0)

    def write(self, offset: int, value: int) -> None:
        at = offset - self.start
        if at >= regs.PMEVTYPER:
            self.types[(at - regs.PMEVTYPER) // 4] = value
        elif at >= regs.PMEVCNTR:
            self.events[(at - regs.PMEVCNTR) // 4] = value
        elif at == regs.PMCNTENSET:
            self.enabled |= value
        elif at == regs.PMCNTENCLR:
            self.enabled &= ~value
        elif at == regs.PMOVSSET:
            self.overflowed |= value
        elif at == regs.PMOVSCLR:
            self.overflowed &= ~value
        elif at == regs.PMINTSET:
            self.interrupting |= value
        elif at == regs.PMINTCLR:
            self.interrupting &= ~value
        elif at == regs.PMCCNTR:
            self.cycles = self.cycles & ~0xFFFFFFFF | value
        elif at == regs.PMCCNTR_HI:
            self.cycles = self.cycles & 0xFFFFFFFF | value << 32
        elif at == regs.PMCR:
            self.control = value & 0b1001
            if value & 2:
                self.events = [0] * self.counters
            if value & 4:
                self.cycles = 0
        else:
            self.rest[at] = value

    def advance(self, cycles: int, events: Mapping[int, int]) -> None:
        """Add a run's cycles and its event counts, keyed by event number."""
        if not self.control & 1:
            return
        if self.enabled >> 31:
            total = self.cycles + cycles
            self.cycles = total & (1 << 48) - 1
            self.overflowed |= (total >> 48 > 0) << 31
        for number, kind in enumerate(self.types):
            if self.enabled >> number & 1:
                total = self.events[number] + events.get(kind, 0)
                self.events[number] = total & 0xFFFFFFFF
                self.overflowed |= (total >> 32 > 0) << number
