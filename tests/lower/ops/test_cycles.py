"""Cycles, by Vela's estimate, of forms in which data were moved that need not be."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from bench.models.various import Decoder
from bench.tuning import cycles, of_module
from ethorch.targets import TARGETS
from tests.helpers.quantized import Function


def clip() -> nn.Module:
    return nn.Sequential(nn.Conv3d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 16, 3, stride=2, padding=1))


def enlarged() -> nn.Module:
    return nn.ConvTranspose2d(16, 3, 3, 2, 1, 1)


def shuffled(channels: int) -> nn.Module:
    """The end of a network for super-resolution: a picture of twice the side, by tanh in -1..1."""
    return nn.Sequential(nn.Conv2d(16, 4 * channels, 3, padding=1), nn.PixelShuffle(2), nn.Tanh())


def last_maximum(x: Tensor) -> Tensor:
    return x.amax(-1)


def middle_maximum(x: Tensor) -> Tensor:
    return x.amax(1)


def quotient(x: Tensor) -> Tensor:
    return x[0] / (x[1].abs() + 1)


def selection(x: Tensor) -> Tensor:
    return torch.where(x[0] > 0, x[1], 3 * x[0])


def filled(x: Tensor) -> Tensor:
    return x[0].masked_fill(x[1] > 0, 0.5)


def causal(x: Tensor) -> Tensor:
    return x.masked_fill(torch.ones(64, 64).triu(1) > 0, 0.0)


CASES = [
    ("ethos-u85-256", clip, (1, 3, 8, 16, 16), 50_000),  # 724,675 with planes copied side by side
    ("ethos-u55-128", clip, (1, 3, 8, 16, 16), 65_000),  # 391,328
    ("ethos-u85-256", enlarged, (1, 16, 32, 32), 50_000),  # 86,249 as TRANSPOSE_CONV2D
    ("ethos-u55-128", enlarged, (1, 16, 32, 32), 50_000),  # 114,034 with rows and columns cut off in turn
    ("ethos-u55-128", partial(shuffled, 1), (1, 16, 24, 24), 15_000),  # 18,046 with a pass for the table
    ("ethos-u85-256", partial(shuffled, 1), (1, 16, 24, 24), 56_000),  # 57,527
    ("ethos-u85-256", partial(shuffled, 3), (1, 16, 24, 24), 90_000),  # 192,904 with the table between shuffle and convolution
    ("ethos-u85-256", partial(nn.Softmax, -1), (3, 197, 197), 240_000),  # 353,092 with a TRANSPOSE for the maxima and two tables
    ("ethos-u55-128", partial(nn.Softmax, -1), (3, 197, 197), 410_000),  # 695,957
    ("ethos-u85-256", partial(Function, last_maximum), (3, 3, 3, 4, 16), 2_000),  # 5,432 with slices of five axes
    ("ethos-u85-256", Decoder, (1, Decoder.TOKENS, Decoder.WIDTH), 146_264),  # the Arm backend's cycles
    ("ethos-u55-128", Decoder, (1, Decoder.TOKENS, Decoder.WIDTH), 574_875),
    ("ethos-u85-256", partial(Function, middle_maximum), (64, 8, 16), 3_000),  # 7,424 with a pool for each outer index
    ("ethos-u55-128", partial(Function, middle_maximum), (64, 8, 16), 5_000),  # 10,432
    ("ethos-u85-256", partial(Function, torch.abs), (2, 10), 100),  # 1,406 with a table
    ("ethos-u55-128", partial(Function, torch.neg), (2, 10), 100),  # 450
    ("ethos-u55-128", partial(Function, quotient), (2, 32, 64), 14_000),  # 43,628 with a reciprocal from int16 tables
    ("ethos-u85-256", partial(Function, quotient), (2, 32, 64), 7_000),  # 8,121
    ("ethos-u85-256", partial(Function, selection), (2, 32, 64), 9_000),  # 11,561 with sums of int32 and 0
    ("ethos-u55-128", partial(Function, filled), (2, 32, 64), 10_000),  # 18,400 with products in int32
    ("ethos-u55-128", partial(Function, causal), (4, 64, 64), 17_000),  # 184,944
    ("ethos-u85-256", nn.ReLU, (1, 16, 32, 32), 5_500),  # 12,499 as a pool
]


@pytest.mark.parametrize(
    ("target", "make", "shape", "most"),
    [pytest.param(*case, marks=[pytest.mark.long] * (number in (1, 2, 5, 11))) for number, case in enumerate(CASES)],
)
def test_cycles_are_at_most(target: str, make, shape: tuple[int, ...], most: int) -> None:
    assert cycles(TARGETS[target], of_module(make, *shape)) <= most
