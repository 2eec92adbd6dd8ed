"""Constants that are integers and truth values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.program.program import record_of


class Constants(nn.Module):
    """The least number of int32, and truth values beside computed ones."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([[True, False, True]]))

    def forward(self, x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        least = torch.iinfo(torch.int32).min
        return torch.maximum(x, torch.tensor(least, dtype=torch.int32)), torch.clamp(x, least, 5), torch.cat([m, self.mask])


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_constants(target: str) -> None:
    inputs = torch.tensor([[-7, 9, 2**31 - 1]], dtype=torch.int32), torch.tensor([[False, True, True]])
    program = ethorch.compile(Constants(), inputs, target)
    assert not record_of(program).build.partition.refusals
    for found, wanted in zip(program(*inputs), Constants()(*inputs), strict=True):
        assert torch.equal(torch.as_tensor(found), wanted)
