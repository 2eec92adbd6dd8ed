"""Programs that a search compiled."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Attempt:
    """A program that a search compiled.

    Attributes:
        change: Difference from the settings; empty for the first attempt.
        ram_bytes, flash_bytes: Memory of the whole application.
        milliseconds: Estimated time of one inference; None if unknown.
        sqnr_db: SQNR against the float model; None if not measured.
        fits: Whether all budgets are met.
    """

    change: str
    ram_bytes: int
    flash_bytes: int
    milliseconds: float | None
    sqnr_db: float | None
    fits: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain data by attribute name."""
        return asdict(self)
