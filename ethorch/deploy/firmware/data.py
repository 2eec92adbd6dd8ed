"""Bytes that a project holds as files or as C arrays: weights, command streams, constants, test data."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

_ROW = 24


@dataclass(frozen=True)
class Blob:
    """Bytes under a symbol.

    Attributes:
        symbol: in C.
        file: the name of the file that holds them.
        section: the C macro, or the quoted name, of the section they go to.
        content: padded to whole 16 bytes.
    """

    symbol: str
    file: str
    section: str
    content: bytes = field(repr=False)

    @property
    def bytes(self) -> int:
        """How many."""
        return len(self.content)

    @property
    def sums(self) -> tuple[int, int]:
        """What ``ethosu_sum`` of ethosu_model.h gives: the sum of the 32-bit words, and that of all the sums on the way."""
        words = np.frombuffer(self.content, "<u4").astype(np.uint64)
        running = np.cumsum(words, dtype=np.uint64) & 0xFFFFFFFF
        return int(running[-1]) if len(running) else 0, int(np.sum(running, dtype=np.uint64)) & 0xFFFFFFFF

    @property
    def rows(self) -> list[str]:
        """As lines of a C array."""
        return [" ".join(f"{byte}," for byte in self.content[start : start + _ROW]) for start in range(0, len(self.content), _ROW)]


def blob(symbol: str, section: str, content: bytes) -> Blob:
    """Bytes under a symbol, in the file of that name, padded to whole 16."""
    return Blob(symbol, f"{symbol}.bin", section, content + bytes(-len(content) % 16))


def fnv1a(data: bytes) -> int:
    """FNV-1a of 32 bits, as the firmware prints it."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
