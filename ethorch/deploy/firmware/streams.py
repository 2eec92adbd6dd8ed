"""Prepare command streams for the C driver and select their memory attributes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ethorch.formats.payload import DelegatePayload
from ethorch.npu import registers
from ethorch.npu.staging import STAGING_REGION
from ethorch.npu.stream import COP1, parse_header
from ethorch.support.errors import EthorchError
from ethorch.targets.vela_ini import MemorySystem

_U65, _U85 = 1, 2  # products, by bits 31:28 of a CONFIG word (docs/npu-reference.md, 1.3)
# Memory attributes in REGIONCFG and QCONFIG: 0 and 1 select the SRAM port, 2 and 3 the external port (npu-reference 9.1).
_SRAM, _SRAM_TOO, _EXTERNAL, _EXTERNAL_TOO = range(4)


@dataclass(frozen=True)
class Attributes:
    """Register values that select NPU ports: QCONFIG for the command stream, REGIONCFG for each region."""

    queue: int
    regions: int


def driver_stream(payload: DelegatePayload) -> bytes:
    """Return a payload's commands with a COP1 header for the C driver.

    Raises:
        EthorchError: The stream uses separate regions for inputs and outputs, which the driver does not support.
        MachineFault: The header is malformed.
    """
    if payload.commands[:4] == COP1:
        return payload.commands
    header = parse_header(payload.commands)
    if header.local_addressing:
        raise EthorchError(
            "the firmware's driver requires one region for all feature maps, but a delegate's command stream (COP2) uses separate "
            "regions for inputs and outputs. Compile the model with ethorch, or with the Vela option --cop-format=COP1."
        )
    config = next(word for word, npu in registers.NPUS.items() if npu == header.npu)
    words = payload.commands[header.start : header.stop]
    count = len(words) // 4
    tag = 2 | (count >> 16) << 8 | (count & 0xFFFF) << 16
    return struct.pack("<4s7I", COP1, 0x00100001, config, header.npu_id, 5, 5, 5, tag) + words


def config_word(stream: bytes) -> int:
    """Return the value of the NPU's CONFIG register that a COP1 stream requires."""
    return next(word for word, npu in registers.NPUS.items() if npu == parse_header(stream).npu)


def attributes(config: int, system: MemorySystem | None) -> Attributes:
    """Select the NPU port of each region so that the port reaches the memory planned by Vela.

    If ``system`` is None, use the defaults of Arm's driver: feature maps in DRAM (U65) or SRAM (other NPUs).
    """
    if system is None:
        in_sram, arena = False, _EXTERNAL if config >> 28 == _U65 else _SRAM
    else:
        in_sram, arena = system.constants_in_sram, _SRAM if system.arena_area == "Sram" else _EXTERNAL
    chosen = [_SRAM_TOO] * 8
    chosen[0] = _SRAM_TOO if in_sram else _EXTERNAL_TOO
    chosen[1] = arena
    chosen[STAGING_REGION] = _SRAM_TOO
    return Attributes(_SRAM if in_sram else _EXTERNAL, sum(value << 2 * region for region, value in enumerate(chosen)))
