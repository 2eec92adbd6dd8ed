"""Facts about a program: inputs and outputs, accuracy, budgets, verification."""

from __future__ import annotations

from dataclasses import dataclass

from ethorch.formats.boundary import Codes


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a program.

    Attributes:
        dtype: torch's name of the type in firmware.
        codes: Quantization parameters of a quantized tensor; None otherwise.
    """

    dtype: str
    shape: tuple[int, ...]
    codes: Codes | None = None

    def __str__(self) -> str:
        text = f"{self.dtype}{list(self.shape)}"
        return text if self.codes is None else f"{text}, scale {self.codes.scale:.6g}, zero point {self.codes.zero_point}"


@dataclass(frozen=True)
class Accuracy:
    """SQNR in dB of the program against the float model, and the number of samples."""

    sqnr_db: float
    samples: int


@dataclass(frozen=True)
class Budget:
    """A limit, the figure of the program, and whether it is met; None if unknown."""

    name: str
    limit: float
    found: float | None
    holds: bool | None


@dataclass(frozen=True)
class Unchecked:
    """A delegate that was not compared with the TOSA reference, with the reason."""

    method: str
    delegate: int
    reason: str


@dataclass(frozen=True)
class Verification:
    """Result of comparing a program's delegates with the TOSA reference. A difference is an error.

    Attributes:
        delegates, equal: Number of delegates of all methods, and of those that equal the reference.
        unchecked: Delegates that were not compared.
        repairs: Operators before which a copy was inserted to avoid a bug of Vela (``ethorch.vela.repair``).
    """

    delegates: int
    equal: int
    unchecked: tuple[Unchecked, ...] = ()
    repairs: tuple[str, ...] = ()
