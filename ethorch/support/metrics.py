"""Similarity metrics for the outputs of two models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ethorch.support import trees

if TYPE_CHECKING:
    from torch import Tensor

#: Function that maps the outputs of the float model and the quantized model, one per sample, to a number. Larger is better.
Metric = Callable[[Sequence[Any], Sequence[Any]], float]


def sqnr_db(reference: Any, approximation: Any) -> float:
    """Return the signal-to-quantization-noise ratio in dB: 10 log10(sum of reference^2 / sum of error^2).

    Sums are computed in float64 over all tensors in nested tuples, lists and dicts, or only over floating-point tensors if there
    are any. The ratio is inf for equal tensors, -inf if only the reference is zero or the error is infinite, and nan if a tensor
    contains NaN.

    Raises:
        ValueError: The number or the shapes of the tensors differ.
    """
    pairs = list(zip(_tensors(reference), _tensors(approximation), strict=True))
    for a, b in pairs:
        if a.shape != b.shape:
            raise ValueError(f"expected an output of shape {list(a.shape)}, got {list(b.shape)}")
    floating = [(a, b) for a, b in pairs if a.dtype.is_floating_point]
    signal = noise = 0.0
    for a, b in floating or pairs:
        signal += float((a.double() ** 2).sum())
        noise += float(((a.double() - b.double()) ** 2).sum())
    if noise == 0:
        return math.inf
    ratio = signal / noise
    return 10 * math.log10(ratio) if ratio != 0 else -math.inf


def _tensors(outputs: Any) -> list[Tensor]:
    return [leaf.detach() for leaf in trees.leaves(outputs) if trees.is_tensor(leaf)]
