"""Figures of a program: inputs and outputs, accuracy, budgets, verification."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ethorch.formats.boundary import Codes
from ethorch.npu.passes.effect import PassEffect


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a program.

    Attributes:
        dtype: Name of the torch dtype, e.g. ``int8``.
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
    """The lowest SQNR in dB of a program's outputs relative to the float model, and the number of samples."""

    sqnr_db: float
    samples: int


@dataclass(frozen=True)
class Budget:
    """A budget, the program's figure (``found``), and whether the budget is met (``holds``).

    ``found`` and ``holds`` are None if unknown.
    """

    name: str
    limit: float
    found: float | None
    holds: bool | None


@dataclass(frozen=True)
class StreamPass:
    """A stream pass that changed delegates of a method.

    Attributes:
        name: Name of the pass (``ethorch.npu.passes``).
        delegates: Number of delegates that the pass changed.
        cycles_before, cycles_after: Total cycles of these delegates, estimated by ``ethorch.npu.cycles``.
        bytes_before, bytes_after: Total scratch and staging memory of these delegates.
    """

    name: str
    delegates: int
    cycles_before: int
    cycles_after: int
    bytes_before: int
    bytes_after: int


def sum_passes(effects: Iterable[PassEffect]) -> tuple[StreamPass, ...]:
    """Return the effects of each stream pass, summed over the delegates."""
    by_name: dict[str, list[PassEffect]] = {}
    for effect in effects:
        by_name.setdefault(effect.name, []).append(effect)
    columns = ("cycles_before", "cycles_after", "bytes_before", "bytes_after")
    return tuple(
        StreamPass(name, len(rows), *(sum(getattr(row, column) for row in rows) for column in columns))
        for name, rows in by_name.items()
    )


@dataclass(frozen=True)
class Unchecked:
    """A delegate that was not compared with the TOSA reference, and the reason."""

    method: str
    delegate: int
    reason: str


@dataclass(frozen=True)
class Verification:
    """The result of comparing a program's delegates with the TOSA reference. ``compile`` raises an error if outputs differ.

    Attributes:
        delegates, equal: Number of delegates in all methods, and number of delegates whose outputs equal the reference's.
        unchecked: Delegates that were not compared.
        repairs: Operators whose inputs or outputs are copied to avoid a Vela bug (``ethorch.vela.repair``).
    """

    delegates: int
    equal: int
    unchecked: tuple[Unchecked, ...] = ()
    repairs: tuple[str, ...] = ()
