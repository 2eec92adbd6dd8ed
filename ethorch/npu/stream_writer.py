"""Write command words, and replace the stream of a payload."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from ethorch.npu import stream
from ethorch.npu.program import Program
from ethorch.npu.registers import Npu, Register, table
from ethorch.support.errors import MachineFault

_ACTION_STREAM = 2  # driver action of a COP1 header before the commands (npu-reference 1.2)
_CMD1 = 1 << 14
#: Registers of a transfer: source region, target region, source address, target address, length.
DMA_REGISTERS = ("DMA0_SRC_REGION", "DMA0_DST_REGION", "DMA0_SRC", "DMA0_DST", "DMA0_LEN")


@cache
def _row(family: str, name: str) -> Register:
    return next(row for row, _ in table(family).values() if row.name == name)


def operation(npu: Npu, name: str, parameter: int = 0) -> list[int]:
    """Return the command word of an operation, e.g. ``NPU_OP_DMA_START``."""
    return [_row(npu.family, name).code | parameter << 16]


def write_register(npu: Npu, name: str, value: int) -> list[int]:
    """Return the words that write a register: CMD0 with 16 bits, or CMD1 with 40 bits (npu-reference 2.1).

    Args:
        name: A register with one field, e.g. ``IFM_REGION``.
    """
    row = _row(npu.family, name)
    if not row.cmd1:
        return [row.code | value << 16]
    return [row.code | _CMD1 | (value >> 32 & 0xFF) << 16, value & 0xFFFFFFFF]


def with_commands(payload: bytes, words: Sequence[int]) -> bytes:
    """Return a copy of a COP1 payload with its commands replaced and its header updated (npu-reference 1.2).

    Raises:
        MachineFault: The payload is malformed, or not COP1.
    """
    header = stream.parse_header(payload)
    if payload[:4] != stream.COP1:
        raise MachineFault(f"expected a COP1 payload, got {payload[:4]!r}. Only COP1 commands can be changed.")
    count = len(words)
    tag = _ACTION_STREAM | (count & 0xFFFF) << 16 | (count >> 16 & 0xFF) << 8
    return payload[: header.start - 4] + struct.pack(f"<{count + 1}I", tag, *words) + payload[header.stop :]


@dataclass(frozen=True)
class Bits:
    """The bits to set in a 16-bit register with several fields."""

    value: int


def with_registers(
    payload: bytes,
    program: Program,
    settings: Mapping[int, Mapping[str, int | Bits]],
    instead: Mapping[int, Sequence[int]] | None = None,
) -> tuple[bytes, dict[int, int]]:
    """Change registers for individual operations of a COP1 payload, and restore them after each operation.

    Args:
        settings: Value or bits to set for each register, keyed by the operation's byte offset and then by register name.
        instead: Words that replace a command, keyed by the command's byte offset.

    Returns:
        The new payload, and the new byte offset of each command, keyed by the old offset.

    Raises:
        MachineFault: The payload is malformed, or is not COP1.
    """
    npu, header = program.config, program.header
    words = struct.unpack_from(f"<{(header.stop - header.start) // 4}I", payload, header.start)
    rewritten, offsets, last_writes = list[int](), {}, dict[str, Sequence[int]]()
    for command in program.commands:
        at = command.offset // 4
        original = words[at : at + (2 if command.row.cmd1 else 1)]
        changed = settings.get(command.offset, {})
        for name, value in changed.items():
            rewritten += [last_writes[name][0] | value.value << 16] if isinstance(value, Bits) else write_register(npu, name, value)
        offsets[command.offset] = 4 * len(rewritten)
        rewritten += original if instead is None else instead.get(command.offset, original)
        for name in changed:
            rewritten += last_writes.get(name) or write_register(npu, name, 0)
        last_writes[command.row.name] = original
    return with_commands(payload, rewritten), offsets
