"""The decoder of loads and stores, against what clang assembles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ethorch.deploy.virtual_board.thumb import Access, advance_it_block, decode
from tests.deploy.virtual_board import support as s

REGISTERS = [0x1000 * (n + 1) for n in range(16)]

# Instruction -> (loads, size, signed, registers, address, base afterwards).
CASES: dict[str, tuple[bool, int, bool, tuple[int, ...], int, int | None]] = {
    "ldr r1, [r5, #0x28]": (True, 4, False, (1,), 0x6028, None),
    "str r0, [r2, #4]": (False, 4, False, (0,), 0x3004, None),
    "ldrb r3, [r4, #3]": (True, 1, False, (3,), 0x5003, None),
    "strb r3, [r4, #3]": (False, 1, False, (3,), 0x5003, None),
    "ldrh r3, [r4, #6]": (True, 2, False, (3,), 0x5006, None),
    "strh r3, [r4, #6]": (False, 2, False, (3,), 0x5006, None),
    "ldr r3, [sp, #8]": (True, 4, False, (3,), 0xE008, None),
    "str r3, [sp, #8]": (False, 4, False, (3,), 0xE008, None),
    "ldr r3, [r1, r2]": (True, 4, False, (3,), 0x5000, None),
    "str r3, [r1, r2]": (False, 4, False, (3,), 0x5000, None),
    "ldrsh r3, [r1, r2]": (True, 2, True, (3,), 0x5000, None),
    "ldrsb r3, [r1, r2]": (True, 1, True, (3,), 0x5000, None),
    "strh r3, [r1, r2]": (False, 2, False, (3,), 0x5000, None),
    "strb r3, [r1, r2]": (False, 1, False, (3,), 0x5000, None),
    "ldr.w r10, [r11, #0x180]": (True, 4, False, (10,), 0xC180, None),
    "str.w r10, [r11, #0xffc]": (False, 4, False, (10,), 0xCFFC, None),
    "ldr r10, [r11, #-8]": (True, 4, False, (10,), 0xBFF8, None),
    "str r10, [r11, #8]!": (False, 4, False, (10,), 0xC008, 0xC008),
    "ldr r10, [r11], #-4": (True, 4, False, (10,), 0xC000, 0xBFFC),
    "str r2, [r8], #4": (False, 4, False, (2,), 0x9000, 0x9004),
    "ldr.w r10, [r11, r12, lsl #2]": (True, 4, False, (10,), 0xC000 + 0xD000 * 4, None),
    "strb.w r10, [r11, r12]": (False, 1, False, (10,), 0x19000, None),
    "ldrsb.w r10, [r11, #1]": (True, 1, True, (10,), 0xC001, None),
    "ldrsh.w r10, [r11, #2]": (True, 2, True, (10,), 0xC002, None),
    "ldrh.w r10, [r11, #2]": (True, 2, False, (10,), 0xC002, None),
    "ldrd r2, r3, [r9, #16]": (True, 4, False, (2, 3), 0xA010, None),
    "strd r2, r3, [r9, #-16]": (False, 4, False, (2, 3), 0x9FF0, None),
    "strd r2, r3, [r9], #8": (False, 4, False, (2, 3), 0xA000, 0xA008),
}
OTHERS = (
    "add r1, r2, r3",
    "b .",
    "bl .",
    "ldm r0, {r1, r2}",
    "dmb sy",
    "movw r1, #0x1234",
    "vldr s0, [r0]",
    "nop",
    "ldrex r1, [r2]",
)


def assembled(folder: Path) -> list[tuple[int, int]]:
    """The two halfwords that each instruction begins with."""
    source, made = folder / "all.s", folder / "all.o"
    lines = [f"at{n}: {text}\n nop" for n, text in enumerate([*CASES, *OTHERS])]
    source.write_text(".syntax unified\n.thumb\n.globl start\nstart:\n" + "\n".join(lines) + "\n nop\n")
    subprocess.run([sys.executable, "-m", "ziglang", "cc", *s.TARGET, "-c", str(source), "-o", str(made)], check=True, timeout=300)
    from elftools.elf.elffile import ELFFile

    with open(made, "rb") as file:
        elf = ELFFile(file)
        code = elf.get_section_by_name(".text").data()
        symbols = {row.name: row["st_value"] for row in elf.get_section_by_name(".symtab").iter_symbols()}
    at = [symbols[f"at{n}"] for n in range(len(lines))]
    return [(int.from_bytes(code[a : a + 2], "little"), int.from_bytes(code[a + 2 : a + 4], "little")) for a in at]


def test_what_clang_assembles(tmp_path: Path) -> None:
    words = assembled(tmp_path)
    for (text, (loads, size, signed, registers, address, after)), (first, second) in zip(CASES.items(), words, strict=False):
        found = decode(first, second)
        assert found is not None, text
        seen = found.loads, found.size, found.signed, found.registers, found.address(REGISTERS), found.compute_base(REGISTERS)
        assert seen == (loads, size, signed, registers, address, after), text
        assert found.length == (4 if first >> 11 >= 29 else 2)
    for text, (first, second) in zip(OTHERS, words[len(CASES) :], strict=True):
        assert decode(first, second) is None, text


@pytest.mark.parametrize("size, signed, value, wanted", [(1, True, 0x80, 0xFFFFFF80), (2, False, 0x18000, 0x8000), (4, True, 5, 5)])
def test_what_a_register_holds(size: int, signed: bool, value: int, wanted: int) -> None:
    assert Access(True, size, (0,), 1, 2, signed=signed).extend(value) == wanted


def test_an_it_block_goes_on() -> None:
    """ITTE EQ: mask 0b0110 after the condition 0b0000; it is over after three instructions."""

    def xpsr(state: int) -> int:
        return 1 << 24 | (state >> 2) << 10 | (state & 3) << 25

    flags = xpsr(0b00000110)
    flags = advance_it_block(flags)
    assert flags == xpsr(0b00001100)
    flags = advance_it_block(flags)
    assert flags == xpsr(0b00011000)
    assert advance_it_block(flags) == xpsr(0)
    assert advance_it_block(xpsr(0)) == xpsr(0)
