"""Remainders of integers have the sign of the divisor, also on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import ethorch
from tests.helpers.quantized import Function

DIVIDENDS = torch.tensor([-7, -3, -2, -1, 0, 1, 2, 7, 100, -100])
DIVISORS = torch.tensor([3, -3, 5, 7, -1, 2, -8, 4, 120, -120])


def run(function: Callable[..., Tensor], *numbers: Tensor) -> Tensor:
    inputs = (torch.ones(1, 4), *numbers)
    model = Function(lambda x, *numbers: (x * 2, function(*numbers)))  # an operator for the NPU, and integers
    result: Tensor = ethorch.compile(model, inputs, calibration=[inputs])(*inputs)[1]
    return result


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8])
def test_remainders_are_those_of_pytorch(dtype: torch.dtype) -> None:
    def list_remainders(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([x % 3, x % -3, x % 8, x % 120, x % y])

    x, y = DIVIDENDS.to(dtype), DIVISORS.to(dtype)
    assert torch.equal(run(list_remainders, x, y), list_remainders(x, y))


def test_large_remainders_are_exact() -> None:
    x = torch.tensor([2**60 + 3, -(2**60) - 3, 2**62, -(2**62)])
    assert torch.equal(run(lambda x: x % (2**40 + 1), x), x % (2**40 + 1))


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_remainders_as_indices(target: str) -> None:
    """``take_along_dim`` computes remainders, so that negative indices count from the end."""
    torch.manual_seed(0)
    samples = [(torch.randn(5, 8), torch.randint(-8, 8, (5, 3))) for _ in range(4)]

    class Model(nn.Module):
        def forward(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
            return torch.take_along_dim(x * 2, index, 1), x[index[:, 0] % 3]

    program = ethorch.compile(Model().eval(), samples[0], target, calibration=samples)
    for wanted, found in zip(Model()(*samples[1]), program(*samples[1]), strict=True):
        assert ethorch.sqnr_db(wanted, found) > 30
