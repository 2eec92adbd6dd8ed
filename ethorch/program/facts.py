"""What a program is said to be: its inputs and outputs, its accuracy, its budgets."""

from __future__ import annotations

from dataclasses import dataclass

from ethorch.formats.boundary import Codes


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a program.

    Attributes:
        dtype: torch's name of the type that firmware hands over.
        codes: what the numbers mean where they are codes of floats; None where they are what they are.
    """

    dtype: str
    shape: tuple[int, ...]
    codes: Codes | None = None

    def __str__(self) -> str:
        text = f"{self.dtype}{list(self.shape)}"
        return text if self.codes is None else f"{text}, scale {self.codes.scale:.6g}, zero point {self.codes.zero_point}"


@dataclass(frozen=True)
class Accuracy:
    """How near the program's outputs are to the float model's: SQNR in dB over so many samples."""

    sqnr_db: float
    samples: int


@dataclass(frozen=True)
class Budget:
    """A limit of the settings, what was found, and whether it holds; None where that cannot be known."""

    name: str
    limit: float
    found: float | None
    holds: bool | None
