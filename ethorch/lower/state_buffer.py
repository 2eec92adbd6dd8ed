"""A buffer that a program changes."""

from __future__ import annotations

from dataclasses import dataclass

from ethorch.support.errors import Reason


@dataclass(frozen=True)
class StateBuffer:
    """A buffer that a program changes, and what became of it.

    Attributes:
        name: its fully qualified name.
        shape: its extents.
        dtype: torch's name of what it holds in the program.
        scale, zero_point: of its codes; None where it holds no codes.
        reason: why it stays in float; None where it is of codes, or of integers as in the model.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: float | None = None
    zero_point: int | None = None
    reason: Reason | None = None
