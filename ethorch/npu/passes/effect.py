from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PassEffect:
    """The cycles, and the bytes of scratch and staging, before and after a pass."""

    name: str
    cycles_before: int
    cycles_after: int
    bytes_before: int
    bytes_after: int
