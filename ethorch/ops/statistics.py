"""Numbers about a tensor: extremes, variance, norms, running sums and products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.errors import Reason
from ethorch.ops.copies import wanted
from ethorch.ops.quant_rules import EACH_INPUT, SAME_AS_INPUT
from ethorch.ops.rows import deviations, fineness, function_of, maximum_of, minimum_of, pieces, sum_of_squares
from ethorch.ops.spec import I8, Ints, Sample, W, composite, op
from ethorch.qparams import QParams, QTensor
from ethorch.real import FP32, Real
from ethorch.sketch import Sketch, shape_of
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import Value

aten = torch.ops.aten


def _all(x: QTensor, dim: Any) -> list[int]:
    """PyTorch's dim argument (one, several, none for all) as non-negative dims."""
    dims = [dim] if isinstance(dim, int) else list(dim) if dim is not None and len(dim) else range(x.rank)
    return [d % x.rank for d in dims]


def _reduced(x: QTensor, value: Value, dims: Sequence[int], q: QParams | None) -> QTensor:
    return QTensor(value, tuple(() if d in dims else axes for d, axes in enumerate(x.dims)), q)


def extreme(b: Builder, x: QTensor, dims: Sequence[int], name: str) -> QTensor:
    """Maximum or minimum over ``dims``, which keep extent 1; exact. TOSA 1.0 MAX_POOL2D, MINIMUM."""
    value = x.value
    for axis in (axis for d in dims for axis in x.dims[d] if x.value.shape[axis] > 1):
        value = (maximum_of if name == "max" else minimum_of)(b, value, axis)
    return _reduced(x, value, dims, x.q)


_EXTREMES = [
    Sample(I8(2, 5, 7), [1]), Sample(I8(1, 8, 6, 5), [2, -1], True), Sample(I8(30, 9), [-1]), Sample(I8(3, 4, 11, 2, 1), [2]),
    Sample(Ints(30, 5), [1]),
]  # fmt: skip


@op("aten.amax.default", quant=SAME_AS_INPUT, samples=_EXTREMES)
def amax(b: Builder, x: QTensor, dim: Any = (), keepdim: bool = False, *, out: QParams) -> QTensor:
    """out = maximum over ``dim``, exact."""
    return wanted(b, b.view(extreme(b, x, _all(x, dim), "max"), b.result_shape), out)


@op("aten.amin.default", quant=SAME_AS_INPUT, samples=_EXTREMES)
def amin(b: Builder, x: QTensor, dim: Any = (), keepdim: bool = False, *, out: QParams) -> QTensor:
    """out = minimum over ``dim``, exact."""
    return wanted(b, b.view(extreme(b, x, _all(x, dim), "min"), b.result_shape), out)


@composite("aten.max.default", samples=[Sample(I8(2, 5, 7))])
def max_all(s: Sketch, x: Node) -> Any:
    """out = the largest element."""
    return s(aten.amax.default, x, [], False)


@composite("aten.min.default", samples=[Sample(I8(2, 5, 7))])
def min_all(s: Sketch, x: Node) -> Any:
    """out = the smallest element."""
    return s(aten.amin.default, x, [], False)


def _indices_read(s: Sketch) -> bool:
    return any(user.args[1] == 1 and user.users for user in s.node.users)


@composite("aten.max.dim", samples=[Sample(I8(30, 9), 1), Sample(I8(2, 8, 5), -2, True)])
def max_dim(s: Sketch, x: Node, dim: int, keepdim: bool = False) -> Any:
    """(maximum over ``dim``, its index if somebody reads it)."""
    return [s(aten.amax.default, x, [dim], keepdim), s(aten.argmax.default, x, dim, keepdim) if _indices_read(s) else None]


@composite("aten.min.dim", samples=[Sample(I8(30, 9), 1), Sample(I8(2, 8, 5), -2, True)])
def min_dim(s: Sketch, x: Node, dim: int, keepdim: bool = False) -> Any:
    """(minimum over ``dim``, its index if somebody reads it)."""
    return [s(aten.amin.default, x, [dim], keepdim), s(aten.argmin.default, x, dim, keepdim) if _indices_read(s) else None]


def _squares(b: Builder, x: QTensor, dims: Sequence[int], centred: bool) -> tuple[Value, float]:
    """(INT32 sum of squares over ``dims``, of deviations or of x; the value of one step of it in squared codes of x)."""
    axes = [axis for d in dims for axis in x.dims[d] if x.value.shape[axis] > 1]
    codes = x.qparams.qmax - x.qparams.qmin + 1
    if not centred:
        return sum_of_squares(b, x.value, x.qparams.zp, axes, codes)
    fine = fineness(codes, math.prod(x.shape[d] for d in dims))
    square, unit = sum_of_squares(b, deviations(b, x, axes, fine), 0, axes, codes * fine)
    return square, unit / fine**2


def _root(b: Builder, square: Value, unit: float, largest: float, out: QParams) -> Value:
    """sqrt(square * unit) in codes of ``out``: tables down to half of its step."""
    lowest = max((out.step / 4) ** 2, largest * 2.0**-34)
    bounds = [0.0, *(bound / unit for bound in pieces(lowest, largest, 64.0))]
    fraction = math.sqrt(largest) / 2.0**22
    return b.requantize(function_of(b, square, lambda v: np.sqrt(np.maximum(v, 0) * unit), bounds, fraction), fraction, out)


def _unbiased(x: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
    return (x, dim), {"correction": int(unbiased), "keepdim": keepdim}


_VARIANCE = [Sample(I8(12, 30), [1]), Sample(I8(2, 6, 5, 4), [1, -1], keepdim=True), Sample(I8(4, 9, 3), [1], correction=0)]


@op(
    "aten.var.correction", quant=EACH_INPUT, samples=_VARIANCE,
    also={"aten.var.dim": _unbiased, "aten.var.default": lambda x, unbiased=True: _unbiased(x, None, unbiased)},
)  # fmt: skip
def var(b: Builder, x: QTensor, dim: Any = None, *, out: QParams, correction: float | None = 1, keepdim: bool = False) -> QTensor:
    """out = sum of (x - mean)**2 over ``dim`` / (N - correction): sums exact, rounded once."""
    dims = _all(x, dim)
    square, unit = _squares(b, x, dims, True)
    count = math.prod(x.shape[d] for d in dims) - (1 if correction is None else correction)
    return b.view(_reduced(x, b.requantize(square, unit * x.qparams.step**2 / max(count, 1e-9), out), dims, out), b.result_shape)


@op(
    "aten.std.correction", quant=EACH_INPUT, samples=_VARIANCE, bound16=2,
    also={"aten.std.dim": _unbiased, "aten.std.default": lambda x, unbiased=True: _unbiased(x, None, unbiased)},
)  # fmt: skip
def std(b: Builder, x: QTensor, dim: Any = None, *, out: QParams, correction: float | None = 1, keepdim: bool = False) -> QTensor:
    """out = root of the variance over ``dim``: the sum of squares exact, the root from tables."""
    dims, step = _all(x, dim), x.qparams.step
    square, unit = _squares(b, x, dims, True)
    count = math.prod(x.shape[d] for d in dims) - (1 if correction is None else correction)
    codes = x.qparams.qmax - x.qparams.qmin + 1
    root = _root(b, square, unit * step**2 / max(count, 1e-9), (codes * step) ** 2, out)
    return b.view(_reduced(x, root, dims, out), b.result_shape)


@op(
    "aten.linalg_vector_norm.default", quant=EACH_INPUT, bound16=2,
    also={"aten.norm.ScalarOpt_dim": lambda x, p, dim, keepdim=False: ((x, 2 if p is None else p, dim, keepdim), {})},
    samples=[Sample(I8(12, 30), 2, [1]), Sample(I8(2, 6, 5, 4), 2, [1, -1], True), Sample(I8(12, 30, low=0.0), 1, [1]),
             Sample(I8(12, 30), math.inf, [1])],
)  # fmt: skip
def vector_norm(
    b: Builder, x: QTensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, out: QParams
) -> QTensor:
    """out = root of the sum of x**2 over ``dim``: the sum exact, the root from tables. Other orders are decomposed."""
    dims, codes = _all(x, dim), x.qparams.qmax - x.qparams.qmin + 1
    square, unit = _squares(b, x, dims, False)
    step = x.qparams.step
    root = _root(b, square, unit * step**2, math.prod(x.shape[d] for d in dims) * (codes * step) ** 2, out)
    return b.view(_reduced(x, root, dims, out), b.result_shape)


@vector_norm.check
def _(x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Reason | None:
    return None if ord == 2 else Reason("vector_norm.order", f"order {ord}, allowed are 1, 2 and infinity")


@vector_norm.decomposition
def _(s: Sketch, x: Node, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    dims = list(range(len(shape_of(x)))) if dim is None else [dim] if isinstance(dim, int) else dim
    if ord == 1:
        return s(aten.sum.dim_IntList, s(aten.abs.default, x), dims, keepdim)
    if ord == math.inf:
        return s(aten.amax.default, s(aten.abs.default, x), dims, keepdim)
    return None


@op(
    "aten.cumsum.default", quant=EACH_INPUT,
    samples=[Sample(I8(2, 9), 1), Sample(I8(1, 12, 4, 5), 1), Sample(I8(3, 6, 7), -2)],
)  # fmt: skip
def cumsum(b: Builder, x: QTensor, dim: int, *, out: QParams, dtype: Any = None) -> QTensor:
    """out[i] = x[0] + ... + x[i] along ``dim``: a product with a triangle of ones, exact. TOSA 1.0 CONV2D."""
    dim %= x.rank
    extent = x.shape[dim]
    others = [d for d in range(x.rank) if d != dim]
    value = b.stored_as(x, [(), tuple(others), (), (dim,)])
    ones = np.tril(np.ones((extent, extent), np.int8)).reshape(extent, 1, 1, extent)
    zeros = b.const(np.zeros(extent, np.int64), "INT48") if value.dtype == "INT16" else b.const(np.zeros(extent, np.int32))
    acc = b.emit(
        "CONV2D", value, b.const(ones, name="ones"), zeros, pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1),
        input_zp=x.qparams.zp, weight_zp=0,
    )  # fmt: skip
    result = b.reshape(b.requantize(acc, x.qparams.step, out), (*(x.shape[d] for d in others), extent))
    full = QTensor(result, tuple((k,) for k in range(x.rank)), out)
    order = [*others, dim]
    return b.permute(full, [order.index(d) for d in range(x.rank)])


#: A product of more factors than this, each rounded to 8 bits, is not worth having.
_MOST_FACTORS = 16


@composite("aten.prod.dim_int", samples=[Sample(I8(12, 4, low=-1.5, high=1.5), 1), Sample(I8(3, 5, 4, low=0.5, high=1.5), 1, True)])
def prod(s: Sketch, x: Node, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """out = product over a short ``dim``, as a chain of muls."""
    if shape_of(x)[dim] > _MOST_FACTORS:
        return None
    made = _products(s, x, dim)[-1]
    return s(aten.unsqueeze.default, made, dim) if keepdim else made


@composite("aten.cumprod.default", samples=[Sample(I8(12, 4, low=-1.5, high=1.5), 1)], bound=1)
def cumprod(s: Sketch, x: Node, dim: int, *, dtype: Any = None) -> Any:
    """out[i] = x[0] * ... * x[i] along a short ``dim``, as a chain of muls."""
    return None if shape_of(x)[dim] > _MOST_FACTORS else s(aten.stack.default, _products(s, x, dim), dim)


def _products(s: Sketch, x: Node, dim: int) -> list[Node]:
    made = [s(aten.select.int, x, dim, 0)]
    for k in range(1, shape_of(x)[dim]):
        made.append(s(aten.mul.Tensor, made[-1], s(aten.select.int, x, dim, k)))
    return made


@composite("aten.glu.default", samples=[Sample(I8(2, 8, 5), 1), Sample(I8(3, 6))])
def glu(s: Sketch, x: Node, dim: int = -1) -> Any:
    """out = first half * sigmoid(second half) of ``dim``."""
    half = shape_of(x)[dim] // 2
    first, second = (s(aten.slice.Tensor, x, dim, k * half, (k + 1) * half) for k in range(2))
    return s(aten.mul.Tensor, first, s(aten.sigmoid.default, second))


@composite(
    "aten.cosine_similarity.default", bound=2, bound16=3,
    samples=[Sample(I8(24, 16), I8(24, 16, low=-1.0)), Sample(I8(2, 6, 5), I8(2, 6, 5), 1)],
)  # fmt: skip
def cosine_similarity(s: Sketch, x: Node, y: Node, dim: int = 1, eps: float = 1e-8) -> Any:
    """out = mean over ``dim`` of the product of both, each divided by its root mean square. Bound: three roundings."""
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

# --- of floats --------------------------------------------------------------------------------------------------------------


def _extreme_of_floats(name: str) -> Any:
    def lower(b: Builder, x: QTensor, dim: Any = (), keepdim: bool = False) -> QTensor:
        value, dims = x.value, _all(x, dim)
        for axis in (axis for d in dims for axis in x.dims[d] if value.shape[axis] > 1):
            value = b.emit(name, value, axis=axis)
        return b.view(_reduced(x, value, dims, x.q), b.result_shape)

    return lower


amax.floats(_extreme_of_floats("REDUCE_MAX"))
amin.floats(_extreme_of_floats("REDUCE_MIN"))


def _variance(b: Builder, x: QTensor, dim: Any, correction: float | None) -> Real:
    dims, value = _all(x, dim), Real.of(b, x)
    deviation = value - value.mean(dims)
    count = math.prod(x.shape[d] for d in dims) - (1 if correction is None else correction)
    return (deviation * deviation).sum(dims) * (1 / count if count > 0 else math.inf)


@var.floats
def _(b: Builder, x: QTensor, dim: Any = None, *, correction: float | None = 1, keepdim: bool = False) -> Real:
    return _variance(b, x, dim, correction).view(b.result_shape)


@std.floats
def _(b: Builder, x: QTensor, dim: Any = None, *, correction: float | None = 1, keepdim: bool = False) -> Real:
    return _variance(b, x, dim, correction).sqrt().view(b.result_shape)


@vector_norm.floats
def _(b: Builder, x: QTensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Real:
    dims, value = _all(x, dim), Real.of(b, x)
    if abs(ord) == math.inf:
        made = value.abs().amax(dims) if ord > 0 else value.abs().amin(dims)
    elif ord == 2:
        made = (value * value).sum(dims).sqrt()
    elif ord == 1:
        made = value.abs().sum(dims)
    elif ord == 0:
        made = value.equals(0).then(0, 1).sum(dims)
    else:
        made = (value.abs() ** ord).sum(dims) ** (1 / ord)
    return made.view(b.result_shape)


@cumsum.floats
def _(b: Builder, x: QTensor, dim: int, *, dtype: Any = None) -> QTensor:
    """A product with a triangle of ones. TOSA 1.0 MATMUL, in FP32."""
    dim %= x.rank
    extent, others = x.shape[dim], [d for d in range(x.rank) if d != dim]
    value = b.stored_as(Real.of(b, x).t, [(), tuple(others), (dim,)])
    ones = b.const(np.triu(np.ones((extent, extent), np.float32))[None], name="ones")
    result = b.emit("MATMUL", value, ones, a_zp=0, b_zp=0)
    full = QTensor(b.reshape(result, (*(x.shape[d] for d in others), extent)), tuple((k,) for k in range(x.rank)), FP32)
    order = [*others, dim]
    return b.permute(full, [order.index(d) for d in range(x.rank)])


@prod.floats
def _(b: Builder, x: QTensor, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Real:
    return Real.of(b, x).prod([dim % x.rank]).view(b.result_shape)


@composite(
    "aten.prelu.default", "aten._prelu_kernel.default",
    samples=[Sample(I8(2, 6, 5, 4), W(6)), Sample(I8(3, 40), W(40)), Sample(I8(2, 5, 7), W(1))],
)  # fmt: skip
def prelu(s: Sketch, x: Node, weight: Node) -> Any:
    """out = max(x, 0) + weight * min(x, 0), a weight for each channel or for all."""
    behind = [1] * max(len(shape_of(x)) - 2, 0) if len(shape_of(weight)) == 1 else []
    shape = [*shape_of(weight), *behind]
    if weight.op == "get_attr":
        weight = s.parameter(weight, lambda data: data.reshape(shape))
    else:
        weight = s(aten.reshape.default, weight, shape)
    return s(aten.add.Tensor, s(aten.relu.default, x), s(aten.mul.Tensor, s(aten.clamp.default, x, None, 0.0), weight))
