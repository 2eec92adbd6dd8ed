"""Command words written: registers, operations, and a payload with another stream."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from ethorch.npu import stream
from ethorch.npu.program import Program
from ethorch.npu.registers import Npu, Register, table
from ethorch.support.errors import MachineFault

_ACTION_STREAM = 2  # driver action of a COP1 header in front of the commands (npu-reference 1.2)
_CMD1 = 1 << 14
#: Of a transfer: region read, region written, first byte read, first byte written, bytes.
DMA_REGISTERS = ("DMA0_SRC_REGION", "DMA0_DST_REGION", "DMA0_SRC", "DMA0_DST", "DMA0_LEN")


@cache
def _row(family: str, name: str) -> Register:
    return next(row for row, _ in table(family).values() if row.name == name)


def operation(npu: Npu, name: str, parameter: int = 0) -> list[int]:
    """The word of an operation, as ``NPU_OP_DMA_START``."""
    return [_row(npu.family, name).code | parameter << 16]


def written(npu: Npu, name: str, value: int) -> list[int]:
    """The words that write a register: CMD0 with a parameter of 16 bits, or CMD1 with 32 bits and 8 more (npu-reference 2.1).

    Args:
        name: of a register with one field, as ``IFM_REGION`` or ``WEIGHT_BASE``.
    """
    row = _row(npu.family, name)
    if not row.cmd1:
        return [row.code | value << 16]
    return [row.code | _CMD1 | (value >> 32 & 0xFF) << 16, value & 0xFFFFFFFF]


def with_commands(payload: bytes, words: Sequence[int]) -> bytes:
    """A COP1 payload with another stream; its header says how many words there are (npu-reference 1.2).

    Raises:
        MachineFault: the payload is malformed, or no COP1.
    """
    header = stream.parse_header(payload)
    if payload[:4] != stream.COP1:
        raise MachineFault("commands can be changed in COP1 payloads only")
    count = len(words)
    tag = _ACTION_STREAM | (count & 0xFFFF) << 16 | (count >> 16 & 0xFF) << 8
    return payload[: header.start - 4] + struct.pack(f"<{count + 1}I", tag, *words) + payload[header.stop :]


@dataclass(frozen=True)
class Bits:
    """Bits to set in a register of 16 that holds several fields."""

    value: int


def with_registers(
    payload: bytes,
    program: Program,
    settings: Mapping[int, Mapping[str, int | Bits]],
    first: Sequence[int] = (),
    instead: Mapping[int, Sequence[int]] | None = None,
) -> tuple[bytes, dict[int, int]]:
    """A COP1 payload in which single operations run with other registers, which hold what they held again behind them.

    Args:
        program: of the payload.
        settings: byte offset of an operation's command -> name of a register -> its value, or bits to set in it.
        first: words of commands to begin with; they have to leave the registers at zero, as a stream finds them.
        instead: byte offset of an operation's command -> the words of other operations in its place, or none.

    Returns:
        the payload, and the new byte offset of each command's old one.

    Raises:
        MachineFault: the payload is malformed, or no COP1.
    """
    npu, header = program.config, program.header
    words = struct.unpack_from(f"<{(header.stop - header.start) // 4}I", payload, header.start)
    made, offsets, held = list(first), {}, dict[str, Sequence[int]]()
    for command in program.commands:
        at = command.offset // 4
        own = words[at : at + (2 if command.row.cmd1 else 1)]
        changed = settings.get(command.offset, {})
        for name, value in changed.items():
            made += [held[name][0] | value.value << 16] if isinstance(value, Bits) else written(npu, name, value)
        offsets[command.offset] = 4 * len(made)
        made += own if instead is None else instead.get(command.offset, own)
        for name in changed:
            made += held.get(name) or written(npu, name, 0)
        held[command.row.name] = own
    return with_commands(payload, made), offsets
