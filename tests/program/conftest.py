"""A small network and images for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ethorch


@pytest.fixture(scope="session")
def images() -> list[Tensor]:
    """Eight smooth pictures, float[1, 3, 16, 16] of 0..1: neighbouring pixels are alike."""
    generator = torch.Generator().manual_seed(0)
    small = torch.rand(8, 1, 3, 4, 4, generator=generator)
    return [nn.functional.interpolate(x, (16, 16), mode="bilinear") for x in small]


@pytest.fixture(scope="session")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU6(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)
    ).eval()


@pytest.fixture(scope="session")
def program(model: nn.Module, images: list[Tensor]) -> ethorch.Program:
    return ethorch.compile(model, images[0], "ethos-u55-128", calibration=images)
