"""The memories of a board, shared by the CPU and the NPU."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ethorch.deploy.virtual_board.elf import Firmware
from ethorch.npu.arrays import Bytes
from ethorch.support.errors import ElfError
from ethorch.targets.boards.description import Board, Memory


@dataclass(frozen=True)
class Block:
    """A memory and its contents."""

    memory: Memory
    bytes: Bytes


class Guest:
    """All memories of a board, initially zero. Untouched pages use no physical memory.

    Args:
        arrays: Memory name -> existing buffer. Default: new buffers.
    """

    def __init__(self, board: Board, arrays: Mapping[str, Bytes] | None = None):
        self.board = board
        array_by_name = arrays or {}
        self.blocks = tuple(
            Block(
                memory,
                array_by_name[memory.name]
                if memory.name in array_by_name
                else np.frombuffer(mmap.mmap(-1, memory.size_bytes), np.uint8),
            )
            for memory in board.memories
        )

    def find(self, address: int) -> tuple[Block, int] | None:
        """Return an address's block and the offset in it, or None if no block contains the address."""
        for block in self.blocks:
            offset = block.memory.offset(address)
            if offset is not None:
                return block, offset
        return None

    def bytes_at(self, address: int, size: int) -> Bytes | None:
        """Return a view of an address range, or None if no single memory contains the whole range."""
        location = self.find(address)
        if location is None or location[1] + size > location[0].bytes.size:
            return None
        return location[0].bytes[location[1] : location[1] + size]

    def text_at(self, address: int, limit: int = 1 << 16) -> bytes:
        """Return the zero-terminated text at an address, truncated after ``limit`` bytes or at the end of the memory."""
        location = self.find(address)
        if location is None:
            return b""
        content = location[0].bytes[location[1] : location[1] + limit].tobytes()
        return content.partition(b"\0")[0]

    def word(self, address: int) -> int | None:
        """Return the 32-bit word at an address, or None if the board has no memory there."""
        word_bytes = self.bytes_at(address, 4)
        return None if word_bytes is None else int.from_bytes(word_bytes.tobytes(), "little")

    def load(self, firmware: Firmware, data: Mapping[int, bytes] | None = None) -> None:
        """Load the firmware's segments, and additional ``data`` (address -> bytes).

        Raise ElfError for bytes outside the board's memories.
        """
        rows = [(s.address, s.data, f"a segment of {firmware.path.name} at") for s in firmware.segments]
        rows += [(address, content, "the data for") for address, content in (data or {}).items()]
        for address, content, what in rows:
            place = self.bytes_at(address, len(content))
            if place is None:
                have = ", ".join(str(block.memory) for block in self.blocks)
                raise ElfError(
                    f"{what} {address:#010x}..{address + len(content):#010x} does not fit into a single memory of board "
                    f"{self.board.name} (available: {have}). Link for this board, or correct the board file."
                )
            place[:] = np.frombuffer(content, np.uint8)
