from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ethorch.deploy.virtual_board import npu_registers as regs
from ethorch.deploy.virtual_board.extents import Extent, extents, reachable
from ethorch.npu import Machine, Program, Sources
from ethorch.npu.arrays import Bytes
from ethorch.npu.registers import Npu
from ethorch.npu.stream import COP1

KEPT = 16


class Programs:
    """A cache of the decoded streams and machines of one NPU."""

    def __init__(self, npu: Npu, sources: Mapping[str, Sources]):
        self.npu, self.sources = npu, sources
        self._streams: dict[str, tuple[Program, dict[int, Extent]]] = {}
        self._machines: dict[tuple[Any, ...], Machine] = {}

    def stream(self, digest: str, commands: bytes) -> tuple[Program, dict[int, Extent]]:
        """Return the decoded command stream, without constants, and its extents (upper bounds if the stream has branches).

        Raise MachineFault if the stream cannot be decoded or prepared.
        """
        if digest not in self._streams:
            program = Program(payload(self.npu, commands))
            used = {} if not ends(program) else reachable(program) if program.has_branches else extents(program)
            _keep(self._streams, digest, (program, used))
        return self._streams[digest]

    def machine(self, digest: str, constants: Bytes, regions: Mapping[int, Bytes], bases: tuple[int, ...]) -> Machine:
        """Return a machine that uses the guest's memory. Constants are decoded again if their bytes changed."""
        key = (digest, bases, hashlib.blake2b(constants.data, digest_size=16).digest())
        if key not in self._machines:
            program = self._streams[digest][0].with_constants(constants)
            _keep(self._machines, key, Machine(program, regions=regions, sources=self.sources.get(digest)))
        return self._machines[key]


def ends(program: Program) -> bool:
    """Return True if the stream contains an NPU_OP_STOP."""
    return any(command.row.name == "NPU_OP_STOP" for command in program.commands)


def _keep(entries: dict[Any, Any], key: Any, entry: Any) -> None:
    while len(entries) >= KEPT:
        del entries[next(iter(entries))]
    entries[key] = entry


def payload(npu: Npu, commands: bytes) -> bytes:
    """Prepend the header of a driver payload (npu-reference 1.2) to commands."""
    words = len(commands) // 4
    head = [int.from_bytes(COP1, "little"), 0x00100001, npu.config, regs.ID[npu.family], 5, 5, 5]
    head.append((words & 0xFFFF) << 16 | (words >> 16 & 0xFF) << 8 | 2)
    return b"".join(word.to_bytes(4, "little") for word in head) + commands
