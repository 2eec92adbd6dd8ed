"""Integers known at compile time in place of each tensor that an operator takes, beside others that are computed."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn

from ethorch import QuantizationConfig
from ethorch.arm.quantizer import get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
from ethorch.support.errors import EthorchError
from tests.helpers.ladder.rungs import climb, lowered
from tests.helpers.ladder.samples import CASES, INPUTS, SPECS, Call, inputs_for, leaves
from tests.helpers.quantized import quantized


class WithConstant(nn.Module):
    """A call with one of its tensors a buffer."""

    def __init__(self, call: Call, place: int, constant: Tensor):
        super().__init__()
        self.call, self.place = call, place
        self.register_buffer("constant", constant)

    def forward(self, *inputs: Tensor) -> Tensor:
        before, behind = inputs[: self.place], inputs[self.place :]
        result: Tensor = self.call(*before, self.constant, *behind)
        return result


def integers(x: Tensor) -> Tensor:
    return x.round().to(torch.int32) if x.is_floating_point() else x


@pytest.mark.parametrize("place", (0, 1))
@pytest.mark.parametrize("name", ("aten.stack.default", "aten.cat.default", "aten.index_copy.default", "aten.index_put.default"))
def test_what_is_joined_or_written_into_may_be_constant(name: str, place: int) -> None:
    sample = SPECS[name].samples[0]
    tensors = tuple(map(integers, inputs_for(sample, 0)))
    rest = tensors[:place] + tensors[place + 1 :]
    q = quantized(WithConstant(Call(name, sample), place, tensors[place]), [rest])
    climb(q, rest)


class Compared(nn.Module):
    """Comparisons with a constant of numbers that no range contains."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bounds", torch.tensor([0.3, torch.nan, torch.inf, -torch.inf, 1e30, -0.1]))

    def forward(self, x: Tensor) -> list[Tensor]:
        bounds = [self.bounds, *(self.bounds[k] for k in range(6)), torch.nan]
        return [compare(x, bound) for compare in (torch.lt, torch.ge, torch.eq, torch.ne) for bound in bounds]


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("config", [get_symmetric_quantization_config(), get_symmetric_a16w8_quantization_config()])
def test_comparisons_with_numbers_beyond_any_range(config: QuantizationConfig, target: str) -> None:
    inputs = (torch.randn(5, 6),)
    q = quantized(Compared(), [inputs], config, target)
    climb(q, inputs, target)
    for found, wanted in zip(q.module(*inputs), Compared()(*inputs), strict=True):
        assert (found != wanted).sum() <= 2  # values next to 0.3 and -0.1


class Positions(nn.Module):
    """A table of integers, of which computed places are picked."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(40, dtype=torch.int32).flip(0)[None])

    def forward(self, places: Tensor) -> Tensor:
        return self.table.gather(1, places.to(torch.int64))


def test_a_table_of_integers_that_a_computed_index_picks_from() -> None:
    inputs = (torch.tensor([[3, 0, 39, 7]], dtype=torch.int32),)
    climb(quantized(Positions(), [inputs], target="ethos-u85-256"), inputs, "ethos-u85-256")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "index"), [case for case in CASES if len(list(leaves(SPECS[case[0]].samples[case[1]], INPUTS))) > 1]
)
def test_any_tensor_of_any_operator_may_be_constant(name: str, index: int) -> None:
    """Both as the sample has it and as integers: lowered, or refused with a reason; nothing else is raised."""
    sample = SPECS[name].samples[index]
    for given in (inputs_for(sample, 0), tuple(map(integers, inputs_for(sample, 0)))):
        for place in range(len(given)):
            rest = given[:place] + given[place + 1 :]
            module = WithConstant(Call(name, sample), place, given[place])
            try:
                module(*rest)
            except (RuntimeError, NotImplementedError, IndexError):
                continue  # PyTorch has no such call
            for target in ("ethos-u55-128", "ethos-u85-256"):
                with suppress(EthorchError):
                    lowered(quantized(module, [rest], target=target).converted, target)


class PartlyRotated(nn.Module):
    """What a rotary embedding of all channels does: the channels that are not turned are none."""

    def forward(self, x: Tensor) -> Tensor:
        turned, rest = x[..., :4], x[..., 4:]
        return torch.cat([torch.relu(turned) * 2, rest, rest.sin()], -1)


@pytest.mark.parametrize("target", ("ethos-u55-128", "ethos-u85-256"))
def test_tensors_without_elements_are_left_out(target: str) -> None:
    inputs = (torch.randn(1, 3, 4),)
    climb(quantized(PartlyRotated(), [inputs], target=target), inputs, target)
