"""Read firmware from ELF files: segments, entry point, symbols and source lines.

Files are not trusted, so sizes are limited by the file and the board's memories. Parsing failures raise ElfError.
"""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ethorch.support.errors import ElfError, EmulatorError

MOST_FILE_BYTES = 1 << 29
MOST_SYMBOLS = 1 << 20
_T = TypeVar("_T")


@dataclass(frozen=True)
class Segment:
    """A block of bytes in the file, with its physical load address."""

    address: int
    data: bytes


class Firmware:
    """An ELF file for a Cortex-M.

    Attributes:
        entry: Address of the first instruction, with the Thumb bit cleared.
        segments: Loadable segments in address order.

    Raises:
        ElfError: The file is unreadable, damaged, or not a linked 32-bit little-endian Arm ELF.
        EmulatorError: The package pyelftools is not installed.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        try:
            with open(self.path, "rb") as file:
                content = file.read(MOST_FILE_BYTES + 1)
        except OSError as error:
            raise ElfError(f"cannot read {path}: {error.strerror}.") from None
        if len(content) > MOST_FILE_BYTES:
            raise ElfError(f"{path} has more than {MOST_FILE_BYTES} bytes. Pass the firmware's ELF file.")
        if content[:4] != b"\x7fELF":
            raise ElfError(
                f"{path} starts with {content[:4]!r}, so it is not an ELF file. Pass the linker's output, not a .bin or .hex file."
            )
        try:
            from elftools.elf.elffile import ELFFile
        except ImportError:
            raise EmulatorError('reading ELF files requires pyelftools. Run pip install "ethorch[firmware]".') from None
        self._file = self._safely(lambda: ELFFile(io.BytesIO(content)))
        header = self._file.header
        file_kind = header["e_machine"], self._file.elfclass, self._file.little_endian, header["e_type"]
        if file_kind != ("EM_ARM", 32, True, "ET_EXEC"):
            raise ElfError(
                f"{path}: expected a linked program for 32-bit little-endian Arm (ET_EXEC, EM_ARM), got a {file_kind[1]}-bit "
                f"{'little' if file_kind[2] else 'big'}-endian file ({file_kind[3]}, {file_kind[0]})."
            )
        self.entry: int = header["e_entry"] & ~1
        self.segments: tuple[Segment, ...] = self._safely(lambda: tuple(self._segments(len(content))))
        self._line_tables: dict[int, list[tuple[int, int, str]]] = {}
        if not self.segments:
            raise ElfError(f"{path}: expected a PT_LOAD segment with data, got none. Link the firmware with a linker script.")

    def _safely(self, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except ElfError:
            raise
        except Exception as error:
            raise ElfError(f"{self.path} is damaged ({type(error).__name__}: {error}).") from None

    def _segments(self, file_bytes: int) -> list[Segment]:
        result = []
        for number, segment in enumerate(self._file.iter_segments()):
            row = segment.header
            if row["p_type"] != "PT_LOAD" or not row["p_filesz"]:
                continue
            if row["p_offset"] + row["p_filesz"] > file_bytes:
                end = row["p_offset"] + row["p_filesz"]
                raise ElfError(
                    f"{self.path} is truncated: segment {number} ends at byte {end}, but the file has only {file_bytes} bytes."
                )
            if row["p_paddr"] + row["p_filesz"] > 1 << 32:
                raise ElfError(f"{self.path}: segment {number} at {row['p_paddr']:#x} does not fit into 32-bit addresses.")
            result.append(Segment(row["p_paddr"], segment.data()))
        return sorted(result, key=lambda s: s.address)

    @cached_property
    def symbols(self) -> dict[str, int]:
        """The addresses of all symbols, without the Thumb bit. Empty if the file is stripped."""
        return {name: address for address, _, name in self._symbols}

    @cached_property
    def _symbols(self) -> list[tuple[int, int, str]]:

        def read() -> list[tuple[int, int, str]]:
            table = self._file.get_section_by_name(".symtab")
            if table is None or not hasattr(table, "iter_symbols"):
                return []
            if table.num_symbols() > MOST_SYMBOLS:
                raise ElfError(f"{self.path}: expected at most {MOST_SYMBOLS} symbols, got {table.num_symbols()}.")
            rows_of_symbols = []
            for symbol in table.iter_symbols():
                kind = symbol["st_info"]["type"]
                if symbol.name and not symbol.name.startswith("$") and kind in ("STT_FUNC", "STT_OBJECT", "STT_NOTYPE"):
                    address = symbol["st_value"] & ~1 if kind == "STT_FUNC" else symbol["st_value"]
                    rows_of_symbols.append((address, symbol["st_size"], symbol.name))
            return sorted(rows_of_symbols)

        return self._safely(read)

    def symbol_at(self, address: int) -> str:
        """Return the symbol and offset of an address, e.g. ``arena+0x40``, or an empty string if the symbol is unknown."""
        at = bisect_right(self._symbols, (address, 1 << 40, "")) - 1
        while at >= 0 and address - self._symbols[at][0] < 1 << 24:
            base, size, name = self._symbols[at]
            if size and base <= address < base + size:
                return f"{name}+{address - base:#x}" if address > base else name
            if size:
                break
            at -= 1
        return ""

    def place(self, address: int) -> str:
        """Return the location of an instruction, e.g. ``npu_run+0x12 (ethosu.c:140)``, or the address if the symbol is unknown."""
        name = self.symbol_at(address & ~1) or f"{address:#010x}"
        line = self._line(address & ~1)
        return f"{name} ({line})" if line else name

    def _line(self, address: int) -> str:
        try:
            for number, ranges in enumerate(self._unit_ranges):
                if any(low <= address < high for low, high in ranges):
                    for low, high, line in self._line_table(number):
                        if low <= address < high:
                            return line
        except ElfError:
            pass
        return ""

    @cached_property
    def _units(self) -> list[Any]:
        return self._safely(lambda: list(self._file.get_dwarf_info().iter_CUs()) if self._file.has_dwarf_info() else [])

    @cached_property
    def _unit_ranges(self) -> list[list[tuple[int, int]]]:
        return self._safely(lambda: [_ranges(self._file.get_dwarf_info(), unit) for unit in self._units])

    def _line_table(self, number: int) -> list[tuple[int, int, str]]:
        if number not in self._line_tables:
            unit = self._units[number]
            program = self._safely(lambda: self._file.get_dwarf_info().line_program_for_CU(unit))
            self._line_tables[number] = [] if program is None else self._safely(lambda: _lines(program))
        return self._line_tables[number]


def _ranges(dwarf: Any, unit: Any) -> list[tuple[int, int]]:
    """Return the address ranges of a DWARF unit, or the whole address space if they are unknown."""
    attributes = unit.get_top_DIE().attributes
    low, high = attributes.get("DW_AT_low_pc"), attributes.get("DW_AT_high_pc")
    if low is not None and high is not None:
        return [(low.value, high.value if high.form == "DW_FORM_addr" else low.value + high.value)]
    if "DW_AT_ranges" in attributes and unit["version"] < 5:
        rows = dwarf.range_lists().get_range_list_at_offset(attributes["DW_AT_ranges"].value, cu=unit)
        base = 0 if low is None else low.value
        return [(base + row.begin_offset, base + row.end_offset) for row in rows if hasattr(row, "begin_offset")]
    return [(0, 1 << 32)]


def _lines(program: Any) -> list[tuple[int, int, str]]:
    files = program.header["file_entry"]
    first = 0 if program.header["version"] >= 5 else 1  # DWARF 5 counts files from 0
    line_ranges, before = [], None
    for entry in program.get_entries():
        state = entry.state
        if state is None:
            continue
        if state.line == 0 and before is not None and not state.end_sequence:
            continue  # compiler-generated code belongs to the previous line
        if before is not None and not before.end_sequence and state.address > before.address:
            at = before.file - first
            name = files[at].name.decode(errors="replace") if 0 <= at < len(files) else "?"
            line_ranges.append((before.address, state.address, f"{os.path.basename(name)}:{before.line}"))
        before = state
    return line_ranges
