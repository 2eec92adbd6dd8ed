"""Similarity of the outputs of two models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ethorch.support import trees

if TYPE_CHECKING:
    from torch import Tensor

#: Maps outputs of the float and of the quantized model, one per sample, to a number; larger is better.
Metric = Callable[[Sequence[Any], Sequence[Any]], float]


def sqnr_db(reference: Any, approximation: Any) -> float:
    """Return the signal-to-quantization-noise ratio in dB: 10 log10(sum of reference^2 / sum of error^2).

    Sums run in float64 over all tensors in nests of tuples, lists and dicts; only over floating-point ones if the reference has
    any. The ratio is inf for equal tensors, -inf if only the reference is zero, and nan for NaNs.

    Raises:
        ValueError: The numbers of tensors or their shapes differ.
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
    return 10 * math.log10(signal / noise) if signal != 0 else -math.inf


def _tensors(outputs: Any) -> list[Tensor]:
    return [leaf.detach() for leaf in trees.leaves(outputs) if trees.is_tensor(leaf)]
