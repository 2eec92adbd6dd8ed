"""Gated linear units, PReLU and log_sigmoid."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.samples import I8, Sample, W
from ethorch.lower.ops.spec import composite

aten = torch.ops.aten


@composite("aten.glu.default", samples=[Sample(I8(2, 8, 5), 1), Sample(I8(3, 6))])
def glu(s: AtenBuilder, x: Node, dim: int = -1) -> Any:
    """Return (first half of x along ``dim``) * sigmoid(second half)."""
    half = shape_of(x)[dim] // 2
    first, second = (s(aten.slice.Tensor, x, dim, k * half, (k + 1) * half) for k in range(2))
    return s(aten.mul.Tensor, first, s(aten.sigmoid.default, second))


@composite("aten.log_sigmoid_forward.default", samples=[Sample(I8(3, 40))])
def log_sigmoid_forward(s: AtenBuilder, x: Node) -> Any:
    """Return log_sigmoid(x) without the gradient buffer."""
    return [s(aten.log_sigmoid.default, x), None]


@composite(
    "aten.prelu.default",
    "aten._prelu_kernel.default",
    samples=[Sample(I8(2, 6, 5, 4), W(6)), Sample(I8(3, 40), W(40)), Sample(I8(2, 5, 7), W(1))],
)
def prelu(s: AtenBuilder, x: Node, weight: Node) -> Any:
    """Return max(x, 0) + weight * min(x, 0). ``weight`` has one entry, or one entry for each channel."""
    rank = len(shape_of(x))
    trailing_ones = [1] * max(rank - 2, 0) if len(shape_of(weight)) == 1 else []
    shape = [*shape_of(weight), *trailing_ones][:rank]  # [] for a scalar
    if weight.op == "get_attr":
        weight = s.parameter(weight, lambda data: data.reshape(shape))
    else:
        weight = s(aten.reshape.default, weight, shape)
    return s(aten.add.Tensor, s(aten.relu.default, x), s(aten.mul.Tensor, s(aten.clamp.default, x, None, 0.0), weight))
