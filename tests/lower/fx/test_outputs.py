"""Outputs whose structure PyTorch cannot serialize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import ethorch


class Pair(NamedTuple):
    one: Tensor
    other: Tensor


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "delegated": lambda x: torch.max(x, 1),
    "on the CPU": lambda x: torch.sort(x, 1),
    "named tuple": lambda x: Pair(x.sin(), x.cos()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_with_several_outputs_can_be_returned(name: str) -> None:
    inputs = (torch.linspace(-3, 3, 20).reshape(2, 10),)
    result = ethorch.compile(Function(FUNCTIONS[name]), inputs, target="ethos-u55-128")(*inputs)
    assert type(result) is tuple
    for value, expected in zip(result, FUNCTIONS[name](*inputs), strict=True):
        torch.testing.assert_close(value, expected, atol=0.03, rtol=0)


def test_nests_of_other_types_are_kept() -> None:
    inputs = (torch.linspace(-3, 3, 20).reshape(2, 10),)
    program = ethorch.compile(Function(lambda x: {"a": [torch.max(x, 1), x.sin()]}), inputs, target="ethos-u55-128")
    result = program(*inputs)
    assert type(result["a"]) is list and type(result["a"][0]) is tuple and result["a"][0][1].tolist() == [9, 9]
