"""Command words written: registers, operations, and a payload with another stream."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache

from ethorch.errors import MachineFault
from ethorch.npu import stream
from ethorch.npu.registers import Npu, Register, table

_ACTION_STREAM = 2  # driver action of a COP1 header in front of the commands (npu-reference 1.2)
_CMD1 = 1 << 14


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
