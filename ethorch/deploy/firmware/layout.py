"""Assign the sections of the firmware to the memories of a board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ethorch.support.errors import EthorchError
from ethorch.targets.boards.description import Board, Memory
from ethorch.targets.vela_ini import MemorySystem

STACK_BYTES = 8192
_SECURE = 0x1000_0000  # address bit of the secure alias on Arm's Corstone subsystems
_TEXT_BYTES = 0x8000  # bytes reserved for code in a shared memory


@dataclass(frozen=True)
class Part:
    """A firmware section that must be assigned to a memory.

    Attributes:
        name: Name of the input sections, e.g. ``.rodata.npu_weights``.
        order: Memory kinds that can contain the section, best first.
        port: NPU port that must reach the memory, or empty if only the CPU accesses the section.
        loaded: Whether the ELF contains the section's bytes.
    """

    name: str
    title: str
    nbytes: int
    order: tuple[str, ...]
    port: str
    loaded: bool


@dataclass(frozen=True)
class Placement:
    """The memory assigned to a section."""

    part: Part
    memory: Memory


@dataclass(frozen=True)
class Layout:
    """The memories assigned to all sections.

    Attributes:
        text: Memory of the vector table and the code.
        data: Memory of variables and the stack.
    """

    board: Board
    secure: bool
    text: Memory
    data: Memory
    placements: tuple[Placement, ...]

    def address(self, base: int, aliases: Sequence[int]) -> int:
        """Return ``base`` or an alias, depending on the firmware's security state."""
        return _on_side(self.secure, base, aliases)

    @property
    def memories(self) -> tuple[Memory, ...]:
        used = {m.name: m for m in (self.text, self.data, *(placement.memory for placement in self.placements))}
        return tuple(sorted(used.values(), key=lambda m: self.address(m.base, m.aliases)))


def parts(sizes: Mapping[str, int], selftest_bytes: int, system: MemorySystem | None, in_dram: bool) -> tuple[Part, ...]:
    """Return the nonempty sections of a project, each with the kinds of memory that the memory mode assumes.

    Args:
        sizes: See ``Firmware.sizes``.
        in_dram: Whether feature maps are planned for DRAM. Required because ``system`` can be None.
    """
    in_sram = system is not None and system.constants_in_sram
    constant_kinds = ("sram", "dram") if in_sram else ("flash", "mram", "dram", "sram")
    port = "sram" if in_sram else "ext"
    arena = ("dram", "sram") if in_dram else ("sram", "dram")
    read = ("flash", "mram", "dram", "sram", "tcm")
    candidates = (
        Part(".bss.npu_fast", "staging memory of the NPU (region 2)", sizes["fast"], ("sram",), "sram", False),
        Part(".bss.npu_arena", "feature maps (region 1)", sizes["arena"], arena, "ext" if in_dram else "sram", False),
        Part(".rodata.npu_weights", "weights (region 0)", sizes["weights"], constant_kinds, port, True),
        Part(".rodata.npu_commands", "command streams", sizes["commands"], constant_kinds, port, True),
        Part(".rodata.cpu_constants", "constants of CPU operators", sizes["constants"], read, "", True),
        Part(".bss.cpu_tensors", "CPU tensors", sizes["tensors"], ("sram", "dram", "tcm"), "", False),
        Part(".rodata.selftest", "the self-test's inputs and outputs", selftest_bytes, read, "", True),
    )
    return tuple(part for part in candidates if part.nbytes)


def layout(board: Board, parts_to_place: Sequence[Part]) -> Layout:
    """Assign each section to the first suitable memory with enough free bytes.

    Among memories of one kind, the memory with the most free bytes is tried first.

    Raises:
        EthorchError: A section does not fit. The message lists the suitable memories' free bytes.
    """
    text = board.memory_at(board.cpu.vector_table)
    assert text is not None  # guaranteed by the validation of the board description
    secure = _is_secure(board, text)
    usable = [m for m in board.memories if _reachable(m, secure) or not m.npu_ports]
    left = {m.name: m.size_bytes for m in usable} | {text.name: max(text.size_bytes - _TEXT_BYTES, 0)}
    others = [m for m in usable if m is not text and m.writable] or [text]
    data = min(others, key=lambda m: (m.kind != "tcm", m.kind != "sram", -m.size_bytes))
    left[data.name] -= min(2 * STACK_BYTES, left[data.name])
    placements = []
    for part in parts_to_place:
        nbytes = part.nbytes + 64  # alignment on both sides
        kinds = [m for kind in part.order for m in sorted(usable, key=lambda m: -left[m.name]) if m.kind == kind]
        suits = [m for m in kinds if (not part.port or part.port in m.npu_ports) and (part.loaded or m.writable)]
        memory = next((m for m in suits if left[m.name] >= nbytes), None)
        if memory is None:
            reachable = " that the NPU can access" if part.port else ""
            have = ", ".join(f"{left[m.name]} bytes in {m}" for m in suits) or f"no {' or '.join(part.order)}{reachable}"
            raise EthorchError(
                f"{part.title}: {part.nbytes} bytes do not fit into any suitable memory of board {board.name} (available: {have}). "
                "Use another memory mode, a smaller arena, or a board with more memory."
            )
        left[memory.name] -= nbytes
        placements.append(Placement(part, memory))
    return Layout(board, secure, text, data, tuple(placements))


def _is_secure(board: Board, text: Memory) -> bool:
    return any(a & _SECURE != text.base & _SECURE for a in text.aliases) and bool(board.cpu.vector_table & _SECURE)


def _reachable(memory: Memory, secure: bool) -> bool:
    return not secure or any(base & _SECURE for base in memory.bases)


def _on_side(secure: bool, base: int, aliases: Sequence[int]) -> int:
    return next((a for a in (base, *aliases) if bool(a & _SECURE) == secure), base)
