"""Faults found by the virtual board, with effects and remedies."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# Bits of the NPU's STATUS register (npu-reference 9.1).
RUNNING, IRQ_RAISED, BUS_ERROR, IN_RESET, PARSE_ERROR, END_REACHED, PMU_IRQ = (1 << bit for bit in range(7))


@dataclass(frozen=True)
class Rule:
    """A check for a fault in the firmware.

    Attributes:
        shows: Effect of the fault on silicon.
        status: STATUS bits that the virtual board sets, even for faults that silicon ignores.
    """

    shows: str
    status: int
    remedy: str


#: Stable id -> rule. ``npu.*`` are for the NPU, ``cache.*`` for the CPU's data cache, and ``cpu.*`` for faults that end the run.
RULES: dict[str, Rule] = {
    "npu.not_reset": Rule(
        "STATUS is unchanged; the NPU runs with its previous privilege and security",
        0,
        "Write RESET and wait until STATUS bit 3 is 0 before the first run.",
    ),
    "npu.unknown_register": Rule(
        "a read returns 0, and a write is ignored",
        0,
        "Compare the offset with the registers of this family; the U85's PMU registers are 0x1000 higher.",
    ),
    "npu.register_access": Rule(
        "the bus rejects the access, or half of a register changes",
        0,
        "Access registers as aligned 32-bit words, through a volatile uint32_t.",
    ),
    "npu.read_only_register": Rule("the write is ignored", 0, "Remove the write."),
    "npu.write_while_running": Rule(
        "the run in progress may use the new value", 0, "Wait for the interrupt or STATUS bit 0 = 0 before the next register write."
    ),
    "npu.run_while_running": Rule(
        "the second run command is lost",
        0,
        "Wait for the end of a run before you start the next run; protect a shared NPU with a semaphore.",
    ),
    "npu.irq_not_acknowledged": Rule(
        "the interrupt stays raised, so its handler is entered again, or the end of the next run is missed",
        0,
        "Write CMD bit 1 after each run, before you start the next run.",
    ),
    "npu.stream_alignment": Rule(
        "the stream is read from another address, which causes a parse error or a wrong result",
        PARSE_ERROR,
        "Align the command stream to 16 bytes: alignas(16), or .balign 16.",
    ),
    "npu.base_alignment": Rule(
        "a wrong result, and STATUS is unchanged",
        PARSE_ERROR,
        "Align the memory at BASEP to 16 bytes: alignas(16), or .balign 16.",
    ),
    "npu.stream_size": Rule("a parse error", PARSE_ERROR, "Set QSIZE to the length of the stream in bytes, not in words."),
    "npu.no_memory": Rule(
        "a bus error",
        BUS_ERROR,
        "Compare the address with the board's memories and the link map. Add the memory to the board file if it is missing.",
    ),
    "npu.unreachable_memory": Rule(
        "a bus error, because no port of the NPU reaches the memory",
        BUS_ERROR,
        "Use a section in the linker script to place the data in a memory that the NPU can access.",
    ),
    "npu.port": Rule(
        "a bus error, because the port does not reach the memory",
        BUS_ERROR,
        "In REGIONCFG, QCONFIG or MEM_ATTR, select a port that reaches the memory.",
    ),
    "npu.read_only_port": Rule(
        "a bus error, because AXI1 of a U55 is read-only",
        BUS_ERROR,
        "Use an AXI0 attribute (0 or 1) in REGIONCFG for written regions.",
    ),
    "npu.read_only_memory": Rule("a bus error, or the write is lost", BUS_ERROR, "Place data that the NPU writes in RAM."),
    "npu.extent": Rule(
        "a bus error, or other data is overwritten",
        BUS_ERROR,
        "Place the region in a memory with enough free bytes, or choose another memory mode.",
    ),
    "npu.configuration": Rule(
        "a wrong result or a parse error, because weights are in the order of another configuration",
        PARSE_ERROR,
        "Compile for the board's NPU, and compare the payload's CONFIG word with the CONFIG register before each run.",
    ),
    "npu.command": Rule(
        "a parse error", PARSE_ERROR, "Check that the stream and the weights are complete and belong to this model."
    ),
    "npu.stream_end": Rule(
        "the interrupt is raised before the end", 0, "Set QSIZE to the length of the whole stream, including the final NPU_OP_STOP."
    ),
    "cache.not_cleaned": Rule(
        "the NPU reads old memory contents, so results are sometimes wrong",
        0,
        "Clean the data cache by address for all NPU inputs before CMD.run.",
    ),
    "cache.not_invalidated": Rule(
        "the CPU reads old cache contents, so results are sometimes wrong",
        0,
        "Invalidate the data cache by address for the NPU's outputs before the CPU reads the outputs.",
    ),
    "cpu.memory": Rule("a bus fault", 0, "Check the pointer, and check that the board has memory at this address."),
    "cpu.read_only": Rule("a bus fault, or the write is lost", 0, "Place data that the CPU writes in RAM."),
    "cpu.instruction": Rule(
        "a usage fault",
        0,
        "Build for -mcpu=cortex-m33, or use backend='qemu', which emulates a Cortex-M55.",
    ),
    "cpu.exception": Rule("a fault handler is entered", 0, "Check the instruction in the message."),
    "cpu.breakpoint": Rule("the CPU stops in the debugger", 0, "Remove the breakpoint, or use BKPT 0xAB for semihosting calls."),
    "cpu.asleep": Rule("the CPU sleeps forever", 0, "Enable the NPU's line in NVIC_ISER, and enable interrupts with CPSIE i."),
    "cpu.vector": Rule("the CPU locks up", 0, "Write the handler's address to the vector table, and the table's address to VTOR."),
    "cpu.interrupt_storm": Rule(
        "the handler is entered forever", 0, "Write NPU CMD bit 1 in the handler, or increase SysTick's period."
    ),
}


@dataclass(frozen=True)
class Fault:
    """A violation of a rule.

    Attributes:
        id: Key in RULES.
        text: Observed and expected behavior.
        place: Function and line in the firmware, if known.
        instructions: Number of CPU instructions before the fault, or None if they are not counted.
    """

    id: str
    text: str
    place: str = ""
    instructions: int | None = None

    @property
    def rule(self) -> Rule:
        return RULES[self.id]

    @property
    def remedy(self) -> str:
        return self.rule.remedy

    def __str__(self) -> str:
        place = f" At {self.place}." if self.place else ""
        return f"{self.text}{place} On silicon: {self.rule.shows}. {self.remedy} [{self.id}]"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "on_silicon": self.rule.shows, "remedy": self.remedy}
