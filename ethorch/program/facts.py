"""Figures of a program: inputs and outputs, accuracy, budgets, verification."""

from __future__ import annotations

from dataclasses import dataclass

from ethorch.formats.boundary import Codes


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a program.

    Attributes:
        dtype: Name of the torch dtype, e.g. ``int8``.
        shape: Shape of the tensor.
        codes: Quantization parameters, or None if the tensor is not quantized.
    """

    dtype: str
    shape: tuple[int, ...]
    codes: Codes | None = None

    def __str__(self) -> str:
        text = f"{self.dtype}{list(self.shape)}"
        return text if self.codes is None else f"{text}, scale {self.codes.scale:.6g}, zero point {self.codes.zero_point}"


@dataclass(frozen=True)
class Accuracy:
    """The SQNR in dB of a program relative to the float model, and the number of samples."""

    sqnr_db: float
    samples: int


@dataclass(frozen=True)
class Budget:
    """A limit, the program's figure, and whether the limit is met. ``found`` and ``holds`` equal None if unknown."""

    name: str
    limit: float
    found: float | None
    holds: bool | None


@dataclass(frozen=True)
class Unchecked:
    """A delegate that was not compared with the TOSA reference, and the reason."""

    method: str
    delegate: int
    reason: str


@dataclass(frozen=True)
class Verification:
    """The result of comparing a program's delegates with the TOSA reference. A difference raises an error instead.

    Attributes:
        delegates, equal: Number of delegates in all methods, and number of delegates that equal the reference.
        unchecked: Delegates that were not compared.
        repairs: Operators before which a copy was inserted to avoid a Vela bug (``ethorch.vela.repair``).
    """

    delegates: int
    equal: int
    unchecked: tuple[Unchecked, ...] = ()
    repairs: tuple[str, ...] = ()
