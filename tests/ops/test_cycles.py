"""Cycles, by Vela's estimate, of forms in which data were moved that need not be."""

from __future__ import annotations

import pytest
from torch import nn

from bench.tuning import cycles, of_module
from ethorch.target import TARGETS


def clip() -> nn.Module:
    return nn.Sequential(nn.Conv3d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 16, 3, stride=2, padding=1))


def enlarged() -> nn.Module:
    return nn.ConvTranspose2d(16, 3, 3, 2, 1, 1)


CASES = [
    ("ethos-u85-256", clip, (1, 3, 8, 16, 16), 50_000),  # 724,675 with planes copied side by side
    ("ethos-u55-128", clip, (1, 3, 8, 16, 16), 65_000),  # 391,328
    ("ethos-u85-256", enlarged, (1, 16, 32, 32), 50_000),  # 86,249 as TRANSPOSE_CONV2D
    ("ethos-u55-128", enlarged, (1, 16, 32, 32), 50_000),  # 114,034 with rows and columns cut off in turn
]


@pytest.mark.parametrize(("target", "make", "shape", "most"), CASES)
def test_cycles_are_at_most(target: str, make, shape: tuple[int, ...], most: int) -> None:
    assert cycles(TARGETS[target], of_module(make, *shape)) <= most
