"""Tensors of many axes: what is permuted again and again has at most six where something is computed, the most that TOSA takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.networks import TARGETS, checked


class Unrolled(nn.Module):
    """Places of a map grouped two by two, three times over, as Hiera does it; then a norm over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        count, side, channels = len(x), 16, 8
        x = x + 1
        for _ in range(3):
            side //= 2
            x = x.reshape(count, side, 2, side, 2, channels).permute(0, 2, 4, 1, 3, 5).reshape(count * 4, side, side, channels)
            count *= 4
        x = x.reshape(1, 256, channels)
        return x + self.project(self.norm(x))


class Pixels(nn.Module):
    """Windows of windows by one view of eight dims."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(1, 3, 2, 2, 4, 2, 2, 4).permute(0, 2, 5, 3, 6, 4, 7, 1)
        return (x.reshape(4, 2, 2, 48) * 2).sigmoid()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("model", "shape"), [(Unrolled(), (1, 16, 16, 8)), (Pixels(), (1, 3, 16, 16))], ids=["unrolled", "pixels"])
def test_views_of_views_stay_in_one_delegate(model: nn.Module, shape: tuple[int, ...], target: str) -> None:
    built = checked(model, [(torch.randn(shape),) for _ in range(4)], target)
    assert len(built.delegates) == 1
    assert not built.partition.refusals
