"""Networks of equal layers, to measure the growth of compile time with the number of layers."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from bench.models.case import ModelCase, conv_bn, picture
from bench.models.sequence import BertEncoder


class Chain(nn.Module):
    """A classifier of 32x32 images: ``layers`` 3x3 convolutions with ReLU, a mean over positions, and a linear layer."""

    def __init__(self, layers: int, channels: int = 16):
        super().__init__()
        blocks = [conv_bn(3 if layer == 0 else channels, channels, 3, 2 if layer == 0 else 1) for layer in range(layers)]
        self.blocks, self.classifier = nn.Sequential(*blocks), nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))


LAYERS_OF_CHAIN, LAYERS_OF_TRANSFORMER = (50, 100, 200), (3, 6, 12)

GROWING: dict[str, ModelCase] = {
    case.name: case
    for case in (
        *(ModelCase(f"cnn_{n}", partial(Chain, n), picture(32), f"a chain of {n} convolutions") for n in LAYERS_OF_CHAIN),
        *(
            ModelCase(f"transformer_{n}", partial(BertEncoder, layers=n), BertEncoder.sample, f"BERT of {n} layers of 128")
            for n in LAYERS_OF_TRANSFORMER
        ),
    )
}
