"""Faults: what the virtual board has found wrong, with the cause and the way out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# STATUS of the NPU (npu-reference 9.1).
RUNNING, IRQ_RAISED, BUS_ERROR, IN_RESET, PARSE_ERROR, END_REACHED, PMU_IRQ = (1 << bit for bit in range(7))


@dataclass(frozen=True)
class Rule:
    """What is checked.

    Attributes:
        shows: what silicon shows the firmware.
        status: bits of the NPU's STATUS that the virtual board sets, so that firmware notices even where silicon says nothing.
        way_out: what helps.
    """

    shows: str
    status: int
    way_out: str


#: Every check by its stable id. ``npu.*`` are the NPU's, ``cache.*`` those of the CPU's data cache, ``cpu.*`` end the run.
RULES: dict[str, Rule] = {
    "npu.not_reset": Rule(
        "STATUS says nothing; the NPU runs with the privilege and security of whoever used it last",
        0,
        "Write RESET and wait until STATUS bit 3 is 0 before the first run.",
    ),
    "npu.unknown_register": Rule(
        "reads 0, ignores the write",
        0,
        "Compare the offset with the registers of this family; those of U85's PMU lie 0x1000 higher.",
    ),
    "npu.register_access": Rule(
        "the bus refuses the access or half a register changes",
        0,
        "Access registers as aligned 32-bit words, through a volatile uint32_t.",
    ),
    "npu.read_only_register": Rule("ignores the write", 0, "Leave the write out."),
    "npu.write_while_running": Rule(
        "the run in progress takes up half of it", 0, "Wait for the interrupt or STATUS bit 0 = 0 before the next register write."
    ),
    "npu.run_while_running": Rule(
        "the second run command is lost", 0, "Wait for the end of a run before the next; share one NPU by a semaphore."
    ),
    "npu.irq_not_acknowledged": Rule(
        "the interrupt stays raised, so its handler is entered again, or the end of the next run is not seen",
        0,
        "Write CMD bit 1 after each run, before the next.",
    ),
    "npu.stream_alignment": Rule(
        "the stream is read from another address, so a parse error or a wrong result",
        PARSE_ERROR,
        "Align the command stream to 16 bytes: alignas(16), or .balign 16.",
    ),
    "npu.base_alignment": Rule(
        "a wrong result, and STATUS says nothing",
        PARSE_ERROR,
        "Align what BASEP points at to 16 bytes: alignas(16), or .balign 16.",
    ),
    "npu.stream_size": Rule("a parse error", PARSE_ERROR, "QSIZE is the stream's length in bytes: words times four."),
    "npu.no_memory": Rule(
        "a bus error",
        BUS_ERROR,
        "Check the address against the board's memories and the linker's map; a board file may lack a memory.",
    ),
    "npu.unreachable_memory": Rule(
        "a bus error: no port of the NPU leads there",
        BUS_ERROR,
        "Place it in a memory that the NPU sees: a section of the linker script.",
    ),
    "npu.port": Rule(
        "a bus error: this port does not reach that memory", BUS_ERROR, "Choose the port in REGIONCFG, QCONFIG or MEM_ATTR."
    ),
    "npu.read_only_port": Rule(
        "a bus error: AXI1 of U55 only reads", BUS_ERROR, "Give what is written an AXI0 attribute in REGIONCFG: 0 or 1."
    ),
    "npu.read_only_memory": Rule("a bus error, or the write is lost", BUS_ERROR, "Place what the NPU writes in RAM."),
    "npu.extent": Rule(
        "a bus error, or other data overwritten", BUS_ERROR, "Place it where as many bytes are free, or choose another memory mode."
    ),
    "npu.configuration": Rule(
        "a wrong result or a parse error: weights are ordered for other multipliers",
        PARSE_ERROR,
        "Compile for the NPU of the board, and compare the payload's CONFIG word with the register before each run.",
    ),
    "npu.command": Rule("a parse error", PARSE_ERROR, "Check that the stream is whole and of this model, and its weights too."),
    "npu.stream_end": Rule(
        "the interrupt comes without the end being reached", 0, "Set QSIZE to the whole stream, with the NPU_OP_STOP at its end."
    ),
    "cache.not_cleaned": Rule(
        "the NPU reads what was in memory before: a wrong result, now and then",
        0,
        "Clean the data cache by address over all that the NPU reads, before CMD.run.",
    ),
    "cache.not_invalidated": Rule(
        "the CPU reads what was in its cache before the run: a wrong result, now and then",
        0,
        "Invalidate the data cache by address over what the NPU has written, before the CPU reads it.",
    ),
    "cpu.memory": Rule("a bus fault", 0, "Check the pointer, and that the board has memory there."),
    "cpu.read_only": Rule("a bus fault, or the write is lost", 0, "Place what is written in RAM."),
    "cpu.instruction": Rule(
        "a usage fault",
        0,
        "Build for -mcpu=cortex-m33, which every board here runs, or run on backend='qemu', which has a Cortex-M55.",
    ),
    "cpu.exception": Rule("a fault handler", 0, "Look at the instruction that the message names."),
    "cpu.breakpoint": Rule("it stops in the debugger", 0, "Leave the breakpoint out; semihosting calls are BKPT 0xAB."),
    "cpu.asleep": Rule(
        "it sleeps for ever", 0, "Enable what shall wake it: the NPU's line in NVIC_ISER, and interrupts by CPSIE i."
    ),
    "cpu.vector": Rule("a lock-up", 0, "Put the handler into the vector table, and the table's address into VTOR."),
    "cpu.interrupt_storm": Rule("the handler is entered for ever", 0, "Acknowledge the interrupt in its handler: NPU CMD bit 1."),
}


@dataclass(frozen=True)
class Fault:
    """Something wrong.

    Attributes:
        id: stable name, a key of RULES.
        text: what was found, and what is allowed.
        place: the function and line of the firmware that did it, where known.
        instructions: how many the CPU had executed, None where nobody counts.
    """

    id: str
    text: str
    place: str = ""
    instructions: int | None = None

    @property
    def rule(self) -> Rule:
        """What the check is about."""
        return RULES[self.id]

    @property
    def way_out(self) -> str:
        """What helps."""
        return self.rule.way_out

    def __str__(self) -> str:
        place = f" At {self.place}." if self.place else ""
        return f"{self.text}{place} On silicon: {self.rule.shows}. {self.way_out} [{self.id}]"

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "on_silicon": self.rule.shows, "way_out": self.way_out}
