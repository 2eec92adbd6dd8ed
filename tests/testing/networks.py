"""Small models for the tests of ``ethorch.testing``."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A convolution, a mean, a linear layer: one delegate."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.stem(x)).mean((2, 3)))


class Topk(Net):
    """The CPU's topk between two delegates."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.topk(torch.relu(self.stem(x)), 2, dim=3).values * 2


class TopkTwice(Topk):
    """Two operators of the CPU, which one reason keeps there."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.topk(super().forward(x), 2, dim=2).values


class OnlyTopk(nn.Module):
    """Nothing for the NPU."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.topk(x, 2, dim=3).values


class Counts(nn.Module):
    """A model with a state: each call adds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(1, 4))
        self.total: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(torch.relu(self.linear(x)))
        return self.total * 0.5


def image() -> tuple[Tensor]:
    return (torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1)),)


def images(count: int = 4) -> list[tuple[Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(1, 3, 8, 8, generator=generator),) for _ in range(count)]
