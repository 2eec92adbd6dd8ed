"""Maximum pools whose indices are used stay on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ethorch
from ethorch.support.errors import HostError


class Pool(nn.Module):
    def __init__(self, function: Callable[[Tensor], tuple[Tensor, Tensor]]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.function(x)


def test_indices_of_one_axis_come_from_the_cpu() -> None:
    model, x = Pool(lambda x: F.max_pool1d(x, 2, return_indices=True)), torch.randn(1, 4, 8)
    values, indices = ethorch.compile(model, x, "ethos-u85-256", calibration=[x])(x)
    expected = model(x)
    assert torch.equal(indices, expected[1]) and ethorch.sqnr_db(expected[0], values) > 30


@pytest.mark.parametrize(
    ("function", "shape", "operator"),
    [
        (lambda x: F.max_pool3d(x, 2, return_indices=True), (1, 2, 4, 4, 4), "max_pool3d_with_indices"),
        (lambda x: F.adaptive_max_pool1d(x, 2, return_indices=True), (1, 4, 8), "adaptive_max_pool2d"),
    ],
)
def test_indices_without_a_kernel_are_refused(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], shape: tuple[int, ...], operator: str
) -> None:
    x = torch.randn(shape)
    program = ethorch.compile(Pool(function), x, "ethos-u85-256", calibration=[x])
    with pytest.raises(HostError, match=f"no CPU kernel: aten::{operator}"):
        program(x)
