"""Data classes for facts about a program: inputs and outputs, accuracy, budgets, verification."""

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


@dataclass(frozen=True)
class Unchecked:
    """A delegate that was not compared with the TOSA reference.

    Attributes:
        method: Name of its method.
        delegate: Its number in the method.
        reason: Why not.
    """

    method: str
    delegate: int
    reason: str


@dataclass(frozen=True)
class Verification:
    """The result of comparing a program's delegates with the TOSA reference.

    Attributes:
        delegates: How many the program has, over all methods.
        equal: How many gave the bytes of the reference.
        unchecked: The others, with the reason. A delegate that differs is an error.
        repairs: Operators before which a copy was inserted because Vela's commands were wrong without (``ethorch.vela.repair``).
    """

    delegates: int
    equal: int
    unchecked: tuple[Unchecked, ...] = ()
    repairs: tuple[str, ...] = ()
