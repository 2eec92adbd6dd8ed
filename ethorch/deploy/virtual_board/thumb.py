"""Decode the Thumb load or store at which QEMU stops before an access to the NPU.

Source: Armv8-M Architecture Reference Manual, chapter C2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Access:
    """A load or store of one or two registers.

    Attributes:
        size: Accessed bytes per register.
        signed: Whether a loaded value is sign-extended.
        offset: Immediate offset, used if ``index`` is None.
        shift: Left shift of the index register.
        before: Whether addressing is pre-indexed instead of post-indexed.
        writes_back: Whether the base register is updated.
    """

    loads: bool
    size: int
    registers: tuple[int, ...]
    base: int
    length: int
    offset: int = 0
    index: int | None = None
    shift: int = 0
    signed: bool = False
    before: bool = True
    writes_back: bool = False

    def address(self, registers: Sequence[int]) -> int:
        """Return the accessed address. ``registers`` contains the values before the instruction."""
        return self._sum(registers) if self.before else registers[self.base]

    def _sum(self, registers: Sequence[int]) -> int:
        extra = self.offset if self.index is None else registers[self.index] << self.shift
        return registers[self.base] + extra & _WORD

    def extend(self, value: int) -> int:
        """Return the 32-bit register value for a loaded value of ``size`` bytes."""
        bits = 8 * self.size
        value &= (1 << bits) - 1
        return (value - (1 << bits)) & _WORD if self.signed and value >> bits - 1 else value

    def compute_base(self, registers: Sequence[int]) -> int | None:
        """Return the updated value of the base register, or None if it does not change."""
        return self._sum(registers) if self.writes_back else None


def decode(first: int, second: int) -> Access | None:
    """Decode a load or store, or return None for other instructions. For a 16-bit instruction, ``second`` is ignored."""
    return _wide(first, second) if first >> 11 >= 29 else _narrow(first)


# Bits 11:9 of the register form: (loads, size, signed).
_REGISTER_FORM = (
    (False, 4, False), (False, 2, False), (False, 1, False), (True, 1, True),
    (True, 4, False), (True, 2, False), (True, 1, False), (True, 2, True),
)  # fmt: skip


def _narrow(word: int) -> Access | None:
    top, target, base = word >> 12, word & 7, word >> 3 & 7
    if top == 0b0101:
        loads, size, signed = _REGISTER_FORM[word >> 9 & 7]
        return Access(loads, size, (target,), base, 2, index=word >> 6 & 7, signed=signed)
    loads, amount = bool(word >> 11 & 1), word >> 6 & 31
    if top in (0b0110, 0b0111, 0b1000):
        size = {0b0110: 4, 0b0111: 1, 0b1000: 2}[top]
        return Access(loads, size, (target,), base, 2, offset=amount * size)
    if top == 0b1001:
        return Access(loads, 4, (word >> 8 & 7,), 13, 2, offset=4 * (word & 0xFF))
    return None


def _wide(first: int, second: int) -> Access | None:
    base, target = first & 15, second >> 12
    if base == 15:
        return None  # PC-relative: never a device
    if first & 0xFE40 == 0xE840 and first & 0x0120:  # LDRD, STRD
        before, up, back = bool(first >> 8 & 1), bool(first >> 7 & 1), bool(first >> 5 & 1)
        offset = 4 * (second & 0xFF) * (1 if up else -1)
        pair = target, second >> 8 & 15
        return Access(bool(first >> 4 & 1), 4, pair, base, 4, offset=offset, before=before, writes_back=back)
    if first & 0xFE00 != 0xF800 or (first >> 5 & 3) == 3:
        return None
    loads, size, signed = bool(first >> 4 & 1), 1 << (first >> 5 & 3), bool(first >> 8 & 1)
    if signed and not loads:
        return None
    if first & 0x0080:
        return Access(loads, size, (target,), base, 4, offset=second & 0xFFF, signed=signed)
    if second & 0x0800:
        before, up, back = bool(second >> 10 & 1), bool(second >> 9 & 1), bool(second >> 8 & 1)
        offset = (second & 0xFF) * (1 if up else -1)
        return Access(loads, size, (target,), base, 4, offset=offset, signed=signed, before=before, writes_back=back)
    if second & 0x0FC0 == 0:
        return Access(loads, size, (target,), base, 4, index=second & 15, shift=second >> 4 & 3, signed=signed)
    return None


def advance_it_block(xpsr: int) -> int:
    """Return XPSR after one more instruction of an IT block."""
    state = (xpsr >> 10 & 0x3F) << 2 | xpsr >> 25 & 3
    if not state:
        return xpsr
    state = 0 if not state & 7 else state & 0xE0 | state << 1 & 0x1F
    return xpsr & ~0x0600FC00 | (state >> 2) << 10 | (state & 3) << 25
