"""Numbers and shapes that depend on constants alone: they are fixed in the exported program, as in eager execution."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from ethorch.lower.fx.export import export_module
from ethorch.lower.fx.node import shape_of_values
from ethorch.support.errors import UserCodeError

Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


class WithConstants(nn.Module):
    """A function of the input, of places int64[4] and of a mask bool[6]."""

    def __init__(self, function: Forward):
        super().__init__()
        self.function = function
        self.register_buffer("places", torch.tensor([0, 2, 3, 6]))
        self.register_buffer("mask", torch.tensor([True, False, True, True, False, False]))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.places, self.mask)


def pieces(x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
    out = torch.zeros(6, 3)
    for k, (start, end) in enumerate(pairwise(places)):
        out[start:end] = x[start:end] * (k + 1)
    return out


def where_true(x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
    out = x + 0
    out[mask.nonzero().view(-1)] = 1.0
    return out


def rows_of_a_mask(x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
    return torch.relu(x[mask])


def counted(x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
    """A constant is written in place before it says how many there are."""
    degrees = torch.zeros(6).scatter_add_(0, places[:-1], torch.ones(3))
    degrees[1] += 2
    return x.repeat(int(degrees.max()), 1)[: len(degrees.unique()) + 2]


def like_the_input(x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
    """The shape of the input is known, and so is what is made of it alone."""
    free = torch.full_like(x[:, 0], True).bool()
    free[places[1]] = False
    return x[free]


def branched(x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
    return x.relu() if bool(mask.any()) and places.tolist()[1] == 2 else -x


FUNCTIONS = [pieces, where_true, rows_of_a_mask, counted, like_the_input, branched]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_what_depends_on_constants_is_fixed(function: Forward) -> None:
    module, x = WithConstants(function), torch.randn(6, 3)
    program = export_module(module, (x,))
    assert not any(map(shape_of_values, program.graph.nodes))
    for scale in (1, -2):
        torch.testing.assert_close(program.module()(x * scale), module(x * scale), rtol=0, atol=0)


def write_of_the_input(x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
    """A constant that the input is written to is not one."""
    numbers = torch.zeros(6)
    numbers.view(2, 3).copy_(x[:2])
    return x[numbers > 0]


def state(x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
    """A buffer that the module writes to has other values in the next call."""
    places.add_(1)
    return x[: places[1]]


@pytest.mark.parametrize("function", [write_of_the_input, state], ids=lambda function: function.__name__)
def test_what_changes_is_not_fixed(function: Forward) -> None:
    try:
        program = export_module(WithConstants(function), (torch.randn(6, 3),))
    except UserCodeError:
        return
    assert any(map(shape_of_values, program.graph.nodes))


def test_the_module_stays_as_it_was() -> None:
    module, x = WithConstants(pieces), torch.randn(6, 3)
    export_module(module, (x,))
    assert not module._forward_hooks
    assert not module._forward_pre_hooks
    torch.testing.assert_close(module(x)[0], x[0])
