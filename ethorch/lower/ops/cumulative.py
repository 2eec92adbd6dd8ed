"""Running sums, products, maxima and minima, and products over a dim."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.floats import FP32, FloatTensor
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.quant_rules import EACH_INPUT
from ethorch.lower.ops.samples import I8, Sample
from ethorch.lower.ops.spec import composite, op
from ethorch.support.errors import Unsupported
from ethorch.tosa.ir import Value

aten = torch.ops.aten

#: Longest dim for a single triangle of ones (4 MB, 0.7 s in Vela).
_LONGEST_TRIANGLE = 2048
#: Number of elements in each section of a longer dim.
_PART = 256


def _too_long(b: Builder, extent: int) -> Unsupported:
    text = f"expected at most {_LONGEST_TRIANGLE} elements in a running sum of int16 or float values, got {extent}"
    remedy = (
        "Quantize the operator's module to int8, or split the dim into two dims, compute running sums along the last dim, and "
        "add the total of all preceding rows."
    )
    return b.refuse("cumsum.extent", text, remedy)


def cumsum_of_floats(b: Builder, x: QTensor, dim: int, *, out: Result, dtype: Any = None) -> QTensor:
    dim %= x.rank
    extent, others = x.shape[dim], [d for d in range(x.rank) if d != dim]
    if extent > _LONGEST_TRIANGLE:
        raise _too_long(b, extent)
    value = b.store_as(FloatTensor.of(b, x).t, [(), tuple(others), (dim,)])
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
    """Return x[0] + ... + x[i] for each i along ``dim``, computed exactly with a triangular matrix and rounded once. TOSA CONV2D.

    Axes of more than 2,048 elements are summed in sections of 256 for int8, and refused for int16.
    """
    dim %= x.rank
    extent = x.shape[dim]
    others = [d for d in range(x.rank) if d != dim]
    value = b.store_as(x, [(), tuple(others), (), (dim,)])
    if extent <= _LONGEST_TRIANGLE:
        sums = b.requantize(_sum_running(b, value, x.qparams.zp), x.qparams.step, out.qparams)
    elif value.dtype == "INT8":
        sums = b.requantize(_sum_in_parts(b, value, x.qparams.zp), x.qparams.step, out.qparams)
        sums = b.reshape(sums, (sums.shape[0], math.prod(sums.shape[1:])))
        sums = b.emit("SLICE", sums, start=(0, 0), size=(sums.shape[0], extent))
    else:
        raise _too_long(b, extent)
    return b.from_order(b.reshape(sums, (*(x.shape[d] for d in others), extent)), [*others, dim], out.qparams)


def _sum_running(b: Builder, value: Value, zp: int) -> Value:
    extent = value.shape[-1]
    ones = b.const(np.tril(np.ones((extent, extent), np.int8)).reshape(extent, 1, 1, extent), name="ones")
    return b.conv2d(value, ones, input_zp=zp)


def _sum_in_parts(b: Builder, value: Value, zp: int) -> Value:
    _, rows, _, extent = value.shape
    parts = -(-extent // _PART)
    value = b.emit("PAD", b.reshape(value, (rows, extent)), padding=(0, 0, 0, parts * _PART - extent), pad_const=zp)
    sums = b.reshape(_sum_running(b, b.reshape(value, (1, rows * parts, 1, _PART)), zp), (rows, parts, _PART))
    totals = b.emit("SLICE", sums, start=(0, 0, _PART - 1), size=(rows, parts, 1))
    before, step = _shift_parts(b, totals, 1), 1
    while step < parts:  # ``before`` is the sum of the ``step`` preceding sections
        before, step = b.emit("ADD", before, _shift_parts(b, before, step)), 2 * step
    return b.emit("ADD", sums, before)


def _shift_parts(b: Builder, value: Value, places: int) -> Value:
    rows, parts, _ = value.shape
    remaining = b.emit("SLICE", value, start=(0, 0, 0), size=(rows, parts - places, 1))
    return b.emit("PAD", remaining, padding=(0, 0, places, 0, 0, 0), pad_const=0)


#: Maximum number of factors. Each intermediate product is rounded to 8 bits.
_MOST_FACTORS = 16


def prod_of_floats(b: Builder, x: QTensor, dim: int, keepdim: bool = False, *, out: Result, dtype: Any = None) -> FloatTensor:
    return FloatTensor.of(b, x).prod([dim % x.rank]).view(out.shape)


@composite(
    "aten.prod.dim_int",
    floats=prod_of_floats,
    samples=[Sample(I8(12, 4, low=-1.5, high=1.5), 1), Sample(I8(3, 5, 4, low=0.5, high=1.5), 1, True)],
)
def prod(s: AtenBuilder, x: Node, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the product of x along ``dim``, as a chain of products. Products of more than 16 factors are not decomposed."""
    if shape_of(x)[dim] > _MOST_FACTORS:
        return None
    total = _products(s, x, dim)[-1]
    return s(aten.unsqueeze.default, total, dim) if keepdim else total


def _scan(s: AtenBuilder, x: Node, dim: int, combine: Any) -> Node:
    extent, step = shape_of(x)[dim], 1
    while step < extent:
        first, earlier, later = (s(aten.slice.Tensor, x, dim, *ends) for ends in ((0, step), (0, extent - step), (step, extent)))
        x, step = s(aten.cat.default, [first, s(combine, earlier, later)], dim), 2 * step
    return x


@composite(
    "aten.cumprod.default",
    samples=[Sample(I8(12, 4, low=-1.5, high=1.5), 1), Sample(I8(3, 30, low=0.8, high=1.1), -1)],
)
def cumprod(s: AtenBuilder, x: Node, dim: int, *, dtype: Any = None) -> Any:
    """Return x[0] * ... * x[i] for each i along ``dim``, as a chain of products or, above 16 factors, a parallel scan."""
    if shape_of(x)[dim] > _MOST_FACTORS:
        return _scan(s, x, dim % len(shape_of(x)), aten.mul.Tensor)
    return s(aten.stack.default, _products(s, x, dim), dim)


@composite("aten.logcumsumexp.default", bound16=3, samples=[Sample(I8(3, 9), 1), Sample(I8(20, 4, low=-9.0, high=9.0), 0)])
def logcumsumexp(s: AtenBuilder, x: Node, dim: int) -> Any:
    """Return log(exp(x[0]) + ... + exp(x[i])) for each i along ``dim``, as a parallel scan of logaddexp operators."""
    return _scan(s, x, dim % len(shape_of(x)), aten.logaddexp.default)


@composite("aten.cummax.default", samples=[Sample(I8(3, 9), 1), Sample(I8(20, 4), 0)])
def cummax(s: AtenBuilder, x: Node, dim: int) -> Any:
    """Return the maximum of x[0], ..., x[i] for each i along ``dim``. Calls whose indices are used are not decomposed."""
    return _running_extreme(s, x, dim, aten.maximum.default)


@composite("aten.cummin.default", samples=[Sample(I8(3, 9), 1), Sample(I8(20, 4), 0)])
def cummin(s: AtenBuilder, x: Node, dim: int) -> Any:
    """Return the minimum of x[0], ..., x[i] for each i along ``dim``. Calls whose indices are used are not decomposed."""
    return _running_extreme(s, x, dim, aten.minimum.default)


def _running_extreme(s: AtenBuilder, x: Node, dim: int, combine: Any) -> Any:
    return None if s.is_read(1) else [_scan(s, x, dim % len(shape_of(x)), combine), None]


def _products(s: AtenBuilder, x: Node, dim: int) -> list[Node]:
    products = [s(aten.select.int, x, dim, 0)]
    for k in range(1, shape_of(x)[dim]):
        products.append(s(aten.mul.Tensor, products[-1], s(aten.select.int, x, dim, k)))
    return products
