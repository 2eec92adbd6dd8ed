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
    """The sums of squares of a reference and of the deviation from it, in float64."""

    signal: float = 0.0
    noise: float = 0.0

    def add(self, reference: Tensor, approximation: Tensor) -> None:
        signal = reference.double()
        self.signal += float((signal**2).sum())
        self.noise += float(((signal - approximation.double()) ** 2).sum())

    @property
    def db(self) -> float:
        """The ratio of the sums in dB. It is inf without deviation, and -inf for a zero reference or an infinite deviation."""
        if self.noise == 0:
            return math.inf
        ratio = self.signal / self.noise
        return 10 * math.log10(ratio) if ratio != 0 else -math.inf


def sqnr_db(reference: Any, approximation: Any) -> float:
    """Return the signal-to-quantization-noise ratio in dB: 10 log10(sum of reference^2 / sum of error^2).

    Sums are computed in float64 over all tensors in nested tuples, lists and dicts. If the reference contains floating-point
    tensors, only these count. The ratio is inf for equal tensors, and nan if a tensor contains NaN. It is -inf if the error is
    infinite, or if only the reference is zero.

    Raises:
        ValueError: The number or the shapes of the tensors differ, or only the reference is floating-point.
    """
    ratio = Ratio()
    for _, a, b in _pair_tensors(reference, approximation):
        ratio.add(a, b)
    return ratio.db


class OutputRatios:
    """The signal-to-noise ratio of each output, over several samples."""

    def __init__(self) -> None:
        self._ratios: dict[int, Ratio] = {}

    def add(self, reference: Any, approximation: Any) -> None:
        """Add the outputs for a sample to the ratios. Tensors are compared as in :func:`sqnr_db`."""
        for number, a, b in _pair_tensors(reference, approximation):
            self._ratios.setdefault(number, Ratio()).add(a, b)

    @property
    def db(self) -> float:
        """The lowest ratio in dB. Outputs whose reference is 0 are ignored, unless all references are 0."""
        ratios = list(self._ratios.values())
        decibels = [ratio.db for ratio in [ratio for ratio in ratios if ratio.signal != 0] or ratios]
        return math.nan if any(map(math.isnan, decibels)) else min(decibels, default=math.inf)


def lowest_sqnr_db(references: Sequence[Any], approximations: Sequence[Any]) -> float:
    """Compute the SQNR of each output over all samples, and return the lowest in dB. Raise ValueError as :func:`sqnr_db` does."""
    ratios = OutputRatios()
    for reference, approximation in zip(references, approximations, strict=True):
        ratios.add(reference, approximation)
    return ratios.db


def _pair_tensors(reference: Any, approximation: Any) -> list[tuple[int, Tensor, Tensor]]:
    pairs = list(zip(_tensors(reference), _tensors(approximation), strict=True))
    for number, (a, b) in enumerate(pairs):
        if a.shape != b.shape:
            raise ValueError(f"expected an output of shape {list(a.shape)}, got {list(b.shape)}")
        if a.dtype.is_floating_point and not b.dtype.is_floating_point:
            raise ValueError(
                f"expected a floating-point output {number}, got {b.dtype}. Dequantize the outputs of a program, "
                f"for example with program.outputs[{number}].codes.dequantize(output)."
            )
    rows = [(number, a, b) for number, (a, b) in enumerate(pairs)]
    return [row for row in rows if row[1].dtype.is_floating_point] or rows


def _tensors(outputs: Any) -> list[Tensor]:
    return [leaf.detach() for leaf in trees.leaves(outputs) if trees.is_tensor(leaf)]
