"""Operands that few models have: infinite bounds, thresholds from topk, wide arguments of sin, int32 indices, seven dims."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

import ethorch
from tests.helpers.quantized import Function

INF = float("inf")
TARGETS = ["ethos-u55-128", "ethos-u85-256"]


def rate(function: Callable[..., Any], draw: Callable[[], tuple[Tensor, ...]], target: str, scheme: str = "int8") -> float:
    torch.manual_seed(3)
    model, samples = Function(function), [draw() for _ in range(16)]
    program = ethorch.compile(model, samples[0], target, calibration=samples, scheme=scheme)
    return min(ethorch.sqnr_db(model(*sample), program(*sample)) for sample in samples[:4])


LOW, HIGH = torch.tensor([-INF, -0.5, -INF, 0.0]), torch.tensor([INF, 0.5, 0.3, INF])


def running_maximum(x: Tensor) -> Tensor:
    largest = torch.full((4, 4), -INF)
    for step in range(4):
        largest = torch.maximum(largest, x[:, :, step] - 2)
    return largest


BOUNDS: dict[str, Callable[..., Any]] = {
    "clamp": lambda x: torch.clamp(x, LOW, HIGH),
    "minimum and maximum": lambda x: torch.maximum(torch.minimum(x, HIGH), LOW),
    "running maximum": running_maximum,
    "large number": lambda x: torch.maximum(torch.full((4, 1, 4), -1e38), x),
}


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(("target", "scheme"), [("ethos-u55-128", "int8"), ("ethos-u85-256", "a16w8")])
def test_infinite_bounds(bound: str, target: str, scheme: str) -> None:
    assert rate(BOUNDS[bound], lambda: (torch.randn(4, 4, 4),), target, scheme) > 30


@pytest.mark.parametrize("join", [False, True])
def test_other_readers_of_the_operands_of_an_extreme(join: bool) -> None:
    """The range of a maximum lacks the lowest values of its operands."""
    torch.manual_seed(8)

    def compare(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        halves = y[:, :8], y[:, 8:]
        return torch.maximum(torch.cat(halves, 1), x * 0 + 1) if join else torch.maximum(*halves), y + 0.5

    samples = [(1 - torch.rand(8, 16) * torch.rand(8, 16) * 50,) for _ in range(8)]
    model = Function(compare)
    program = ethorch.compile(model, samples[0], "ethos-u85-256", calibration=samples)
    for sample in samples:
        for wanted, found in zip(model(*sample), program(*sample), strict=True):
            assert ethorch.sqnr_db(wanted, found) > 26


def test_inputs_with_infinite_bounds() -> None:
    def draw() -> tuple[Tensor, ...]:
        return torch.randn(16, 4), torch.where(torch.rand(16, 4) < 0.5, -INF, 0.3)

    assert rate(lambda x, bound: torch.maximum(x * 0.7, bound), draw, "ethos-u85-256") > 30


@pytest.mark.parametrize("target", TARGETS)
def test_the_smallest_of_the_largest_elements_is_one_of_them(target: str) -> None:
    def keep_largest(x: Tensor) -> Tensor:
        y = x * 0.7
        return y.masked_fill(y < y.topk(9)[0][..., -1:], 0.0)

    assert rate(keep_largest, lambda: (torch.randn(8, 40),), target) > 20
    assert rate(keep_largest, lambda: (torch.randn(8, 40),), target, "a16w8") > 60


@pytest.mark.parametrize("target", TARGETS)
def test_int16_tables_do_not_represent_every_function(target: str) -> None:
    frequencies = torch.exp(-math.log(1e4) * torch.arange(16) / 16)

    def embed(t: Tensor) -> Tensor:
        return torch.cat([(t[:, None] * frequencies).cos(), (t[:, None] * frequencies).sin()], -1)

    assert rate(embed, lambda: (torch.rand(4) * 1000,), target, "a16w8") > 30
    samples = [(torch.randn(4, 8) * 100,)]
    program = ethorch.compile(Function(lambda x: torch.sin(x * 3 + 1).exp() + 1), samples[0], target, scheme="a16w8")
    assert "the function oscillates too often" in str(program.explain(cpu_only=True))
    assert ethorch.sqnr_db(Function(lambda x: torch.sin(x * 3 + 1).exp() + 1)(*samples[0]), program(*samples[0])) > 30


INDICES: dict[str, Callable[..., Any]] = {
    "gather": lambda x, index: torch.relu(x).gather(1, index),
    "scatter": lambda x, index: torch.zeros(4, 8).scatter(1, index, torch.relu(x)),
    "scatter of a number": lambda x, index: torch.relu(x).scatter(1, index, 1.5) * 2,
    "gather beside an operator that ExecuTorch lowers": lambda x, index: x.gather(1, index // 2 + 1).flip(0).sort(-1)[0],
    "divisor": lambda x, index: torch.relu(x) / (index + 1),
}


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("target", TARGETS)
def test_int32_operands(name: str, target: str) -> None:
    def draw() -> tuple[Tensor, ...]:
        return torch.randn(4, 8), torch.stack([torch.randperm(8) for _ in range(4)]).int()

    assert rate(INDICES[name], draw, target) > 30


def test_masked_attention_of_dynamic_length() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: Tensor, keep: Tensor) -> Tensor:
            y: Tensor = self.attention(x, x, x, key_padding_mask=keep == 0)[0]
            return y

    torch.manual_seed(4)
    model, length = Attention().eval(), Dim("length", min=4, max=32)
    exported = export(model, (torch.randn(1, 8, 16), torch.ones(1, 8)), dynamic_shapes=({1: length}, {1: length}))
    inputs = torch.randn(1, 13, 16), (torch.rand(1, 13) > 0.3).float()
    assert ethorch.sqnr_db(model(*inputs), ethorch.compile(exported)(*inputs)) > 100


COUNTS: dict[str, Callable[[Tensor], Tensor]] = {
    "floor": lambda x: torch.floor(x.abs() * 6).int(),
    "count": lambda x: (x > 0.305).float().sum(-1).int(),
    "number of features": lambda x: ((x > 0.505).float().sum(-1) == 2).int(),
    "decision": lambda x: ((x > 0.505).float() @ torch.tensor([1.0, -1.0] * 8).reshape(16, 1) == 3).int(),
    "row of the maximum": lambda x: torch.floor(x.argmax(-1).float() / 4).int(),
}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("target", "scheme"), [("ethos-u55-128", "a16w8"), ("ethos-u85-256", "int8")])
def test_integers_in_float_tensors_are_exact(count: str, target: str, scheme: str) -> None:
    torch.manual_seed(5)
    model, samples = Function(COUNTS[count]), [(torch.rand(64, 16).round(decimals=2),) for _ in range(8)]
    program = ethorch.compile(model, samples[0], target, calibration=samples, scheme=scheme)
    agreements = [(model(*sample) == program(*sample)).float().mean() for sample in samples]
    assert min(agreements) > (0.9 if scheme == "int8" else 0.98)


SEVEN_DIMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda x, y: (x * y).sum(2),
    "maximum": lambda x, y: torch.sigmoid(x * y).amax(3),
    "quotient": lambda x, y: x / (y.abs() + 1),
    "comparison": lambda x, y: (x > y).float(),
    "selection": lambda x, y: torch.where(x > y, x, y),
    "softmax": lambda x, y: (x * y).softmax(2),
}


@pytest.mark.parametrize("name", SEVEN_DIMS)
@pytest.mark.parametrize(("target", "scheme"), [("ethos-u55-128", "int8"), ("ethos-u85-256", "a16w8")])
def test_operators_of_seven_dims_run_on_the_npu(name: str, target: str, scheme: str) -> None:
    torch.manual_seed(9)
    inputs = torch.randn(1, 36, 4, 4), torch.randn(1, 2, 4, 4)

    def weight_neighbors(x: Tensor, y: Tensor) -> Tensor:
        neighbors = nn.functional.unfold(y, (3, 3), padding=1)
        return SEVEN_DIMS[name](x.view(1, 1, 9, 2, 2, 4, 4), neighbors.view(1, 2, 9, 1, 1, 4, 4))

    model = Function(weight_neighbors)
    program = ethorch.compile(model, inputs, target, calibration=[inputs] * 2, scheme=scheme)
    assert all("quantize" in operator.operator for operator in program.operators if operator.where == "CPU")
    quantized = ethorch.quantize(model, inputs, target, calibration=[inputs] * 2, scheme=scheme)
    assert ethorch.sqnr_db(quantized(*inputs), program(*inputs)) > 40


def test_an_operand_of_eight_dims() -> None:
    torch.manual_seed(9)
    model, inputs = (
        Function(lambda x, y: (x * y).sum(5)),
        (torch.randn(1, 1, 2, 3, 2, 3, 2, 4), torch.randn(2, 1, 1, 3, 1, 3, 1, 4)),
    )
    program = ethorch.compile(model, inputs, "ethos-u55-128", calibration=[inputs] * 2)
    assert program.delegates and ethorch.sqnr_db(model(*inputs), program(*inputs)) > 30


def test_values_masked_with_0_are_not_quantized_again() -> None:
    torch.manual_seed(10)
    model, inputs = Function(lambda x, m: x.masked_fill(m, 0.0)), (torch.randn(64, 32), torch.rand(64, 32) > 0.3)
    program = ethorch.compile(model, inputs, "ethos-u85-256", calibration=[inputs] * 2)
    step = inputs[0].abs().max() / 127
    assert (model(*inputs) - program(*inputs)).abs().max() <= 0.51 * step


@pytest.mark.parametrize("layout", ["channels last", "permuted"])
def test_example_inputs_of_other_layouts(layout: str) -> None:
    torch.manual_seed(6)
    x = torch.rand(1, 8, 8, 8)
    x = x.to(memory_format=torch.channels_last) if layout == "channels last" else x.permute(0, 2, 3, 1)
    model = Function(lambda x: torch.topk(x * 2, 3, dim=1)[0])
    program = ethorch.compile(model, x, "ethos-u55-128", calibration=[x, x])
    assert program.accuracy is not None and program.accuracy.sqnr_db > 40
    assert ethorch.sqnr_db(model(x), program(x)) > 40


def test_logarithms_of_small_int16_values() -> None:
    torch.manual_seed(7)
    samples = [(torch.exp(torch.rand(1, 400) * 12 - 7),) for _ in range(8)]
    settings: dict[str, Any] = {"calibration": samples, "scheme": "a16w8"}
    model = Function(lambda x: torch.log(x + 1e-6))
    quantized = ethorch.quantize(model, samples[0], "ethos-u55-128", **settings)
    program = ethorch.compile(model, samples[0], "ethos-u55-128", **settings)
    assert ethorch.sqnr_db(quantized(*samples[0]), program(*samples[0])) > 60
