"""Similarity metrics for the outputs of two models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ethorch.support import trees

if TYPE_CHECKING:
    from torch import Tensor

#: Function that maps the outputs of the float model and the quantized model, one per sample, to a number. Larger is better.
Metric = Callable[[Sequence[Any], Sequence[Any]], float]


@dataclass
class Ratio:
    """Sums of squares of a reference and of its error, in float64."""

    signal: float = 0.0
    noise: float = 0.0

    def add(self, reference: Tensor, approximation: Tensor) -> None:
        """Add the squares of all elements."""
        signal = reference.double()
        self.signal += float((signal**2).sum())
        self.noise += float(((signal - approximation.double()) ** 2).sum())

    @property
    def db(self) -> float:
        """10 log10(signal / noise): inf if the noise is 0, -inf if only the signal is 0 or the noise is infinite, nan for NaN."""
        if self.noise == 0:
            return math.inf
        ratio = self.signal / self.noise
        return 10 * math.log10(ratio) if ratio != 0 else -math.inf


def sqnr_db(reference: Any, approximation: Any) -> float:
    """Return the signal-to-quantization-noise ratio in dB: 10 log10(sum of reference^2 / sum of error^2).

    Sums are computed in float64 over all tensors in nested tuples, lists and dicts, or only over floating-point tensors if any
    tensor is floating-point. The ratio is inf for equal tensors, -inf if only the reference is zero or the error is infinite, and
    nan if a tensor contains NaN.

    Raises:
        ValueError: The number or the shapes of the tensors differ.
    """
    pairs = list(zip(_tensors(reference), _tensors(approximation), strict=True))
    for a, b in pairs:
        if a.shape != b.shape:
            raise ValueError(f"expected an output of shape {list(a.shape)}, got {list(b.shape)}")
    ratio = Ratio()
    for a, b in [(a, b) for a, b in pairs if a.dtype.is_floating_point] or pairs:
        ratio.add(a, b)
    return ratio.db


def _tensors(outputs: Any) -> list[Tensor]:
    return [leaf.detach() for leaf in trees.leaves(outputs) if trees.is_tensor(leaf)]
