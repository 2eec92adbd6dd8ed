from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Attempt:
    """The figures of a program that a budget search compiled.

    Attributes:
        change: Description of the changed settings, or "" for the first attempt.
        ram_bytes, flash_bytes: Memory of the whole application.
        milliseconds: Estimated time of one inference, or None if unknown.
        sqnr_db: SQNR relative to the float model, or None if not measured.
        fits: True unless a budget is known to be exceeded.
    """

    change: str
    ram_bytes: int
    flash_bytes: int
    milliseconds: float | None
    sqnr_db: float | None
    fits: bool

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data."""
        return asdict(self)
