"""Matrix products with constant weights: linear, addmm, mm."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.errors import Reason
from ethorch.ops.conv import accumulator_scales, bias_codes, weight_array
from ethorch.ops.quant_rules import WEIGHTED
from ethorch.ops.spec import I8, Sample, W, op
from ethorch.qparams import QParams, QTensor
from ethorch.real import FP32, Real
from ethorch.sketch import Sketch
from ethorch.tosa.builder import Builder

aten = torch.ops.aten


def _addmm(bias: Any, x: Any, w: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """Arguments of aten.addmm (weight [I, O], as a decomposed linear has it) as those of aten.linear."""
    return (x, w if isinstance(w, Node) else _transposed(w), bias), {} if beta == alpha == 1 else {"factors": (beta, alpha)}


def _transposed(w: Any) -> Any:
    if isinstance(w, np.ndarray):
        return w.T
    if not isinstance(w, QTensor) or w.q is None:
        return w
    q = w.q
    return QTensor(w.value, w.dims[::-1], replace(q, axis=None if q.axis is None else 1 - q.axis))


@op(
    "aten.linear.default", quant=WEIGHTED, also={"aten.addmm.default": _addmm},
    samples=[
        Sample(I8(1, 32), W(10, 32), W(10)), Sample(I8(4, 17), W(9, 17)), Sample(I8(2, 3, 16), W(8, 16), W(8)),
        Sample(I8(5), W(3, 5), W(3)),
    ],
)  # fmt: skip
def linear(b: Builder, x: QTensor, w: QTensor, bias: Any = None, *, out: QParams, factors: Any = None) -> QTensor:
    """out = x @ w.T + bias: int8[..., I] -> int8[..., O], exact in int32; a 1x1 CONV2D, rows laid along the height or the width.

    Rounded once, by the RESCALE. TOSA 1.0 CONV2D.
    """
    weight = weight_array(w)
    outputs, inputs = weight.shape
    rows = math.prod(x.shape[:-1])
    x, weight = _contraction_as_stored(x, weight)
    value = b.stored_as(x, [tuple(range(x.rank - 1)), (x.rank - 1,)])
    scales = accumulator_scales(x, w, outputs)
    wide = b.forms.get("rows") == "width"
    value = b.reshape(value, (1, 1, rows, inputs) if wide else (1, rows, 1, inputs))
    acc = b.emit(
        "CONV2D", value, b.const(weight.reshape(outputs, 1, 1, inputs), name="weight"),
        bias_codes(b, bias, scales, outputs, x.qparams.dtype), pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1),
        input_zp=x.qparams.zp, weight_zp=w.qparams.zero_point[0],
    )  # fmt: skip
    result = b.requantize(acc, scales if w.qparams.per_channel else scales[:1], out)
    return b.view(QTensor(result, ((), (2 if wide else 1,), (), (3,)), out), (*x.shape[:-1], outputs))


def _contraction_as_stored(x: QTensor, weight: np.ndarray) -> tuple[QTensor, np.ndarray]:
    """Behind a flatten the contracted dim is several stored axes: reorder the weight's columns, not the activations."""
    axes = x.dims[-1]
    in_memory = tuple(sorted(axes))
    if axes == in_memory:
        return x, weight
    columns = weight.reshape(weight.shape[0], *(x.value.shape[axis] for axis in axes))
    columns = columns.transpose(0, *(1 + axes.index(axis) for axis in in_memory))
    return QTensor(x.value, (*x.dims[:-1], in_memory), x.q), columns.reshape(weight.shape)


@linear.decomposition
def _(s: Sketch, x: Node, w: Node, bias: Node | None = None, factors: Any = None) -> Any:
    """addmm from user code has its weight last and transposed: a linear layer proper, so that it is quantized as one."""
    if s.node.target is not aten.addmm.default:
        return None
    added, x, w = s.node.args[:3]  # type: ignore[assignment]
    assert isinstance(added, Node)
    beta, alpha = s.node.kwargs.get("beta", 1), s.node.kwargs.get("alpha", 1)
    if w.op == "get_attr" and added.op == "get_attr" and beta == alpha == 1 and added.meta["val"].dim() == 1:
        return s(aten.linear.default, x, s.transposed(w), added)
    made = s(aten.mm.default, x, w)
    made = made if alpha == 1 else s(aten.mul.Scalar, made, alpha)
    if beta == 0:
        return made
    return s(aten.add.Tensor, made, added if beta == 1 else s(aten.mul.Scalar, added, beta))


@linear.check
def _(x: Any, w: Any, bias: Any = None, factors: Any = None) -> Reason | None:
    if factors:
        return Reason("addmm.factors", f"beta={factors[0]}, alpha={factors[1]}: allowed are 1 and 1")
    if not isinstance(w, QTensor):
        return Reason("graph.weight_not_quantized", "its weight is float", "Give the quantizer a config for this module.")
    if not w.value.is_const:
        return Reason("linear.dynamic_weight", "its weight is computed at run time; a constant weight is needed")
    return None


@linear.floats
def _(b: Builder, x: QTensor, w: QTensor, bias: Any = None, *, factors: Any = None) -> Any:
    """A constant weight as it is; one computed at run time is a MATMUL of all rows."""
    beta, alpha = factors or (1, 1)
    if w.value.is_const and (bias is None or (isinstance(bias, np.ndarray) and bias.ndim == 1)) and not factors:
        assert linear.lower is not None
        return linear.lower(b, x, w, bias, out=x.q)
    value = b.stored_as(x, [(), tuple(range(x.rank - 1)), (x.rank - 1,)])
    product = b.emit("MATMUL", value, b.stored_as(w, [(), (1,), (0,)]), a_zp=0, b_zp=0)
    made = Real.of(b, b.view(QTensor(product, ((1,), (2,)), FP32), (*x.shape[:-1], w.shape[0])))
    made = made if alpha == 1 else made * alpha
    return made if bias is None or beta == 0 else made + Real.of(b, bias) * beta
