"""float64 inside a network of float32: it is computed, and quantized, as float32."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import ethorch
from ethorch.program.program import record_of


class Rotated(nn.Module):
    """A rotary embedding in complex128, as diffusers' Wan computes it."""

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(6, dtype=torch.float64), 1 / 10000 ** (torch.arange(0, 8, 2, dtype=torch.float64) / 8))
        turns = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex((x * 2).to(torch.float64).unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns).flatten(2).type_as(x)


def test_a_rotation_in_float64_is_one_delegate() -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(1, 6, 8),)
    program = ethorch.compile(Rotated(), inputs, "ethos-u55-128", progress=False)
    assert record_of(program).build is not None
    assert len(record_of(program).build.delegates) == 1
    assert not record_of(program).build.partition.refusals
    assert ethorch.sqnr_db(Rotated()(*inputs), program(*inputs)) > 35


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.relu() + 1).double() * 2


def test_a_result_in_float64_keeps_its_dtype() -> None:
    inputs = (torch.randn(2, 8),)
    program = ethorch.compile(Doubled(), inputs, "ethos-u55-128", progress=False)
    result = program(*inputs)
    assert result.dtype == torch.float64
    assert ethorch.sqnr_db(Doubled()(*inputs), result) > 35
