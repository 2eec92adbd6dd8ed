"""The NPU's registers: offset, name, access and reset value (npu-reference 9.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ethorch.npu.registers import U55, U65, U85, Npu

SPAN = 0x2000  # bytes of address space; the second half contains the PMU of the U85
PMU_OFFSET = {U55: 0, U65: 0, U85: 0x1000}
EVENT_COUNTERS = {U55: 4, U65: 4, U85: 8}
REGIONS = 8

#: Family -> ID of a chip: architecture 1.1.0, 1.0.6, 2.0.0 (npu-reference 1.3).
ID = {U55: 0x10104201, U65: 0x10066001, U85: 0x20007001}
_PERIPHERAL = {U55: 0x80, U65: 0x81, U85: 0x82}

STATUS, CMD, RESET, QBASE, QBASE_HI, QREAD, QCONFIG, QSIZE, PROT = 0x04, 0x08, 0x0C, 0x10, 0x14, 0x18, 0x1C, 0x20, 0x24
CONFIG, REGIONCFG, ATTRIBUTES, BASEP = 0x28, 0x3C, 0x40, 0x80
# PMU registers, without PMU_OFFSET.
PMCR, PMCNTENSET, PMCNTENCLR, PMOVSSET, PMOVSCLR, PMINTSET, PMINTCLR = 0x180, 0x184, 0x188, 0x18C, 0x190, 0x194, 0x198
PMCCNTR, PMCCNTR_HI, PMCCNTR_CFG, PMCAXI_CHAN, PMEVCNTR, PMEVTYPER = 0x1A0, 0x1A4, 0x1A8, 0x1AC, 0x300, 0x380

CMD_RUN, CMD_CLEAR_IRQ, CMD_CLOCK, CMD_POWER, CMD_STOP = 1, 2, 4, 8, 16
CMD_AFTER_RESET = CMD_CLOCK | CMD_POWER


@dataclass(frozen=True)
class Register:
    """A 32-bit register.

    Attributes:
        mask: Writable bits.
        reset: Value after a reset.
        live: Whether the register can be written during a run.
        survives_reset: Whether a reset leaves the value unchanged.
    """

    offset: int
    name: str
    writable: bool = True
    mask: int = 0xFFFFFFFF
    reset: int = 0
    live: bool = False
    survives_reset: bool = False


def table(npu: Npu) -> dict[int, Register]:
    """Return the registers of an NPU by offset."""
    return _table(npu.family, npu.config)


@cache
def _table(family: str, config: int) -> dict[int, Register]:
    wide = 0 if family == U55 else 0xFF  # high address bits: U65 and U85 have 40-bit addresses
    rows = [
        Register(0x00, "ID", writable=False, reset=ID[family]),
        Register(STATUS, "STATUS", writable=False),
        Register(CMD, "CMD", live=True, reset=CMD_AFTER_RESET),
        Register(RESET, "RESET", live=True, mask=3),
        Register(QBASE, "QBASE"),
        Register(QBASE_HI, "QBASE_HI", mask=wide),
        Register(QREAD, "QREAD", writable=False),
        Register(QCONFIG, "QCONFIG", mask=3),
        Register(QSIZE, "QSIZE"),
        Register(PROT, "PROT", writable=False, mask=3, survives_reset=True),
        Register(CONFIG, "CONFIG", writable=False, reset=config),
        Register(REGIONCFG, "REGIONCFG", mask=0xFFFF),
    ]
    for region in range(REGIONS):
        rows.append(Register(BASEP + 8 * region, f"BASEP{region}"))
        rows.append(Register(BASEP + 8 * region + 4, f"BASEP{region}_HI", mask=wide))
    if family == U85:
        rows += [Register(0x30, "COND_STATUS", writable=False), Register(0x38, "POWER_CTRL", live=True)]
        rows += [Register(ATTRIBUTES + 4 * n, f"MEM_ATTR{n}", mask=0x7) for n in range(4)]
        rows += [Register(0x50, "AXI_SRAM"), Register(0x54, "AXI_EXT")]
        rows += [Register(0x60, "CFG_SRAM_CAP", writable=False), Register(0x64, "CFG_EXT_CAP", writable=False)]
        debug = {0x140: "CLKFORCE", 0x144: "DEBUG_ADDRESS", 0x148: "DEBUG_MISC"}
    else:
        rows += [Register(0x2C, "LOCK", survives_reset=True, live=True)]
        rows += [Register(ATTRIBUTES + 4 * n, f"AXI_LIMIT{n}") for n in range(4)]
        debug = {0x140: "CLKFORCE", 0x144: "DEBUG_ADDRESS", 0x148: "DEBUG_MISC", 0x150: "DEBUG_CORE", 0x154: "DEBUG_BLOCK"}
    rows += [Register(offset, name, live=True) for offset, name in debug.items()]
    rows += _pmu(family)
    rows.append(Register(0xFC0, "REVISION", writable=False, reset=0))
    numbers = (4, 0, 0, 0, _PERIPHERAL[family], 0xB5, 0x0B, 0, 0x0D, 0xF0, 0x05, 0xB1)
    names = ("PID4", "PID5", "PID6", "PID7", "PID0", "PID1", "PID2", "PID3", "CID0", "CID1", "CID2", "CID3")
    pairs = zip(names, numbers, strict=True)
    rows += [Register(0xFD0 + 4 * n, name, writable=False, reset=value) for n, (name, value) in enumerate(pairs)]
    return {row.offset: row for row in rows}


def _pmu(family: str) -> list[Register]:
    start, counters = PMU_OFFSET[family], EVENT_COUNTERS[family]
    counted = (1 << counters) - 1 | 1 << 31
    rows = [
        Register(start + PMCR, "PMCR", mask=0xF, reset=counters << 11, live=True),
        Register(start + PMCCNTR, "PMCCNTR", live=True),
        Register(start + PMCCNTR_HI, "PMCCNTR_HI", mask=0xFFFF, live=True),
        Register(start + PMCCNTR_CFG, "PMCCNTR_CFG", mask=0x03FF03FF, live=True),
        Register(start + PMCAXI_CHAN, "PMCAXI_CHAN", live=True),
    ]
    pairs = (("PMCNTENSET", PMCNTENSET), ("PMCNTENCLR", PMCNTENCLR), ("PMOVSSET", PMOVSSET), ("PMOVSCLR", PMOVSCLR))
    rows += [
        Register(start + at, name, mask=counted, live=True) for name, at in (*pairs, ("PMINTSET", PMINTSET), ("PMINTCLR", PMINTCLR))
    ]
    rows += [Register(start + PMEVCNTR + 4 * n, f"PMEVCNTR{n}", live=True) for n in range(counters)]
    rows += [Register(start + PMEVTYPER + 4 * n, f"PMEVTYPER{n}", mask=0x3FF, live=True) for n in range(counters)]
    return rows


def is_debug_window(offset: int) -> bool:
    """Return True if the offset is in a debug window of internal memory or of command registers."""
    return 0x100 <= offset < 0x180 or 0x400 <= offset < 0xFC0
