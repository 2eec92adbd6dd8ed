"""Board: a part or an evaluation board as facts: CPU, memories, UART, NPUs, and where each number comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ethorch.npu.registers import NPUS, Npu
from ethorch.support.errors import unknown_name

#: What a memory may be: ``tcm`` is next to the CPU and seen by nobody else.
MEMORY_KINDS = ("sram", "dram", "flash", "mram", "tcm")
#: The NPU's two sides: ``sram`` is AXI0 of U55 and U65 and the SRAM ports of U85, ``ext`` is AXI1 and the EXT port.
PORTS = ("sram", "ext")
#: Kinds that a program cannot store to: neither CPU nor NPU.
READ_ONLY_KINDS = ("flash", "mram")
UART_KINDS = ("cmsdk", "pl011", "none")
FAMILIES = ("u55", "u65", "u85")
ASSUMED = "assumed"  # how the source of a number begins that nobody has published


@dataclass(frozen=True)
class Sourced:
    """A table of a board file with its sources.

    Attributes:
        sources: key -> where its number comes from, one for every number of the table. It starts with ``assumed`` where nobody
            has published it.
    """

    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False, kw_only=True)

    def is_assumed(self, key: str) -> bool:
        """Is this number ours, and nobody's who makes the part?"""
        return self.sources.get(key, "").startswith(ASSUMED)


@dataclass(frozen=True)
class Cpu(Sourced):
    """The Cortex-M.

    Attributes:
        core: ``cortex-m55``, as compilers spell it.
        clock_hz: of the core.
        dcache_bytes, icache_bytes: 0 where there is none.
        cache_line_bytes: of the data cache.
        interrupts: how many lines the NVIC has.
        vector_table: address that the core starts from.
    """

    core: str
    clock_hz: float
    vector_table: int
    dcache_bytes: int = 0
    icache_bytes: int = 0
    cache_line_bytes: int = 32
    interrupts: int = 240


@dataclass(frozen=True)
class Memory(Sourced):
    """A memory as the CPU's bus sees it.

    Attributes:
        name: the user's word for it: ``sram``, ``ddr``.
        kind: one of MEMORY_KINDS.
        base: its lowest address.
        size_bytes: how much there is.
        aliases: other addresses of the same bytes, as of the secure and the non-secure side.
        npu_ports: ports of the NPU that reach it, the usual one first; empty where the NPU cannot see it.
        bytes_per_second: what the NPU can move from or to it at best; None where nobody knows.
        read_latency_cycles, write_latency_cycles: of the NPU's clock, from request to first data; None where nobody knows.
        burst_bytes: how long a burst is that the memory moves at best; None where nobody knows.
        outstanding: how many requests of the NPU may wait for it at a time; None where nobody knows.
    """

    name: str
    kind: str
    base: int
    size_bytes: int
    aliases: tuple[int, ...] = ()
    npu_ports: tuple[str, ...] = ()
    bytes_per_second: float | None = None
    read_latency_cycles: float | None = None
    write_latency_cycles: float | None = None
    burst_bytes: int | None = None
    outstanding: int | None = None

    @property
    def writable(self) -> bool:
        """Can a program store to it?"""
        return self.kind not in READ_ONLY_KINDS

    @property
    def bases(self) -> tuple[int, ...]:
        """All addresses at which it begins."""
        return self.base, *self.aliases

    def offset(self, address: int) -> int | None:
        """Where in it an address lies, None outside."""
        return next((address - base for base in self.bases if base <= address < base + self.size_bytes), None)

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.base:#010x}..{self.base + self.size_bytes:#010x})"


@dataclass(frozen=True)
class Uart(Sourced):
    """The serial line that a program prints on.

    Attributes:
        kind: ``cmsdk``: Arm's CMSDK APB UART, as on Corstone; ``pl011``: PrimeCell UART; ``none``: prints by semihosting alone.
        base, aliases: its addresses.
    """

    kind: str
    base: int = 0
    aliases: tuple[int, ...] = ()


@dataclass(frozen=True)
class NpuSlot(Sourced):
    """An NPU's place on the board.

    Attributes:
        family: ``u55``, ``u65`` or ``u85``.
        macs: the multiply-accumulates per cycle it may be built with.
        base, aliases: addresses of its registers.
        interrupt: its number at the NVIC, counted from 0 behind the core's own sixteen.
        clock_hz: of the NPU.
        constants, feature_maps, staging: names of the memories that the weights, the feature maps and the NPU's fast scratch
            memory are meant for; empty where ``ethorch.targets.boards.memory_roles`` chooses.
    """

    family: str
    macs: tuple[int, ...]
    base: int
    interrupt: int
    clock_hz: float
    aliases: tuple[int, ...] = ()
    constants: str = ""
    feature_maps: str = ""
    staging: str = ""

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of what it may be: ``ethos-u55-128``."""
        return tuple(f"ethos-{self.family}-{macs}" for macs in self.macs)


@dataclass(frozen=True)
class Board(Sourced):
    """A board.

    Attributes:
        name: as ``load`` takes it.
        title: for people.
        cpu, memories, uart, npus: its parts.
        fvp: the command of Arm's model for each family, where there is one: ``{"u55": "FVP_Corstone_SSE-300_Ethos-U55"}``.
        qemu: QEMU's name of the machine, empty where it has none.
        path: the file it was read from.
    """

    name: str
    title: str
    cpu: Cpu
    memories: tuple[Memory, ...]
    uart: Uart
    npus: tuple[NpuSlot, ...]
    fvp: Mapping[str, str] = field(default_factory=dict)
    qemu: str = ""
    path: Path | None = field(default=None, compare=False)

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """Every NPU that it may have, by name; the first is taken by those who name none."""
        return tuple(target for slot in self.npus for target in slot.targets)

    @property
    def ram_bytes(self) -> int:
        """All that a program can write, TCMs too."""
        return sum(memory.size_bytes for memory in self.memories if memory.writable)

    @property
    def flash_bytes(self) -> int | None:
        """All that keeps its content without power; None if the board has no row for it, as one that boots from a card."""
        return sum(memory.size_bytes for memory in self.memories if not memory.writable) or None

    def npu(self, name: str | None = None) -> tuple[NpuSlot, Npu]:
        """The place of the NPU of this name, and what it is; SpecError where the board cannot have it.

        Args:
            name: ``ethos-u55-128`` or ``u55-128``; None takes the first that the board may have.
        """
        wanted = self.targets[0] if name is None else name.lower() if name.lower().startswith("ethos-") else f"ethos-{name.lower()}"
        for slot in self.npus:
            if wanted in slot.targets:
                return slot, next(npu for npu in NPUS.values() if npu.name == wanted)
        raise unknown_name(f"NPU of board {self.name}:", str(name), self.targets)

    def memory(self, name: str) -> Memory:
        """A memory by name; SpecError for a name it does not have."""
        found = next((memory for memory in self.memories if memory.name == name), None)
        if found is None:
            raise unknown_name(f"memory of board {self.name}:", name, [memory.name for memory in self.memories])
        return found

    def memory_at(self, address: int) -> Memory | None:
        """The memory that an address lies in, None where there is none."""
        return next((memory for memory in self.memories if memory.offset(address) is not None), None)

    def __str__(self) -> str:
        return self.name
