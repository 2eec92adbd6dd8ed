"""Load boards from TOML files: built-in boards by name, and user-defined boards by path.

Every number requires a source, which can be ``assumed``. docs/guides/virtual-board.md contains an example.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from ethorch.npu.registers import NPUS
from ethorch.support.errors import BoardError, unknown_name
from ethorch.support.wording import shorten
from ethorch.targets.boards.description import FAMILIES, MEMORY_KINDS, PORTS, UART_KINDS, Board, Cpu, Memory, NpuSlot, Uart
from ethorch.targets.boards.memory_roles import roles
from ethorch.targets.boards.toml_tables import Document, Key, integer, many, name, not_negative, one_of, positive, text

FOLDER = Path(__file__).parent
MOST_FILE_BYTES = 1 << 20
_CORES = ("cortex-m0", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m52", "cortex-m55", "cortex-m85")
_ADDRESS = integer(0, 0xFFFFFFFF, " (an address)")
_PAGE = 0x1000  # page size in which emulators map memory
_MOST_BYTES = 1 << 32
ROLES = ("constants", "feature_maps", "staging")  # keys of [[npu]] that contain the name of a memory

_TOP = {
    "name": Key(name, required=True),
    "title": Key(text, required=True),
    "qemu": Key(text),
    "fvp": Key(lambda value: value),
    "cpu": Key(lambda value: value, required=True),
    "memory": Key(lambda value: value, required=True),
    "uart": Key(lambda value: value, required=True),
    "npu": Key(lambda value: value, required=True),
}
_CPU = {
    "core": Key(one_of(*_CORES), required=True),
    "clock_hz": Key(positive, required=True, number=True),
    "vector_table": Key(_ADDRESS, required=True, number=True),
    "dcache_bytes": Key(integer(0, 1 << 20), number=True),
    "icache_bytes": Key(integer(0, 1 << 20), number=True),
    "cache_line_bytes": Key(integer(16, 128), number=True),
    "interrupts": Key(integer(1, 480), number=True),
}
_MEMORY = {
    "name": Key(name, required=True),
    "kind": Key(one_of(*MEMORY_KINDS), required=True),
    "base": Key(_ADDRESS, required=True, number=True),
    "size_bytes": Key(integer(_PAGE, _MOST_BYTES, " (bytes)"), required=True, number=True),
    "aliases": Key(many(_ADDRESS), number=True),
    "npu_ports": Key(many(one_of(*PORTS)), required=True),
    "bytes_per_second": Key(positive, number=True),
    "read_latency_cycles": Key(not_negative, number=True),
    "write_latency_cycles": Key(not_negative, number=True),
    "burst_bytes": Key(integer(1, 4096), number=True),
    "outstanding": Key(integer(1, 256), number=True),
}
_UART = {
    "kind": Key(one_of(*UART_KINDS), required=True),
    "base": Key(_ADDRESS, number=True),
    "aliases": Key(many(_ADDRESS), number=True),
}
_NPU = {
    "family": Key(one_of(*FAMILIES), required=True),
    "macs": Key(many(integer(1, 1 << 16), least=1), required=True, number=True),
    "base": Key(_ADDRESS, required=True, number=True),
    "aliases": Key(many(_ADDRESS), number=True),
    "interrupt": Key(integer(0, 479), required=True, number=True),
    "clock_hz": Key(positive, required=True, number=True),
    **{role: Key(name) for role in ROLES},
}


@cache
def names() -> tuple[str, ...]:
    """Return the names of the built-in boards."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load(board: str | os.PathLike[str] | Board) -> Board:
    """Load a built-in board by name, or a ``.toml`` file by path.

    Args:
        board: Name or path, e.g. ``corstone-300`` or ``my-board.toml``. A Board is returned unchanged.

    Raises:
        SpecError: The name is unknown.
        BoardError: The file cannot be read or is invalid.
    """
    if isinstance(board, Board):
        return board
    if isinstance(board, str) and board in names():
        return _load(FOLDER / f"{board}.toml")
    path = Path(board)
    if not (path.suffix == ".toml" or len(path.parts) > 1 or not isinstance(board, str)):
        raise unknown_name("board", str(board), names())
    return _load(path)


def _load(path: Path) -> Board:
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError if the path contains a zero byte
        raise BoardError(f"cannot read the board {shorten(str(path), 300)}: {getattr(error, 'strerror', None) or error}.") from None
    if len(content) > MOST_FILE_BYTES:
        raise BoardError(f"the board file {path} has more than {MOST_FILE_BYTES} bytes; expected a few thousand.")
    return parse(content, str(path), path)


def parse(content: bytes, label: str = "the board", path: Path | None = None) -> Board:
    """Parse the contents of a board file. Raise BoardError if they are invalid. ``label`` is the file name in error messages."""
    document = Document(content, label)
    top = document.table(document.root, (), _TOP)
    cpu = Cpu(**document.table(top["cpu"], ("cpu",), _CPU))
    memories = tuple(Memory(**row) for row in _rows(document, top, "memory", _MEMORY))
    uart_row = document.table(top["uart"], ("uart",), _UART)
    if uart_row["kind"] != "none" and "base" not in uart_row:
        raise document.wrong(("uart", "base"), "the key is missing", "a UART with a base, or kind = 'none'")
    npus = tuple(NpuSlot(**row) for row in _rows(document, top, "npu", _NPU))
    board = Board(top["name"], top["title"], cpu, memories, Uart(**uart_row), npus, _fvp(document, top), top.get("qemu", ""), path)
    _check(document, board)
    return board


def _rows(document: Document, top: dict[str, Any], key: str, keys: dict[str, Key]) -> list[dict[str, Any]]:
    rows = top[key]
    if not isinstance(rows, list) or not rows:
        raise document.wrong((key,), "not a list of tables", f"one or more [[{key}]]")
    return [document.table(row, (key, number), keys) for number, row in enumerate(rows)]


def _fvp(document: Document, top: dict[str, Any]) -> dict[str, str]:
    fvp = top.get("fvp", {})
    if not isinstance(fvp, dict):
        raise document.wrong(("fvp",), f"found {fvp!r}", "a table with entries FAMILY = 'command of the FVP'")
    for family, command in fvp.items():
        if family not in FAMILIES:
            raise document.wrong(("fvp", family), "no such family", ", ".join(FAMILIES))
        if not isinstance(command, str) or not re.fullmatch(r"FVP_[\w.-]+", command, re.ASCII):
            allowed = "a command without a folder: FVP_, followed by letters, digits, '_', '-' and '.'"
            raise document.wrong(("fvp", family), f"found {command!r}", allowed)
    return dict(fvp)


def _check(document: Document, board: Board) -> None:
    seen: list[tuple[int, int, str]] = []
    used: set[str] = set()
    for number, memory in enumerate(board.memories):
        where = ("memory", number)
        if memory.name in used:
            raise document.wrong((*where, "name"), f"{memory.name!r} is the name of another memory", "a unique name")
        used.add(memory.name)
        if memory.kind == "tcm" and memory.npu_ports:
            raise document.wrong((*where, "npu_ports"), "found NPU ports of a TCM", "[], because TCMs do not have NPU ports")
        for key, value in (("base", memory.base), ("size_bytes", memory.size_bytes), *(("aliases", a) for a in memory.aliases)):
            if value % _PAGE:
                raise document.wrong((*where, key), f"{value:#x} is not a multiple of {_PAGE:#x}", f"a multiple of {_PAGE:#x}")
        for base in memory.bases:
            _place(document, (*where, "base"), seen, base, memory.size_bytes, f"memory {memory.name}")
    if board.uart.kind != "none":
        for base in (board.uart.base, *board.uart.aliases):
            _place(document, ("uart", "base"), seen, base, _PAGE, "the UART")
    for number, slot in enumerate(board.npus):
        supported = {npu.macs for npu in NPUS.values() if npu.family == slot.family}
        if wrong := sorted(set(slot.macs) - supported):
            allowed = ", ".join(map(str, sorted(supported)))
            raise document.wrong(
                ("npu", number, "macs"), f"Ethos-{slot.family.upper()} has no variant with {wrong[0]} MACs", allowed
            )
        if slot.interrupt >= board.cpu.interrupts:
            allowed = f"0..{board.cpu.interrupts - 1}, the lines of this CPU's NVIC"
            raise document.wrong(("npu", number, "interrupt"), f"found {slot.interrupt}", allowed)
        _check_roles(document, board, number, slot)
        alternative = any(slot.base == previous.base for previous in board.npus[:number])  # another configuration of the same NPU
        for base in () if alternative else (slot.base, *slot.aliases):
            _place(document, ("npu", number, "base"), seen, base, 2 * _PAGE, f"NPU {number + 1}")
    if len(set(board.targets)) != len(board.targets):
        raise document.wrong(("npu",), "two NPUs with the same name", "NPUs that differ in family or MACs")
    if board.memory_at(board.cpu.vector_table) is None:
        problem = f"no memory contains {board.cpu.vector_table:#010x}"
        raise document.wrong(("cpu", "vector_table"), problem, "an address in a memory")


def _check_roles(document: Document, board: Board, number: int, slot: NpuSlot) -> None:
    for role in ROLES:
        chosen = getattr(slot, role)
        fit = [m.name for m in board.memories if m.npu_ports and (m.writable or role == "constants")]
        if chosen and chosen not in fit:
            allowed = f"one of {', '.join(fit)} (memories that the NPU can {'read' if role == 'constants' else 'write'})"
            raise document.wrong(("npu", number, role), f"found {chosen!r}", allowed if fit else "a memory with NPU ports")
    if slot.feature_maps and slot.staging not in ("", slot.feature_maps):
        used = roles(board, slot)
        if used.constants is not used.feature_maps:  # no memory mode of Vela uses three memories
            problem = f"found {slot.feature_maps!r} with staging {slot.staging!r} and constants {used.constants.name!r}"
            raise document.wrong(("npu", number, "feature_maps"), problem, "the memory of the constants or of the staging")


def _place(
    document: Document, where: tuple[str | int, ...], seen: list[tuple[int, int, str]], base: int, size: int, what: str
) -> None:
    if base % _PAGE:
        raise document.wrong(where, f"{base:#x} is not a multiple of {_PAGE:#x}", f"a multiple of {_PAGE:#x}")
    end = base + size
    for low, high, occupant in (
        *seen,
        (0xE0000000, 0xE0100000, "the core's own registers"),
        (1 << 32, 1 << 40, "addresses above 4 GiB"),
    ):
        if base < high and low < end:
            raise document.wrong(where, f"{what} at {base:#010x}..{end:#010x} overlaps {occupant}", "a free address range")
    seen.append((base, end, what))
