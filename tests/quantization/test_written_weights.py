"""Zero points of operands that the NPU converts to weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize
from ethorch.targets.compile_spec import EthosUCompileSpec


class Product(nn.Module):
    def __init__(self, compute: Callable[[Tensor, Tensor], Tensor]):
        super().__init__()
        self.compute = compute

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.compute(x, y)


def attend(x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(x, y, y)


def find_zero_points(
    compute: Callable[[Tensor, Tensor], Tensor], target: str, shapes: tuple[tuple[int, ...], ...]
) -> list[list[int]]:
    """Return the zero points of the operands of each product."""
    torch.manual_seed(0)
    samples = [tuple(1.2 * torch.randn(shape).clamp(-3, 2.6) for shape in shapes) for _ in range(4)]
    model = quantize(UserModel(Product(compute), samples[0], samples), EthosUCompileSpec(target))
    products = [node for node in model.graph.nodes if "bmm" in str(node.target)]
    return [[find_zero_point(operand) for operand in product.args if isinstance(operand, Node)][-2:] for product in products]


def find_zero_point(node: Node) -> int:
    while "dequantize_per_tensor" not in str(node.target):
        node = node.all_input_nodes[0]
    return int(node.args[2])


@pytest.mark.parametrize(
    ("compute", "centered"),
    [
        (lambda x, y: x @ y, [1]),
        (lambda x, y: torch.einsum("bij,bjk->bik", x, y), [1]),
        (attend, [1, 1]),
        (lambda x, y: x @ torch.tanh(y), [1]),
        (lambda x, y: x @ y.square(), [None]),
        (lambda x, y: x @ y.softmax(-1), [None]),
    ],
    ids=["matmul", "einsum", "attention", "tanh", "square", "softmax"],
)
def test_second_operands_are_centered(compute: Callable[[Tensor, Tensor], Tensor], centered: list[int | None]) -> None:
    """A range on one side of zero would need steps twice as large."""
    found = find_zero_points(compute, "ethos-u55-128", ((2, 24, 24), (2, 24, 24)))
    assert len(found) == len(centered)
    for zero_points, operand in zip(found, centered, strict=True):
        assert operand is None or zero_points[operand] == -1
        assert operand is not None or zero_points[1] < -64


def test_first_operands_of_wide_products_are_centered() -> None:
    """The lowering transposes these products."""
    ((first, _),) = find_zero_points(torch.matmul, "ethos-u55-128", ((1, 8, 16), (1, 16, 1024)))
    assert first == -1


def test_other_targets_keep_zero_points() -> None:
    ((_, second),) = find_zero_points(torch.matmul, "ethos-u85-256", ((2, 24, 24), (2, 24, 24)))
    assert second not in (-1, 0)
