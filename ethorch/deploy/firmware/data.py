"""Binary data of a project, stored as files or C arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

_ROW = 24


@dataclass(frozen=True)
class Blob:
    """A block of bytes with a C symbol.

    Attributes:
        section: C macro for the section name.
        content: Bytes, padded to a multiple of 16.
    """

    symbol: str
    file: str
    section: str
    content: bytes = field(repr=False)

    @property
    def bytes(self) -> int:
        return len(self.content)

    @property
    def sums(self) -> tuple[int, int]:
        """The sum of the 32-bit words, and the sum of the running sums. See ``ethosu_sum`` in ethosu_model.h."""
        words = np.frombuffer(self.content, "<u4").astype(np.uint64)
        running = np.cumsum(words, dtype=np.uint64) & 0xFFFFFFFF
        return int(running[-1]) if len(running) else 0, int(np.sum(running, dtype=np.uint64)) & 0xFFFFFFFF

    @property
    def rows(self) -> list[str]:
        return [" ".join(f"{byte}," for byte in self.content[start : start + _ROW]) for start in range(0, len(self.content), _ROW)]


def blob(symbol: str, section: str, content: bytes) -> Blob:
    """Create a Blob whose content is padded to a multiple of 16 bytes."""
    return Blob(symbol, f"{symbol}.bin", section, content + bytes(-len(content) % 16))


def fnv1a(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash, which the firmware prints for each output."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
