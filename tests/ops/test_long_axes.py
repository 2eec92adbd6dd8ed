"""Axes so long that an operation for each index, or a matrix of their square, would take Vela minutes: few, or a reason."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ethorch import get_symmetric_a16w8_quantization_config
from ethorch.fx.node import constants_of
from ethorch.lower.delegate import builder_for
from ethorch.lower.walk import Walk
from ethorch.target.npus import TARGETS as TARGETS_BY_NAME
from tests.support.ladder import climb, refusal_ids
from tests.support.quantized import quantized

TARGETS = ["ethos-u55-128", "ethos-u85-256"]


class Running(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, self.dim)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("shape", "dim"), [((2, 2049), 1), ((5000, 3), 0), ((2, 32_767, 2), -2)], ids=str)
def test_running_sums_of_long_dims(shape: tuple[int, ...], dim: int, target: str) -> None:
    inputs = (torch.rand(shape) - 0.3,)
    graph, _ = climb(quantized(Running(dim), [inputs], target=target), inputs, target)
    assert max(value.data.size for op in graph.ops for value in op.operands if value.data is not None) <= 1 << 16


def test_running_sums_of_long_dims_of_int16_are_refused() -> None:
    inputs = (torch.rand(2, 2049),)
    program = quantized(Running(1), [inputs], get_symmetric_a16w8_quantization_config()).program
    assert refusal_ids(program, "ethos-u55-128") == {"cumsum.extent"}


class Total(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("extent", [65_537, 131_074])
def test_sums_over_extents_with_small_divisors(extent: int, target: str) -> None:
    """Sums of two, each rounded to fit the sum of them all, drifted by 36 steps of int16."""
    inputs = (torch.rand(2, extent) - 0.4,)
    config = get_symmetric_a16w8_quantization_config()
    climb(quantized(Total(), [inputs], config, target=target), inputs, target, tolerance=1)


class Rows(nn.Module):
    def __init__(self, returned: bool):
        super().__init__()
        self.returned = returned

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        rows = torch.relu(x).unbind(0)
        return rows if self.returned else (rows[0] + rows[-1],)


@pytest.mark.parametrize("returned", [False, True])
def test_more_results_than_vela_finds_places_for(returned: bool) -> None:
    """Of 514 results the last two are refused; 514 of which two are read are not."""
    inputs = (torch.rand(514, 4),)
    program = quantized(Rows(returned), [inputs], target="ethos-u55-128").program
    walk = Walk(program.graph, constants_of(program), builder_for(TARGETS_BY_NAME["ethos-u55-128"]), strict=False).run()
    assert [reason.id for reason in walk.refusals.values()] == ["graph.returned_late"] * 2 * returned


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.max_pool2d(x, 2)


class Products(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x, x)


@pytest.mark.parametrize(
    ("module", "shape", "target", "id"),
    [
        (Pooled(), (16_385, 1, 2, 2), "ethos-u55-128", "MAX_POOL2D.pictures"),
        (Pooled(), (16_385, 1, 2, 2), "ethos-u85-256", "MAX_POOL2D.pictures"),
        (nn.Conv2d(1, 1, 2), (16_385, 1, 2, 2), "ethos-u85-256", "CONV2D.pictures"),
        (Products(), (16_385, 2, 2), "ethos-u85-256", "MATMUL.pictures"),
    ],
)
def test_batches_of_which_vela_makes_an_operation_each(module: nn.Module, shape: tuple[int, ...], target: str, id: str) -> None:
    inputs = (torch.rand(shape),)
    assert id in refusal_ids(quantized(module, [inputs], target=target).program, target)
