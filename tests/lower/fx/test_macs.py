"""Multiply-accumulates are the model's: the same on each NPU, and what PyTorch's own counter says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import ethorch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 3, groups=8)
        self.up, self.head = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(torch.relu(self.depthwise(torch.relu(self.stem(x)))))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
def test_the_count_is_the_models(target: str) -> None:
    model, x = Net().eval(), torch.rand(1, 3, 16, 16)
    with FlopCounterMode(display=False) as counter:
        model(x)
    program = ethorch.compile(model, x, target)
    assert program.estimate.macs == program.to_json()["mac_count"] == counter.get_total_flops() // 2
