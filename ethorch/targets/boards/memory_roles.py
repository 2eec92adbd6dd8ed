"""Roles of a board's memories, and the corresponding Vela configuration as ini text."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ethorch.support.errors import BoardError
from ethorch.targets.boards.description import Board, Memory, NpuSlot
from ethorch.targets.family import Family
from ethorch.targets.npus import FAMILIES

SRAM_ONLY, SHARED, DEDICATED = "Sram_Only", "Shared_Sram", "Dedicated_Sram"
_READ_KINDS = ("mram", "flash", "dram")  # kinds of memory for weights, in order of preference
_VELA_KIND = {"mram": "OffChipFlash", "flash": "OffChipFlash", "dram": "Dram", "sram": "OnChipFlash"}
# Defaults from Vela's reference systems, for SRAM and for other memories. _OUTSTANDING is from Vela's U85 system.
_BURST_BYTES, _LATENCY_CYCLES = {"u55": (32, 128), "u65": (32, 128), "u85": (64, 128)}, (32, 64)
_OUTSTANDING = {"Sram": 8, "OnChipFlash": 8, "OffChipFlash": 2, "Dram": 24}
_DECIMALS = 6


@dataclass(frozen=True)
class Roles:
    """The memories that a program uses.

    Attributes:
        constants: Memory for weights and command streams.
        feature_maps: Memory for the scratch region.
        staging: Memory for staged data, or ``feature_maps`` if no data is staged.
    """

    constants: Memory
    feature_maps: Memory
    staging: Memory

    @property
    def memory_mode(self) -> str:
        """The name of Vela's memory mode."""
        if self.constants is not self.feature_maps:
            return SHARED
        return SRAM_ONLY if self.staging is self.feature_maps else DEDICATED


def roles(board: Board, slot: NpuSlot, memory_mode: str | None = None) -> Roles:
    """Select the memories for an NPU.

    Without a memory mode, the slot's ``constants``, ``feature_maps`` and ``staging`` apply. If these are empty, weights are in
    MRAM, flash, DRAM or SRAM (in order of preference), and feature maps are in the largest SRAM. If weights are in DRAM on
    U65 or U85, feature maps are also in DRAM and are staged through the SRAM.

    Args:
        memory_mode: Memory mode that overrides the slot's roles.

    Raises:
        BoardError: The NPU cannot write to any memory of the board.
    """
    fast, slow = _fast(board, slot), _slow(board, slot)
    if memory_mode is not None and memory_mode.startswith(DEDICATED) and slow is not None:
        return Roles(slow, slow, fast)
    if memory_mode == SRAM_ONLY or slow is None:
        return Roles(fast, fast, fast)
    if memory_mode == SHARED:
        return Roles(slow, fast, fast)
    in_dram = slow.kind == "dram" and slot.family != "u55" and not slot.constants
    constants = board.memory(slot.constants) if slot.constants else slow
    maps = board.memory(slot.feature_maps) if slot.feature_maps else slow if in_dram else fast
    return Roles(constants, maps, board.memory(slot.staging) if slot.staging else fast)


def configuration(board: Board, slot: NpuSlot) -> str:
    """Return ini text with a system configuration, named after the board, and the supported memory modes.

    Raises:
        BoardError: See ``roles``.
    """
    family, fast, slow = FAMILIES[slot.family], _fast(board, slot), _slow(board, slot)
    second = slow or fast
    kind = _VELA_KIND[second.kind]
    lines = [f"[System_Config.{board.name}]", f"core_clock={slot.clock_hz:.0f}", "axi0_port=Sram", f"axi1_port={kind}"]
    lines += _memory_lines("Sram", fast, slot, family) + _memory_lines(kind, second, slot, family)
    lines += _mode(SRAM_ONLY, "Axi0", "Axi0")
    if slow is not None:
        lines += _mode(SHARED, "Axi1", "Axi0")
        if kind == "Dram":
            lines += [*_mode(DEDICATED, "Axi1", "Axi1"), f"arena_cache_size={fast.size_bytes}"]
    return "\n".join(lines) + "\n"


def assumptions(board: Board, slot: NpuSlot, memory_mode: str | None = None) -> tuple[str, ...]:
    """Return the assumed values that affect a time estimate, e.g. ``flash: bytes_per_second: assumed: ...``."""
    lines = [f"NPU: clock_hz: {slot.sources['clock_hz']}"] if slot.is_assumed("clock_hz") else []
    used = roles(board, slot, memory_mode)
    for memory in dict.fromkeys((used.constants, used.feature_maps, used.staging)):
        for key in ("bytes_per_second", "read_latency_cycles"):
            if getattr(memory, key) is None:
                lines.append(f"{memory.name}: {key}: assumed: not in the board file")
            elif memory.is_assumed(key):
                lines.append(f"{memory.name}: {key}: {memory.sources[key]}")
    return tuple(lines)


def _fast(board: Board, slot: NpuSlot) -> Memory:
    for chosen in (slot.staging, slot.feature_maps):
        if chosen:
            return board.memory(chosen)
    writable = [m for m in board.memories if m.writable and "sram" in m.npu_ports]
    if not writable:
        raise BoardError(
            f"board {board.name}: expected a writable memory on the NPU port sram, got none. "
            "Set npu_ports = ['sram'] for an SRAM or DRAM."
        )
    return max(writable, key=lambda m: (m.kind == "sram", m.size_bytes))


def _slow(board: Board, slot: NpuSlot) -> Memory | None:
    fast = _fast(board, slot)
    if slot.constants and board.memory(slot.constants) is not fast:
        return board.memory(slot.constants)
    seen = [m for m in board.memories if "ext" in m.npu_ports and m is not fast and m.kind in _READ_KINDS]
    return min(seen, key=lambda m: (_READ_KINDS.index(m.kind), -m.size_bytes), default=None)


def _memory_lines(kind: str, memory: Memory, slot: NpuSlot, family: Family) -> list[str]:
    width = family.port_bytes
    share = 1.0 if memory.bytes_per_second is None else memory.bytes_per_second / slot.clock_hz / width
    ports = ceil(round(share, _DECIMALS)) if slot.family == "u85" else 1
    ports = max(ports, 1)
    slow = kind != "Sram"
    read = _LATENCY_CYCLES[slow] if memory.read_latency_cycles is None else memory.read_latency_cycles
    write = memory.write_latency_cycles if memory.write_latency_cycles is not None else read if memory.writable else 0
    burst = memory.burst_bytes or _BURST_BYTES[slot.family][slow]
    waiting = memory.outstanding or _OUTSTANDING[kind]
    return [
        f"{kind}_clock_scale={round(min(share / ports, 1.0), _DECIMALS):g}",
        *([f"{kind}_ports_used={ports}"] if slot.family == "u85" else []),
        f"{kind}_burst_length={burst}",
        f"{kind}_read_latency={read:g}",
        f"{kind}_write_latency={write:g}",
        f"{kind}_max_reads={waiting}",
        f"{kind}_max_writes={waiting if memory.writable else 0}",
    ]


def _mode(name: str, constants: str, feature_maps: str) -> list[str]:
    areas = f"const_mem_area={constants}", f"arena_mem_area={feature_maps}", "cache_mem_area=Axi0"
    return ["", f"[Memory_Mode.{name}]", *areas]
