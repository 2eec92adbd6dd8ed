"""What is done to pictures before a model sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ethorch.support.errors import SpecError


class Normalize:
    """(x - mean) / std for each channel, of float32[C, H, W] or [N, C, H, W]; labels beside it stay as they are.

    Args:
        mean, std: one number for each channel, or one for all.

    Raises:
        SpecError: a std is not positive, or the two have different lengths.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        if len(mean) != len(std) or not mean or any(s <= 0 for s in std):
            raise SpecError(f"mean {list(mean)} and std {list(std)} have to be as many, and std positive.")
        self._mean = torch.tensor(mean, dtype=torch.float32).reshape(-1, 1, 1)
        self._std = torch.tensor(std, dtype=torch.float32).reshape(-1, 1, 1)

    def __call__(self, item: Any) -> Any:
        """An item of a data set, with its pictures normalized."""
        if isinstance(item, tuple):
            return (self(item[0]), *item[1:])
        return (item - self._mean) / self._std if isinstance(item, Tensor) and item.dim() in (3, 4) else item
