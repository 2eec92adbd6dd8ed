"""Faults found by the virtual board, with cause and remedy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# STATUS of the NPU (npu-reference 9.1).
RUNNING, IRQ_RAISED, BUS_ERROR, IN_RESET, PARSE_ERROR, END_REACHED, PMU_IRQ = (1 << bit for bit in range(7))


@dataclass(frozen=True)
class Rule:
    """A check.

    Attributes:
        shows: Behaviour of silicon.
        status: STATUS bits that only the virtual board sets, so that firmware notices faults that silicon ignores.
        way_out: Remedy.
    """

    shows: str
    status: int
    way_out: str


#: Rules by stable id. ``npu.*`` concern the NPU, ``cache.*`` the CPU's data cache; ``cpu.*`` end the run.
RULES: dict[str, Rule] = {
    "npu.not_reset": Rule(
        "STATUS is unchanged; the NPU runs with its previous privilege and security",
        0,
        "Write RESET and wait until STATUS bit 3 is 0 before the first run.",
    ),
    "npu.unknown_register": Rule(
        "reads 0, ignores the write",
        0,
        "Compare the offset with the registers of this family; the U85's PMU registers are 0x1000 higher.",
    ),
    "npu.register_access": Rule(
        "the bus rejects the access, or half of a register changes",
        0,
        "Access registers as aligned 32-bit words, through a volatile uint32_t.",
    ),
    "npu.read_only_register": Rule("ignores the write", 0, "Remove the write."),
    "npu.write_while_running": Rule(
        "the run in progress uses part of it", 0, "Wait for the interrupt or STATUS bit 0 = 0 before the next register write."
    ),
    "npu.run_while_running": Rule(
        "the second run command is lost", 0, "Wait for the end of a run before the next; protect a shared NPU with a semaphore."
    ),
    "npu.irq_not_acknowledged": Rule(
        "the interrupt stays raised, so its handler is entered again, or the end of the next run is missed",
        0,
        "Write CMD bit 1 after each run, before the next.",
    ),
    "npu.stream_alignment": Rule(
        "the stream is read from another address: a parse error or a wrong result",
        PARSE_ERROR,
        "Align the command stream to 16 bytes: alignas(16), or .balign 16.",
    ),
    "npu.base_alignment": Rule(
        "a wrong result, and STATUS is unchanged",
        PARSE_ERROR,
        "Align the memory at BASEP to 16 bytes: alignas(16), or .balign 16.",
    ),
    "npu.stream_size": Rule("a parse error", PARSE_ERROR, "QSIZE is the stream's length in bytes: words times four."),
    "npu.no_memory": Rule(
        "a bus error",
        BUS_ERROR,
        "Check the address against the board's memories and the linker's map; a board file may lack a memory.",
    ),
    "npu.unreachable_memory": Rule(
        "a bus error: no port of the NPU reaches it",
        BUS_ERROR,
        "Place it in a memory that the NPU can access, by a section of the linker script.",
    ),
    "npu.port": Rule(
        "a bus error: this port does not reach that memory", BUS_ERROR, "Choose the port in REGIONCFG, QCONFIG or MEM_ATTR."
    ),
    "npu.read_only_port": Rule(
        "a bus error: AXI1 of U55 only reads", BUS_ERROR, "Use an AXI0 attribute (0 or 1) in REGIONCFG for written regions."
    ),
    "npu.read_only_memory": Rule("a bus error, or the write is lost", BUS_ERROR, "Place data that the NPU writes in RAM."),
    "npu.extent": Rule(
        "a bus error, or other data overwritten",
        BUS_ERROR,
        "Place it in a memory with enough free bytes, or choose another memory mode.",
    ),
    "npu.configuration": Rule(
        "a wrong result or a parse error: weights are in the order of another configuration",
        PARSE_ERROR,
        "Compile for the NPU of the board, and compare the payload's CONFIG word with the register before each run.",
    ),
    "npu.command": Rule(
        "a parse error", PARSE_ERROR, "Check that the stream and the weights are complete and belong to this model."
    ),
    "npu.stream_end": Rule(
        "the interrupt is raised before the end", 0, "Set QSIZE to the whole stream, with the NPU_OP_STOP at its end."
    ),
    "cache.not_cleaned": Rule(
        "the NPU reads old memory contents: an intermittent wrong result",
        0,
        "Clean the data cache by address over all NPU inputs before CMD.run.",
    ),
    "cache.not_invalidated": Rule(
        "the CPU reads old cache contents: an intermittent wrong result",
        0,
        "Invalidate the data cache by address over the NPU's outputs before the CPU reads them.",
    ),
    "cpu.memory": Rule("a bus fault", 0, "Check the pointer, and that the board has memory there."),
    "cpu.read_only": Rule("a bus fault, or the write is lost", 0, "Place written data in RAM."),
    "cpu.instruction": Rule(
        "a usage fault",
        0,
        "Build for -mcpu=cortex-m33, which every board here runs, or run on backend='qemu', which has a Cortex-M55.",
    ),
    "cpu.exception": Rule("a fault handler", 0, "Check the instruction in the message."),
    "cpu.breakpoint": Rule("the CPU stops in the debugger", 0, "Remove the breakpoint; semihosting calls are BKPT 0xAB."),
    "cpu.asleep": Rule(
        "the CPU sleeps forever", 0, "Enable a wake-up source: the NPU's line in NVIC_ISER, and interrupts by CPSIE i."
    ),
    "cpu.vector": Rule("a lock-up", 0, "Write the handler's address to the vector table, and the table's address to VTOR."),
    "cpu.interrupt_storm": Rule("the handler is entered forever", 0, "Acknowledge the interrupt in its handler: NPU CMD bit 1."),
}


@dataclass(frozen=True)
class Fault:
    """A violation of a rule.

    Attributes:
        id: Key of RULES.
        text: Finding and expectation.
        place: Function and line of the firmware, if known.
        instructions: Instructions executed before it, or None if they are not counted.
    """

    id: str
    text: str
    place: str = ""
    instructions: int | None = None

    @property
    def rule(self) -> Rule:
        return RULES[self.id]

    @property
    def way_out(self) -> str:
        return self.rule.way_out

    def __str__(self) -> str:
        place = f" At {self.place}." if self.place else ""
        return f"{self.text}{place} On silicon: {self.rule.shows}. {self.way_out} [{self.id}]"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "on_silicon": self.rule.shows, "way_out": self.way_out}
