"""ELF files are not trusted: what is no firmware, damaged or too large for the board is refused, never a crash."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ethorch.deploy import virtual_board
from ethorch.deploy.virtual_board.elf import Firmware
from ethorch.deploy.virtual_board.guest import Guest
from ethorch.support.errors import ElfError
from ethorch.targets import boards


def test_what_an_elf_says(probe: Path) -> None:
    firmware = Firmware(probe)
    assert firmware.segments[0].address == 0x10000000
    assert firmware.symbols["Reset_Handler"] == firmware.entry
    assert firmware.symbol_at(firmware.entry + 2) == "Reset_Handler+0x2"
    assert firmware.place(firmware.entry).startswith("Reset_Handler (probe.c:")
    assert firmware.place(0xDEADBEEE) == "0xdeadbeee"


def test_files_that_are_no_firmware(tmp_path: Path, probe: Path) -> None:
    with pytest.raises(ElfError, match="cannot read"):
        Firmware(tmp_path / "none.elf")
    other = tmp_path / "other.elf"
    other.write_bytes(b"hello")
    with pytest.raises(ElfError, match="not an ELF file"):
        Firmware(other)
    other.write_bytes(probe.read_bytes()[:40])
    with pytest.raises(ElfError, match="damaged"):
        Firmware(other)
    content = bytearray(probe.read_bytes())
    content[18:20] = struct.pack("<H", 62)
    other.write_bytes(content)
    with pytest.raises(ElfError, match=r"expected a linked program.*EM_X86_64"):
        Firmware(other)


def test_a_firmware_for_another_board_is_refused(probe: Path) -> None:
    with pytest.raises(ElfError, match=r"segment of probe.elf at 0x10000000.*does not fit into a single memory of board generic"):
        virtual_board.run(probe, "generic")


def test_data_beyond_the_memories_is_refused(probe: Path) -> None:
    with pytest.raises(ElfError, match=r"the data for 0x90000000"):
        virtual_board.run(probe, data={0x90000000: b"x"})


def test_a_firmware_without_a_vector_table_is_refused(probe: Path, tmp_path: Path) -> None:
    content = bytearray(probe.read_bytes())
    content[24:28] = struct.pack("<I", 0x10000101)  # another entry than the table's
    path = tmp_path / "lost.elf"
    path.write_bytes(content)
    with pytest.raises(ElfError, match="has no vector table"):
        virtual_board.run(path, "corstone-320")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=8),
    st.integers(0, 1 << 20),
)
def test_damaged_files_are_refused_or_read(probe: Path, tmp_path: Path, changes: list[tuple[int, int, int]], length: int) -> None:
    """Bytes of the headers at both ends of the file are changed, and the file is cut."""
    content = bytearray(probe.read_bytes())
    for end, at, value in changes:
        content[at if not end else len(content) - 1 - at] = value
    path = tmp_path / "damaged.elf"
    path.write_bytes(content[: max(length, 1)] if length < len(content) else content)
    try:
        firmware = Firmware(path)
        Guest(boards.load("corstone-300")).load(firmware)
        firmware.place(firmware.entry)
        assert isinstance(firmware.symbols, dict)
    except ElfError:
        pass
