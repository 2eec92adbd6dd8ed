"""Variances, standard deviations, norms and cosine similarities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.floats import FloatTensor
from ethorch.lower.builder.mantissas import Mantissas
from ethorch.lower.builder.qparams import QParams, QTensor, Result
from ethorch.lower.builder.reductions import (
    all_dims,
    compute_in_pieces,
    deviations,
    exact_deviations,
    steps_per_code,
    sum_of_exact_squares,
    sum_of_squares,
    with_reduced_dims,
)
from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.quant_rules import EACH_INPUT
from ethorch.lower.ops.samples import I8, Sample
from ethorch.lower.ops.spec import composite, op
from ethorch.support.errors import Reason
from ethorch.tosa.ir import Value

aten = torch.ops.aten


def _squares(b: Builder, x: QTensor, dims: Sequence[int], centred: bool) -> tuple[Value, float]:
    axes = [axis for d in dims for axis in x.dims[d] if x.value.shape[axis] > 1]
    codes = x.qparams.code_count
    if not centred:
        return sum_of_squares(b, x.value, x.qparams.zp, axes, codes)
    if x.value.dtype == "INT16":
        return sum_of_exact_squares(b, exact_deviations(b, x, axes)[0], axes, codes)
    fine = steps_per_code(codes, math.prod(x.shape[d] for d in dims))
    square, unit = sum_of_squares(b, deviations(b, x, axes, fine), 0, axes, codes * fine)
    return square, unit / fine**2


def _root(b: Builder, square: Value, unit: float, out: QParams) -> Value:
    mantissas = Mantissas.of(b, square, 4)
    if out.dtype == "INT8":
        root = mantissas.divide(b, b.rescale(mantissas.look_up(b, np.sqrt), 2.0**14, dtype="INT32"))
        return b.requantize(root, math.sqrt(2 * unit) * 2 / 32767, out)
    root = mantissas.divide(b, mantissas.look_up_precisely(b, np.sqrt, 30))
    is_positive = b.emit("MINIMUM", square, b.const_like(square, 1))
    return b.requantize(b.emit("MUL", root, is_positive, shift=0), math.sqrt(2 * unit) / 2.0**15, out)


def _convert_unbiased(x: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
    return (x, dim), {"correction": int(unbiased), "keepdim": keepdim}


_VARIANCE = [Sample(I8(12, 30), [1]), Sample(I8(2, 6, 5, 4), [1, -1], keepdim=True), Sample(I8(4, 9, 3), [1], correction=0)]


def _variance(b: Builder, x: QTensor, dim: Any, correction: float | None) -> FloatTensor:
    dims, value = all_dims(x, dim), FloatTensor.of(b, x)
    deviation = value - value.mean(dims)
    count = math.prod(x.shape[d] for d in dims) - (1 if correction is None else correction)
    return (deviation * deviation).sum(dims) * (1 / count if count > 0 else math.inf)


def var_of_floats(
    b: Builder, x: QTensor, dim: Any = None, *, out: Result, correction: float | None = 1, keepdim: bool = False
) -> FloatTensor:
    return _variance(b, x, dim, correction).view(out.shape)


@op(
    "aten.var.correction",
    quant=EACH_INPUT,
    floats=var_of_floats,
    samples=_VARIANCE,
    also={"aten.var.dim": _convert_unbiased, "aten.var.default": lambda x, unbiased=True: _convert_unbiased(x, None, unbiased)},
)
def var(b: Builder, x: QTensor, dim: Any = None, *, out: Result, correction: float | None = 1, keepdim: bool = False) -> QTensor:
    """Return the sum of (x - mean)**2 / (N - correction) over the N elements of ``dim``, computed in int32 and rounded."""
    dims, step = all_dims(x, dim), x.qparams.step
    count = math.prod(x.shape[d] for d in dims) - (1 if correction is None else correction)

    def of_rows(rows: QTensor) -> QTensor:
        square, unit = _squares(b, rows, dims, True)
        result = b.requantize(square, unit * step**2 / max(count, 1e-9), out.qparams)
        return with_reduced_dims(rows, result, dims, out.qparams)

    return b.view(compute_in_pieces(b, x, dims, of_rows), out.shape)


def std_of_floats(
    b: Builder, x: QTensor, dim: Any = None, *, out: Result, correction: float | None = 1, keepdim: bool = False
) -> FloatTensor:
    return _variance(b, x, dim, correction).sqrt().view(out.shape)


@op(
    "aten.std.correction",
    quant=EACH_INPUT,
    floats=std_of_floats,
    samples=_VARIANCE,
    bound16=2,
    also={"aten.std.dim": _convert_unbiased, "aten.std.default": lambda x, unbiased=True: _convert_unbiased(x, None, unbiased)},
)
def std(b: Builder, x: QTensor, dim: Any = None, *, out: Result, correction: float | None = 1, keepdim: bool = False) -> QTensor:
    """Return the square root of the variance over ``dim``. Computed in int32; the root is read from tables.

    The error bound is larger for int16, because the tables have 15 bits.
    """
    dims, step = all_dims(x, dim), x.qparams.step
    count = math.prod(x.shape[d] for d in dims) - (1 if correction is None else correction)

    def of_rows(rows: QTensor) -> QTensor:
        square, unit = _squares(b, rows, dims, True)
        root = _root(b, square, unit * step**2 / max(count, 1e-9), out.qparams)
        return with_reduced_dims(rows, root, dims, out.qparams)

    return b.view(compute_in_pieces(b, x, dims, of_rows), out.shape)


def check_vector_norm(x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Reason | None:
    if ord == 2:
        return None
    return Reason(
        "vector_norm.order",
        f"expected order 2 (or, with EthosUQuantizer, 1 or infinity), got {ord}",
        "Use x.abs().pow(order).sum(dim).pow(1 / order).",
    )


def decompose_vector_norm(
    s: AtenBuilder, x: Node, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    dims = list(range(len(shape_of(x)))) if dim is None else [dim] if isinstance(dim, int) else dim
    if ord == 1:
        return s(aten.sum.dim_IntList, s(aten.abs.default, x), dims, keepdim)
    if ord == math.inf:
        return s(aten.amax.default, s(aten.abs.default, x), dims, keepdim)
    return None


def vector_norm_of_floats(
    b: Builder, x: QTensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, out: Result, dtype: Any = None
) -> FloatTensor:
    dims, value = all_dims(x, dim), FloatTensor.of(b, x)
    if abs(ord) == math.inf:
        norms = value.abs().amax(dims) if ord > 0 else value.abs().amin(dims)
    elif ord == 2:
        norms = (value * value).sum(dims).sqrt()
    elif ord == 1:
        norms = value.abs().sum(dims)
    elif ord == 0:
        norms = value.equals(0).then(0, 1).sum(dims)
    else:
        norms = (value.abs() ** ord).sum(dims) ** (1 / ord)
    return norms.view(out.shape)


@op(
    "aten.linalg_vector_norm.default",
    quant=EACH_INPUT,
    bound16=2,
    also={"aten.norm.ScalarOpt_dim": lambda x, p, dim, keepdim=False: ((x, 2 if p is None else p, dim, keepdim), {})},
    check=check_vector_norm,
    decompose=decompose_vector_norm,
    floats=vector_norm_of_floats,
    samples=[
        Sample(I8(12, 30), 2, [1]),
        Sample(I8(2, 6, 5, 4), 2, [1, -1], True),
        Sample(I8(12, 30, low=0.0), 1, [1]),
        Sample(I8(12, 30), math.inf, [1]),
    ],
)
def vector_norm(
    b: Builder, x: QTensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Result
) -> QTensor:
    """Return the square root of the sum of x**2 over ``dim``. Computed in int32; the root is read from tables.

    Norms of order 1 and infinity are decomposed. See ``std`` for the error bound.
    """
    dims, step = all_dims(x, dim), x.qparams.step

    def of_rows(rows: QTensor) -> QTensor:
        square, unit = _squares(b, rows, dims, False)
        root = _root(b, square, unit * step**2, out.qparams)
        return with_reduced_dims(rows, root, dims, out.qparams)

    return b.view(compute_in_pieces(b, x, dims, of_rows), out.shape)


@composite("aten.var_mean.correction", samples=_VARIANCE)
def var_mean(s: AtenBuilder, x: Node, dim: Any = None, *, correction: float | None = 1, keepdim: bool = False) -> list[Node]:
    """Return the variance and the mean of x over ``dim``."""
    variance = s(aten.var.correction, x, dim, correction=1 if correction is None else correction, keepdim=keepdim)
    dims = list(range(len(shape_of(x)))) if dim is None else dim
    return [variance, s(aten.mean.dim, x, dims, keepdim)]


@composite(
    "aten.cdist.default",
    bound16=3,
    samples=[Sample(I8(5, 6), I8(7, 6)), Sample(I8(2, 5, 6), I8(2, 7, 6), 1.0), Sample(I8(5, 6), I8(7, 6), math.inf)],
)
def cdist(s: AtenBuilder, x: Node, y: Node, p: float = 2.0, compute_mode: int | None = None) -> Any:
    """Return the norms of order ``p`` of x[..., i, :] - y[..., j, :]."""
    difference = s(aten.sub.Tensor, s(aten.unsqueeze.default, x, -2), s(aten.unsqueeze.default, y, -3))
    return s(aten.linalg_vector_norm.default, difference, p, [-1])


@composite(
    "aten.cosine_similarity.default",
    bound=3,
    bound16=3,
    samples=[Sample(I8(24, 16), I8(24, 16, low=-1.0)), Sample(I8(2, 6, 5), I8(2, 6, 5), 1)],
)
def cosine_similarity(s: AtenBuilder, x: Node, y: Node, dim: int = 1, eps: float = 1e-8) -> Any:
    """Return the sum of x * y / (norm of x * norm of y) over ``dim``, as the mean product of RMS norms."""
    parts = []
    shape = torch.broadcast_shapes(shape_of(x), shape_of(y))
    width = shape[dim]
    for operand in (x, y):
        if shape_of(operand) != shape:
            operand = s(aten.expand.default, operand, list(shape))
        last = s(aten.transpose.int, operand, dim, -1)
        parts.append(s(aten.rms_norm.default, last, [width], None, eps * eps / width))
    product = s(aten.unsqueeze.default, s(aten.mean.dim, s(aten.mul.Tensor, *parts), [-1]), -1)
    return s(aten.squeeze.dim, s(aten.transpose.int, product, dim, -1), dim)
