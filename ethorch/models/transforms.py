"""Transforms of input images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ethorch.support.errors import SpecError


class Normalize:
    """A transform that computes (x - mean) / std per channel of float32 [C, H, W] or [N, C, H, W]. Labels are unchanged.

    Args:
        mean, std: Lists of one number per channel, or of one number for all channels.

    Raises:
        SpecError: A value in ``std`` is not positive, or the lengths of ``mean`` and ``std`` differ or are 0.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        if len(mean) != len(std) or not mean or any(s <= 0 for s in std):
            raise SpecError(
                f"expected mean and std of equal lengths and a positive std, got mean {list(mean)} and std {list(std)}."
            )
        self._mean = torch.tensor(mean, dtype=torch.float32).reshape(-1, 1, 1)
        self._std = torch.tensor(std, dtype=torch.float32).reshape(-1, 1, 1)

    def __call__(self, item: Any) -> Any:
        """Normalize an image, or the image of an (image, label) item."""
        if isinstance(item, tuple):
            return (self(item[0]), *item[1:])
        if not isinstance(item, Tensor) or item.dim() not in (3, 4):
            return item
        if (count := len(self._mean)) not in (1, item.shape[-3]):
            raise SpecError(
                f"expected one number in mean and std, or one for each of the image's {item.shape[-3]} channels, got {count}."
            )
        return (item - self._mean) / self._std
