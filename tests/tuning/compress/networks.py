"""A network with a layer of each kind that recipes know, and samples for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Kinds(nn.Module):
    """float[N, 8, 12, 12] -> float[N, 10]: convolutions with and without groups and batch normalization, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm = nn.Conv2d(8, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.depthwise = nn.Conv2d(32, 32, 3, groups=32, padding=1)
        self.grouped = nn.Conv2d(32, 32, 3, groups=2, stride=2)
        self.point = nn.Conv2d(32, 96, 1)
        self.head = nn.Linear(96, 10)
        with torch.no_grad():
            self.norm.weight.copy_(torch.linspace(-1.5, 1.5, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.point(torch.relu(self.grouped(torch.relu(self.depthwise(x))))))
        return self.head(x.mean((2, 3)))


def kinds() -> nn.Module:
    """The network in eval mode, its statistics those of the samples."""
    model = Kinds()
    with torch.no_grad():
        model(torch.cat([x for (x,) in SAMPLES]))
    return model.eval()


def _smooth(seed: int) -> Tensor:
    noise = torch.randn(1, 8, 12, 12, generator=torch.Generator().manual_seed(seed))
    return nn.functional.avg_pool2d(noise, 3, 1, 1) * 2


SAMPLES = [(_smooth(seed),) for seed in range(12)]
