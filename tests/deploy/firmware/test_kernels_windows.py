"""Pooling, convolution and padding of images beside ExecuTorch's runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.helpers.c_kernels import Loaded, Program, both, floats, inputs_of, only, programs_of, same_bits, steps_apart


def _pools(x: Tensor) -> tuple[Tensor, ...]:
    return (
        *F.max_pool2d(x, 2, return_indices=True),
        *F.max_pool2d(x, (3, 2), stride=(2, 1), padding=(1, 0), return_indices=True),
        *F.max_pool2d(x, 2, stride=3, dilation=2, padding=1, return_indices=True),
        *F.max_pool2d(x, 3, stride=2, ceil_mode=True, return_indices=True),
    )


def _means(x: Tensor) -> tuple[Tensor, ...]:
    return (
        F.avg_pool2d(x, 2),
        F.avg_pool2d(x, (3, 2), stride=(2, 1), padding=(1, 0)),
        F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False),
        F.avg_pool2d(x, 3, stride=2, padding=1, ceil_mode=True),
        F.avg_pool2d(x, 2, divisor_override=5),
        F.adaptive_avg_pool2d(x, (3, 2)),
    )


def _pads(x: Tensor) -> tuple[Tensor, ...]:
    return (
        F.pad(x, (2, 1, 1, 3), mode="reflect"),
        F.pad(x[0], (2, 0), mode="reflect"),
        F.pad(x, (2, 1, 0, 3), mode="replicate"),
        F.pad(x[0], (1, 4), mode="replicate"),
        F.pad(x, (2, 1, 1, 3), mode="circular"),
    )


class Convolutions(torch.nn.Module):
    """Convolutions of images and of sequences: grouped, dilated, strided, without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.images = torch.nn.ModuleList(
            [
                torch.nn.Conv2d(4, 6, 3, padding=1),
                torch.nn.Conv2d(4, 8, (3, 2), stride=(2, 1), groups=2),
                torch.nn.Conv2d(4, 4, 3, dilation=2, padding=(2, 1), groups=4, bias=False),
                torch.nn.Conv2d(4, 5, 1),
            ]
        )
        self.sequence = torch.nn.Conv1d(4, 3, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (*(layer(x) for layer in self.images), self.sequence(x[:, :, 0]))


CASES: dict[str, tuple[Callable[..., tuple[Tensor, ...]], Callable[[], Tensor]]] = {
    "pools_float32": (_pools, lambda: floats(2, 4, 6, 8)),
    "pools_int8": (_pools, lambda: torch.randint(-128, 128, (2, 4, 6, 8), dtype=torch.int8)),
    "means": (_means, lambda: torch.randn(2, 4, 6, 8)),
    "pads_float32": (_pads, lambda: floats(2, 4, 6, 8)),
    "pads_int8": (_pads, lambda: torch.randint(-128, 128, (2, 4, 6, 8), dtype=torch.int8)),
}


@lru_cache(maxsize=1)
def programs(names: frozenset[str] = frozenset(CASES)) -> dict[str, Program]:
    return programs_of(only(CASES, names), convolutions=(Convolutions(), [torch.zeros(2, 4, 6, 8)]))


#: Each function once.
FEW = ("pools_float32", "means", "pads_int8")


@pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.long) for name in CASES])
def test_the_c_gives_what_the_runtime_gives(name: str, library: Loaded) -> None:
    found = both(library, name, inputs_of(CASES, name))
    for number, (got, want) in enumerate(found):
        assert same_bits(got, want), (number, got, want)


def test_convolutions_are_those_of_the_runtime(library: Loaded) -> None:
    x = torch.rand(2, 4, 6, 8) + 1
    for got, want in both(library, "convolutions", [x]):
        assert steps_apart(got, want) <= 4 and got.shape == want.shape
