"""Running sums and products, and the product over a dim."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.builder.builder import Builder
from ethorch.builder.floats import FP32, FloatTensor
from ethorch.builder.qparams import QTensor, Result
from ethorch.fx.aten_builder import AtenBuilder, shape_of
from ethorch.ops.quant_rules import EACH_INPUT
from ethorch.ops.samples import I8, Sample
from ethorch.ops.spec import composite, op

aten = torch.ops.aten


def cumsum_of_floats(b: Builder, x: QTensor, dim: int, *, out: Result, dtype: Any = None) -> QTensor:
    """out[i] = x[0] + ... + x[i] of floats, in FP32: a product with a triangle of ones. TOSA 1.0 MATMUL."""
    dim %= x.rank
    extent, others = x.shape[dim], [d for d in range(x.rank) if d != dim]
    value = b.stored_as(FloatTensor.of(b, x).t, [(), tuple(others), (dim,)])
    ones = b.const(np.triu(np.ones((extent, extent), np.float32))[None], name="ones")
    result = b.emit("MATMUL", value, ones, a_zp=0, b_zp=0)
    return b.from_order(b.reshape(result, (*(x.shape[d] for d in others), extent)), [*others, dim], FP32)


@op(
    "aten.cumsum.default",
    quant=EACH_INPUT,
    floats=cumsum_of_floats,
    samples=[Sample(I8(2, 9), 1), Sample(I8(1, 12, 4, 5), 1), Sample(I8(3, 6, 7), -2)],
)
def cumsum(b: Builder, x: QTensor, dim: int, *, out: Result, dtype: Any = None) -> QTensor:
    """out[i] = x[0] + ... + x[i] along ``dim``: a product with a triangle of ones, exact, rounded once. TOSA 1.0 CONV2D."""
    dim %= x.rank
    extent = x.shape[dim]
    others = [d for d in range(x.rank) if d != dim]
    value = b.stored_as(x, [(), tuple(others), (), (dim,)])
    ones = b.const(np.tril(np.ones((extent, extent), np.int8)).reshape(extent, 1, 1, extent), name="ones")
    acc = b.conv2d(value, ones, input_zp=x.qparams.zp)
    result = b.reshape(b.requantize(acc, x.qparams.step, out.qparams), (*(x.shape[d] for d in others), extent))
    return b.from_order(result, [*others, dim], out.qparams)


#: Most factors of a product. Each product on the way is rounded to 8 bits, so one of more factors would be noise.
_MOST_FACTORS = 16


def prod_of_floats(b: Builder, x: QTensor, dim: int, keepdim: bool = False, *, out: Result, dtype: Any = None) -> FloatTensor:
    """out = product of x over ``dim``, of floats. TOSA 1.0 REDUCE_PRODUCT."""
    return FloatTensor.of(b, x).prod([dim % x.rank]).view(out.shape)


@composite(
    "aten.prod.dim_int",
    floats=prod_of_floats,
    samples=[Sample(I8(12, 4, low=-1.5, high=1.5), 1), Sample(I8(3, 5, 4, low=0.5, high=1.5), 1, True)],
)
def prod(s: AtenBuilder, x: Node, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """out = product of x over ``dim``, of at most 16 factors: a chain of muls."""
    if shape_of(x)[dim] > _MOST_FACTORS:
        return None
    made = _products(s, x, dim)[-1]
    return s(aten.unsqueeze.default, made, dim) if keepdim else made


@composite("aten.cumprod.default", samples=[Sample(I8(12, 4, low=-1.5, high=1.5), 1)])
def cumprod(s: AtenBuilder, x: Node, dim: int, *, dtype: Any = None) -> Any:
    """out[i] = x[0] * ... * x[i] along ``dim``, of at most 16 factors: a chain of muls."""
    return None if shape_of(x)[dim] > _MOST_FACTORS else s(aten.stack.default, _products(s, x, dim), dim)


def _products(s: AtenBuilder, x: Node, dim: int) -> list[Node]:
    """The running products along ``dim``."""
    made = [s(aten.select.int, x, dim, 0)]
    for k in range(1, shape_of(x)[dim]):
        made.append(s(aten.mul.Tensor, made[-1], s(aten.select.int, x, dim, k)))
    return made
