"""Matrix products with constant weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.floats import FP32, FloatTensor
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.quant_rules import Layer, QuantRule
from ethorch.lower.ops.samples import I8, Sample, W
from ethorch.lower.ops.spec import composite, op
from ethorch.lower.ops.weights import accumulator_scales, bias_codes, real_values, weight_array
from ethorch.support.errors import Reason

aten = torch.ops.aten
#: Maximum number of outputs of one CONV2D, because Vela's compile time is quadratic in this number (14 s for 200,000).
MOST_OUTPUTS = 65536


def _addmm(bias: Any, x: Any, w: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return (x, w if isinstance(w, Node) else _transpose_weight(w), bias), {} if beta == alpha == 1 else {"factors": (beta, alpha)}


def _transpose_weight(w: Any) -> Any:
    if isinstance(w, np.ndarray):
        return w.T
    if not isinstance(w, QTensor) or w.is_integer:
        return w
    q = w.qparams
    return QTensor(w.value, w.dims[::-1], replace(q, axis=None if q.axis is None else 1 - q.axis))


def decompose_linear(s: AtenBuilder, x: Node, w: Node, bias: Node | None = None, factors: Any = None) -> Any:
    """Decompose a linear layer with a weight of shape [I], or an addmm.

    An addmm with a constant weight, a constant bias [O] and beta = alpha = 1 becomes a linear layer. Any other addmm becomes
    mm, mul and add.
    """
    if s.node.target is not aten.addmm.default:
        if w.meta["val"].dim() != 1:
            return None
        row = s.parameter(w, lambda data: data[None]) if w.op == "get_attr" else s(aten.unsqueeze.default, w, 0)
        bias = bias and s(aten.reshape.default, bias, [1])
        return s(aten.squeeze.dim, s(aten.linear.default, x, row, bias), -1)
    added, x, w = s.node.args[:3]  # type: ignore[assignment]
    assert isinstance(added, Node)
    beta, alpha = s.node.kwargs.get("beta", 1), s.node.kwargs.get("alpha", 1)
    if w.op == "get_attr" and added.op == "get_attr" and beta == alpha == 1 and added.meta["val"].dim() == 1:
        return s(aten.linear.default, x, s.transpose_parameter(w), added)
    y = s(aten.mm.default, x, w)
    y = y if alpha == 1 else s(aten.mul.Scalar, y, alpha)
    if beta == 0:
        return y
    return s(aten.add.Tensor, y, added if beta == 1 else s(aten.mul.Scalar, added, beta))


def check_linear(x: Any, w: Any, bias: Any = None, factors: Any = None) -> Reason | None:
    if factors:
        return Reason(
            "addmm.factors",
            f"expected beta=1 and alpha=1, got beta={factors[0]} and alpha={factors[1]}",
            "Multiply the bias by beta and the weight by alpha in the model.",
        )
    if not isinstance(w, QTensor):
        return Reason(
            "graph.weight_not_quantized",
            "the weight is float; expected a quantized weight",
            "Configure the quantizer to quantize the operator's module.",
        )
    if not w.value.is_const:
        return Reason(
            "linear.dynamic_weight",
            "the weight is computed at run time; expected a constant weight",
            "Make the weight a parameter or buffer, or use torch.matmul, which supports two activations.",
        )
    return None


def linear_of_floats(b: Builder, x: QTensor, w: QTensor, bias: Any = None, *, out: Result, factors: Any = None) -> Any:
    if w.rank == 1:
        column = linear_of_floats(b, x, b.view(w, (1, *w.shape)), bias, out=out, factors=factors)
        return b.view(column, x.shape[:-1])
    beta, alpha = factors or (1, 1)
    if w.value.is_const and (bias is None or (isinstance(bias, np.ndarray) and bias.ndim == 1)) and not factors:
        return linear(b, x, w, bias, out=replace(out, q=x.q))
    value = b.store_as(x, [(), tuple(range(x.rank - 1)), (x.rank - 1,)])
    product = b.emit("MATMUL", value, b.store_as(w, [(), (1,), (0,)]), a_zp=0, b_zp=0)
    y = FloatTensor.of(b, b.view(QTensor(product, ((1,), (2,)), FP32), (*x.shape[:-1], w.shape[0])))
    y = y if alpha == 1 else y * alpha
    return y if bias is None or beta == 0 else y + FloatTensor.of(b, bias) * beta


@op(
    "aten.linear.default",
    quant=QuantRule(layer=Layer()),
    also={"aten.addmm.default": _addmm},
    decompose=decompose_linear,
    check=check_linear,
    floats=linear_of_floats,
    samples=[
        Sample(I8(1, 32), W(10, 32), W(10)),
        Sample(I8(4, 17), W(9, 17)),
        Sample(I8(2, 3, 16), W(8, 16), W(8)),
        Sample(I8(5), W(3, 5), W(3)),
        Sample(I8(6, 7), W(7)),
    ],
)
def linear(b: Builder, x: QTensor, w: QTensor, bias: Any = None, *, out: Result, factors: Any = None) -> QTensor:
    """Return x @ w.T + bias: int8[..., I] -> int8[..., O], computed in int32 (int48 for int16) and rounded once. TOSA CONV2D."""
    weight = weight_array(w)
    outputs, inputs = weight.shape
    rows = math.prod(x.shape[:-1])
    x, weight = _contraction_as_stored(x, weight)
    value = b.store_as(x, [tuple(range(x.rank - 1)), (x.rank - 1,)])
    scales = accumulator_scales(x, w, outputs)
    value = b.reshape(value, (1, 1, rows, inputs))  # NPUs process the width up to twice as fast as the height
    real = np.zeros(outputs) if bias is None else real_values(bias)
    parts = []
    for start in range(0, outputs, MOST_OUTPUTS):
        span = slice(start, start + MOST_OUTPUTS)
        matrix = b.const(weight[span].reshape(-1, 1, 1, inputs), name="weight")
        codes = bias_codes(b, real[span], scales[span], len(scales[span]), x.qparams.dtype)
        acc = b.conv2d(value, matrix, codes, input_zp=x.qparams.zp, weight_zp=w.qparams.zero_point[0])
        parts.append(b.requantize(acc, scales[span] if w.qparams.per_channel else scales[:1], out.qparams))
    result = parts[0] if len(parts) == 1 else b.emit("CONCAT", *parts, axis=3)
    return b.view(QTensor(result, ((), (2,), (), (3,)), out.qparams), (*x.shape[:-1], outputs))


def _contraction_as_stored(x: QTensor, weight: npt.NDArray[Any]) -> tuple[QTensor, npt.NDArray[Any]]:
    # Reordering the weight is free, but moving x (e.g. after a flatten) is not.
    axes = x.dims[-1]
    in_memory = tuple(sorted(axes))
    if axes == in_memory:
        return x, weight
    columns = weight.reshape(weight.shape[0], *(x.value.shape[axis] for axis in axes))
    columns = columns.transpose(0, *(1 + axes.index(axis) for axis in in_memory))
    return QTensor(x.value, (*x.dims[:-1], in_memory), x.q), columns.reshape(weight.shape)


@composite(
    "aten.bilinear.default", samples=[Sample(I8(4, 8), I8(4, 6), W(5, 8, 6), W(5)), Sample(I8(2, 3, 8), I8(2, 3, 6), W(5, 8, 6))]
)
def bilinear(s: AtenBuilder, x: Node, y: Node, weight: Node, bias: Node | None = None) -> Any:
    """Compute out[..., o] = bias[o] + sum over i, j of x[..., i] * weight[o, i, j] * y[..., j], using linear and matmul."""
    outputs, inputs, others = shape_of(weight)
    matrix = s.parameter(weight, lambda data: data.transpose(1, 2).reshape(outputs * others, inputs))
    of_x = s(aten.reshape.default, s(aten.linear.default, x, matrix), [*shape_of(x)[:-1], outputs, others])
    out = s(aten.squeeze.dim, s(aten.matmul.default, of_x, s(aten.unsqueeze.default, y, -1)), -1)
    return out if bias is None else s(aten.add.Tensor, out, bias)
