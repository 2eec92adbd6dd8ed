"""Descriptions of devices and evaluation boards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ethorch.npu.registers import Npu, find_npu
from ethorch.support.errors import unknown_name

#: Kinds of memory. ``tcm`` is only accessible to the CPU.
MEMORY_KINDS = ("sram", "dram", "flash", "mram", "tcm")
#: NPU ports: ``sram`` is AXI0 of U55 and U65 or an SRAM port of U85; ``ext`` is AXI1 or the EXT port.
PORTS = ("sram", "ext")
#: Kinds of memory that neither the CPU nor the NPU can write to.
READ_ONLY_KINDS = ("flash", "mram")
UART_KINDS = ("cmsdk", "pl011", "none")
FAMILIES = ("u55", "u65", "u85")
ASSUMED = "assumed"  # prefix of the source if a value is unpublished


@dataclass(frozen=True)
class Sourced:
    """A table of a board file.

    Attributes:
        sources: Source of each number, keyed by name. The source of an unpublished number starts with ``assumed``.
    """

    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False, kw_only=True)

    def is_assumed(self, key: str) -> bool:
        """Return True if the value of ``key`` is an assumption rather than vendor data."""
        return self.sources.get(key, "").startswith(ASSUMED)


@dataclass(frozen=True)
class Cpu(Sourced):
    """The Cortex-M CPU of a board.

    Attributes:
        core: Name that compilers use, e.g. ``cortex-m55``.
        dcache_bytes, icache_bytes: Cache sizes. 0 if the CPU lacks this cache.
        cache_line_bytes: Line size of the data cache.
        interrupts: Number of NVIC interrupt lines.
        vector_table: Address of the vector table after a reset.
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
    """A memory on the CPU's bus.

    Attributes:
        name: User-defined name, e.g. ``sram`` or ``ddr``.
        kind: One of MEMORY_KINDS.
        aliases: Other base addresses of the same memory, e.g. secure and non-secure.
        npu_ports: NPU ports connected to the memory, preferred port first. Empty if the NPU cannot access the memory.
        bytes_per_second: Peak bandwidth of NPU accesses. This and the attributes below are None if unknown.
        read_latency_cycles, write_latency_cycles: NPU cycles from request to first data.
        burst_bytes: Longest efficient burst.
        outstanding: Maximum number of outstanding NPU requests.
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
        """True if programs can write to the memory."""
        return self.kind not in READ_ONLY_KINDS

    @property
    def bases(self) -> tuple[int, ...]:
        """The base address and its aliases."""
        return self.base, *self.aliases

    def offset(self, address: int) -> int | None:
        """Return the offset of an address in this memory, or None if the address is outside."""
        return next((address - base for base in self.bases if base <= address < base + self.size_bytes), None)

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.base:#010x}..{self.base + self.size_bytes:#010x})"


@dataclass(frozen=True)
class Uart(Sourced):
    """The serial console.

    Attributes:
        kind: ``cmsdk`` (Arm's CMSDK APB UART, as on Corstone), ``pl011`` (PrimeCell UART) or ``none`` (semihosting only).
    """

    kind: str
    base: int = 0
    aliases: tuple[int, ...] = ()


@dataclass(frozen=True)
class NpuSlot(Sourced):
    """An NPU on the board, in one of several possible sizes.

    Attributes:
        macs: Multiply-accumulates per cycle for each possible size.
        base, aliases: Addresses of the registers.
        interrupt: NVIC line number. Line 0 is exception 16.
        constants, feature_maps, staging: Names of the memories for weights, feature maps and staged data. If a name is empty,
            ``ethorch.targets.boards.memory_roles`` selects the memory.
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
        """The possible target names, e.g. ``ethos-u55-128``."""
        return tuple(f"ethos-{self.family}-{macs}" for macs in self.macs)


@dataclass(frozen=True)
class Board(Sourced):
    """A device or evaluation board.

    Attributes:
        name: Name in the board file. ``load`` finds built-in boards by name.
        fvp: Commands of Arm's FVPs, keyed by NPU family, e.g. ``{"u55": "FVP_Corstone_SSE-300_Ethos-U55"}``.
        qemu: QEMU machine name, or an empty string if QEMU does not support the board.
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
        """The target names of all NPUs, starting with the default."""
        return tuple(target for slot in self.npus for target in slot.targets)

    @property
    def is_platform(self) -> bool:
        """True if Arm's FVP or QEMU emulates the board, or if it is ``generic``."""
        return bool(self.fvp or self.qemu) or self.name == "generic"

    @property
    def ram_bytes(self) -> int:
        """The total size of all writable memories, including TCMs."""
        return sum(memory.size_bytes for memory in self.memories if memory.writable)

    @property
    def flash_bytes(self) -> int | None:
        """The total size of all nonvolatile memories, or None if no memory is nonvolatile."""
        return sum(memory.size_bytes for memory in self.memories if not memory.writable) or None

    def npu(self, name: str | None = None) -> tuple[NpuSlot, Npu]:
        """Return an NPU's slot and configuration.

        Args:
            name: Target name, e.g. ``ethos-u55-128`` or ``u55-128``. Default: the first of ``targets``.

        Raises:
            SpecError: The board does not support this NPU.
        """
        target = self.targets[0] if name is None else name.lower() if name.lower().startswith("ethos-") else f"ethos-{name.lower()}"
        for slot in self.npus:
            if target in slot.targets:
                return slot, find_npu(target)
        raise unknown_name(f"NPU of board {self.name}:", str(name), self.targets)

    def memory(self, name: str) -> Memory:
        """Return a memory by name. Raise SpecError if the name is unknown."""
        for memory in self.memories:
            if memory.name == name:
                return memory
        raise unknown_name(f"memory of board {self.name}:", name, [memory.name for memory in self.memories])

    def memory_at(self, address: int) -> Memory | None:
        """Return the memory that contains an address, or None."""
        return next((memory for memory in self.memories if memory.offset(address) is not None), None)

    def __str__(self) -> str:
        return self.name
