"""Figures of merit: how near the outputs of one model are to those of another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ethorch.support import trees

if TYPE_CHECKING:
    from torch import Tensor

#: (outputs of the float model, outputs of the quantized one), an entry for each sample -> a number, larger is better.
Metric = Callable[[Sequence[Any], Sequence[Any]], float]


def sqnr_db(reference: Any, other: Any) -> float:
    """10 log10(sum of reference^2 / sum of (reference - other)^2) in dB, the signal-to-quantization-noise ratio.

    Sums run in float64 over all tensors of the two: a tensor each, or nests of tuples, lists and dicts, one output or those of
    many samples. Where some of the reference's tensors are floating-point, only those count. The ratio is inf where nothing
    differs, -inf where the reference is zero and something differs, and nan where there is a NaN.

    Args:
        reference: what is right.
        other: of the same structure and shapes.

    Raises:
        ValueError: the two hold different numbers of tensors, or a pair has different shapes.
    """
    pairs = list(zip(_tensors(reference), _tensors(other), strict=True))
    for a, b in pairs:
        if a.shape != b.shape:
            raise ValueError(f"an output has the shape {list(b.shape)}, the reference {list(a.shape)}")
    floating = [(a, b) for a, b in pairs if a.dtype.is_floating_point]
    signal = noise = 0.0
    for a, b in floating or pairs:
        signal += float((a.double() ** 2).sum())
        noise += float(((a.double() - b.double()) ** 2).sum())
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal != 0 else -math.inf


def _tensors(outputs: Any) -> list[Tensor]:
    """The tensors in any nest of outputs, in order."""
    return [leaf.detach() for leaf in trees.leaves(outputs) if trees.is_tensor(leaf)]
