"""Tensors with more axes than the six that TOSA supports."""

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


class Turned(nn.Module):
    """An input and an output of more than six axes."""

    def forward(self, x: Tensor) -> Tensor:
        return (torch.relu(x) + 1).permute(tuple(reversed(range(x.dim()))))


CASES = {
    "unrolled": (Unrolled(), (1, 16, 16, 8)),
    "pixels": (Pixels(), (1, 3, 16, 16)),
    "seven axes": (Turned(), (2, 3, 1, 2, 1, 2, 3)),
    "eight axes": (Turned(), (1, 1, 1, 1, 1, 1, 1, 5)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("model", "shape"), CASES.values(), ids=CASES)
def test_views_of_views_stay_in_one_delegate(model: nn.Module, shape: tuple[int, ...], target: str) -> None:
    built = checked(model, [(torch.randn(shape),) for _ in range(4)], target)
    assert len(built.delegates) == 1
    assert not built.partition.refusals
