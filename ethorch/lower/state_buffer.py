from __future__ import annotations

from dataclasses import dataclass

from ethorch.support.errors import Reason


@dataclass(frozen=True)
class StateBuffer:
    """A mutable buffer and its quantization.

    Attributes:
        dtype: Name of the torch dtype in the program.
        scale, zero_point: Quantization parameters, or None if the buffer is not quantized.
        reason: Reason why the buffer remains float, or None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: float | None = None
    zero_point: int | None = None
    reason: Reason | None = None
