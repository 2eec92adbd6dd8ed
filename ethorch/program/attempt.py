"""What a program that was tried came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Attempt:
    """A program that was tried.

    Attributes:
        change: what is other than the settings say; empty for the first.
        ram_bytes, flash_bytes: of the whole application.
        milliseconds: of one inference by the estimate; None where unknown.
        sqnr_db: against the float model; None where it was not measured.
        fits: do all budgets hold?
    """

    change: str
    ram_bytes: int
    flash_bytes: int
    milliseconds: float | None
    sqnr_db: float | None
    fits: bool

    def to_json(self) -> dict[str, Any]:
        """As plain data; keys are the attributes' names."""
        return asdict(self)
