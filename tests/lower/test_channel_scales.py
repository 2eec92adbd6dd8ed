"""Weights with several scales, along each axis."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
from torch import Tensor, nn
from torch.nn import functional as F

import ethorch

_DECOMPOSED = torch.ops.quantized_decomposed
#: Operator with the shape of its constant operand, and the axis that can have several scales on the NPU.
OPERATORS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], int | None]] = {
    "conv2d": (F.conv2d, (6, 4, 3, 3), 0),
    "conv2d in groups": (lambda x, w: F.conv2d(x, w, groups=2), (6, 2, 3, 3), 0),
    "conv_transpose2d": (F.conv_transpose2d, (4, 6, 3, 3), 1),
    "conv_transpose2d in groups": (lambda x, w: F.conv_transpose2d(x, w, groups=2), (4, 3, 3, 3), 1),
    "conv1d": (lambda x, w: F.conv1d(x[:, :, 0], w), (6, 4, 3), 0),
    "linear": (F.linear, (6, 8), 0),
    "linear of a transposed weight": (lambda x, w: F.linear(x, w.t()), (8, 6), 1),
    "matmul": (torch.matmul, (8, 6), None),
    "mul": (torch.mul, (4, 8, 8), None),
}


class Quantized(nn.Module):
    """An operator on a quantized input and a constant with one scale for each index of ``axis``."""

    def __init__(self, operator: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...], axis: int) -> None:
        super().__init__()
        self.operator, self.axis = operator, axis
        self.register_buffer("weight", torch.randint(-127, 127, shape, dtype=torch.int8))
        self.register_buffer("scales", torch.rand(shape[axis]) * 0.1 + 0.01)
        self.register_buffer("zeros", torch.zeros(shape[axis], dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        weight = _DECOMPOSED.dequantize_per_channel(self.weight, self.scales, self.zeros, self.axis, -127, 127, torch.int8)
        return _fake_quantize(self.operator(_fake_quantize(x, 0.05), weight), 0.3)


def _fake_quantize(x: Tensor, scale: float) -> Tensor:
    codes = _DECOMPOSED.quantize_per_tensor(x, scale, 0, -128, 127, torch.int8)
    return _DECOMPOSED.dequantize_per_tensor(codes, scale, 0, -128, 127, torch.int8)


@pytest.mark.parametrize("name", OPERATORS)
def test_scales_of_other_axes_stay_on_the_cpu(name: str) -> None:
    """Scales of input channels were applied to output channels."""
    operator, shape, channels = OPERATORS[name]
    x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    for axis in range(-1, len(shape) - 1):
        torch.manual_seed(0)
        model = Quantized(operator, shape, axis).eval()
        program = ethorch.compile(torch.export.export(model, (x,)).module(), x, "ethos-u55-128")
        torch.testing.assert_close(program(x), model(x), rtol=0, atol=0.31 if axis % len(shape) == channels else 0.001)
        assert bool(program.delegates) == (axis % len(shape) == channels)


class Channels(nn.Module):
    """An activation with one scale for each channel, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scales", torch.tensor([0.25, 0.5, 0.75, 1.0], dtype=torch.float64))
        self.register_buffer("zeros", torch.zeros(4, dtype=torch.int64))
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.quantize(x)
        return self.layer(y), self.quantize(torch.relu(y)[:, :, :2])

    def quantize(self, x: Tensor) -> Tensor:
        parameters = self.scales, self.zeros, 1, -128, 127, torch.int8
        return _DECOMPOSED.dequantize_per_channel(_DECOMPOSED.quantize_per_channel(x, *parameters), *parameters)


def test_the_cpu_quantizes_activations_per_channel() -> None:
    torch.manual_seed(0)
    model, x = Channels().eval(), 20 * torch.randn(1, 4, 3)
    program = ethorch.compile(torch.export.export(model, (x,)).module(), x, "ethos-u55-128")
    for expected, actual in zip(model(x), program(x), strict=True):
        torch.testing.assert_close(actual, expected)
    assert ethorch.sqnr_db(model(x)[1], ethorch.quantize(model, x, "ethos-u55-128")(x)[1]) > 30


@pytest.mark.parametrize("name", OPERATORS)
def test_a_module_that_dequantizes_its_weight_is_quantized(name: str) -> None:
    operator, shape, _ = OPERATORS[name]
    torch.manual_seed(0)
    model, samples = Quantized(operator, shape, 1).eval(), [(torch.randn(1, 4, 8, 8),) for _ in range(4)]
    program = ethorch.compile(model, samples[0], "ethos-u55-128", calibration=samples)
    assert ethorch.sqnr_db(model(*samples[0]), program(*samples[0])) > 25
