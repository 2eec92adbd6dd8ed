"""Maxima and minima over dims, and their indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.builder.reductions import all_dims, maximum_of, minimum_of, with_reduced_dims
from ethorch.lower.builder.truth import select_elements
from ethorch.lower.fx.aten_builder import AtenBuilder
from ethorch.lower.ops.compare import emit_comparison
from ethorch.lower.ops.indices import index_as_int32
from ethorch.lower.ops.logical import reduce_truth_over
from ethorch.lower.ops.quant_rules import SAME_AS_INPUT, QuantRule
from ethorch.lower.ops.samples import I8, Bools, Ints, Sample
from ethorch.lower.ops.spec import composite, op
from ethorch.support.errors import Unsupported
from ethorch.tosa.ir import Value
from ethorch.tosa.layout import contiguous

aten = torch.ops.aten


def _extreme_of_floats(name: str) -> Callable[..., QTensor]:
    def extreme_of_floats(b: Builder, x: QTensor, dim: Any = (), keepdim: bool = False, *, out: Result) -> QTensor:
        value, dims = x.value, all_dims(x, dim)
        for axis in (axis for d in dims for axis in x.dims[d] if value.shape[axis] > 1):
            value = b.emit(name, value, axis=axis)
        return b.view(with_reduced_dims(x, value, dims, x.q), out.shape)

    return extreme_of_floats


def extreme(b: Builder, x: QTensor, dims: Sequence[int], name: str) -> QTensor:
    """Return the maximum or minimum (``any`` or ``all`` for truth values) over ``dims``. Reduced dims have size 1."""
    if x.value.dtype == "BOOL":
        return reduce_truth_over(b, "any" if name == "max" else "all", x, dims)
    value = x.value
    for axis in (axis for d in dims for axis in x.dims[d] if x.value.shape[axis] > 1):
        value = (maximum_of if name == "max" else minimum_of)(b, value, axis)
    return with_reduced_dims(x, value, dims, x.q)


_EXTREMES = [
    Sample(I8(2, 5, 7), [1]), Sample(I8(1, 8, 6, 5), [2, -1], True), Sample(I8(30, 9), [-1]), Sample(I8(3, 4, 11, 2, 1), [2]),
    Sample(Ints(30, 5), [1]), Sample(Bools(5, 9, chance=0.1), [1]),
]  # fmt: skip


@op("aten.amax.default", quant=SAME_AS_INPUT, floats=_extreme_of_floats("REDUCE_MAX"), samples=_EXTREMES)
def amax(b: Builder, x: QTensor, dim: Any = (), keepdim: bool = False, *, out: Result) -> QTensor:
    """Return the maximum of x over ``dim``, without rounding. TOSA MAX_POOL2D, MAXIMUM."""
    return b.to_qparams(b.view(extreme(b, x, all_dims(x, dim), "max"), out.shape), out.q)


@op("aten.amin.default", quant=SAME_AS_INPUT, floats=_extreme_of_floats("REDUCE_MIN"), samples=_EXTREMES)
def amin(b: Builder, x: QTensor, dim: Any = (), keepdim: bool = False, *, out: Result) -> QTensor:
    """Return the minimum of x over ``dim``, without rounding. TOSA MINIMUM."""
    return b.to_qparams(b.view(extreme(b, x, all_dims(x, dim), "min"), out.shape), out.q)


@composite("aten.max.default", decomposes_integers=True, samples=[Sample(I8(2, 5, 7)), Sample(Ints(30, 9))])
def max_all(s: AtenBuilder, x: Node) -> Any:
    """Return the maximum of all elements."""
    return s(aten.amax.default, x, [], False)


@composite("aten.min.default", decomposes_integers=True, samples=[Sample(I8(2, 5, 7)), Sample(Ints(30, 9))])
def min_all(s: AtenBuilder, x: Node) -> Any:
    """Return the minimum of all elements."""
    return s(aten.amin.default, x, [], False)


@composite(
    "aten.max.dim", decomposes_integers=True, samples=[Sample(I8(30, 9), 1), Sample(I8(2, 8, 5), -2, True), Sample(Ints(30, 9), 1)]
)
def max_dim(s: AtenBuilder, x: Node, dim: int, keepdim: bool = False) -> Any:
    """Return the maximum of x over ``dim``, and its index if the index is used."""
    return [s(aten.amax.default, x, [dim], keepdim), _find_index(s, aten.argmax.default, x, dim, keepdim)]


@composite(
    "aten.min.dim", decomposes_integers=True, samples=[Sample(I8(30, 9), 1), Sample(I8(2, 8, 5), -2, True), Sample(Ints(30, 9), 1)]
)
def min_dim(s: AtenBuilder, x: Node, dim: int, keepdim: bool = False) -> Any:
    """Return the minimum of x over ``dim``, and its index if the index is used."""
    return [s(aten.amin.default, x, [dim], keepdim), _find_index(s, aten.argmin.default, x, dim, keepdim)]


def _find_index(s: AtenBuilder, target: OpOverload, x: Node, dim: int, keepdim: bool) -> Node | None:
    if not s.is_read(1):
        return None
    if x.meta["val"].dtype == torch.bool:  # which PyTorch's argmax refuses
        x = s(aten._to_copy.default, x, dtype=torch.int8)
    return s(target, x, dim, keepdim)


def _index_of_extreme(b: Builder, x: QTensor, dim: int | None, least: bool, shape: Sequence[int]) -> QTensor:
    # ARGMAX runs along the channels of one feature map, as the U55 requires. INT32 values are compared with the extreme value
    # instead, as are INT16 values and more than 127 channels on the U55.
    dims = list(range(x.rank)) if dim is None else [dim % x.rank]
    rest = [d for d in range(x.rank) if d not in dims]
    if x.value.dtype == "INT32":
        return b.view(_first_of_equals(b, b.store_as(x, [rest, dims]), minimum_of if least else maximum_of), shape)
    value = b.store_as(x, [(), (), rest, dims])
    if least:
        minus_one = b.const(np.full((1, 1, 1, 1), -1, np.int32))
        reversed_ = b.emit("SUB", minus_one, b.rescale(value, 1.0, dtype="INT32"))  # -1 - value is also in range
        value = b.rescale(reversed_, 1.0, dtype=value.dtype)
    try:
        with b.attempt():
            first = b.emit("ARGMAX", value, axis=3)
    except Unsupported:
        if x.is_float:
            raise
        rows = b.reshape(b.rescale(value, 1.0, dtype="INT32"), value.shape[2:])
        return b.view(_first_of_equals(b, rows, maximum_of), shape)
    result = b.reshape(first, [x.shape[d] for d in rest])
    return b.view(QTensor(result, contiguous(result.shape), None), shape)


def _first_of_equals(b: Builder, rows: Value, extreme_of: Callable[[Builder, Value, int], Value]) -> QTensor:
    # An element that equals the extreme value has the score K - index. Differences to the extreme value must be below 2**31.
    extent = rows.shape[1]
    numbers, best = (QTensor(value, contiguous(value.shape), None) for value in (rows, extreme_of(b, rows, 1)))
    counts = b.plain_tensor(np.arange(extent, 0, -1, dtype=np.int32)[None])
    nothing = b.plain_tensor(np.zeros((1, 1), np.int32))
    first = maximum_of(b, select_elements(b, emit_comparison(b, "eq", numbers, best), counts, nothing, None).value, 1)
    index = b.reshape(b.emit("SUB", b.const(np.full((1, 1), extent, np.int32)), first), (rows.shape[0],))
    return QTensor(index, contiguous(index.shape), None)


def decompose_index_of_extreme(s: AtenBuilder, x: Node, dim: int | None = None, keepdim: bool = False) -> Node | None:
    narrow = index_as_int32(s, x)
    values = [user.meta["val"] if isinstance(user.target, OpOverload) else None for user in s.node.users]
    casts = all(isinstance(value, torch.Tensor) and value.dtype == torch.int32 for value in values)
    if casts and narrow is None:
        return None
    index = s(s.node.target, x if narrow is None else narrow, dim, keepdim)
    if casts:
        return index
    return s(torch.ops.aten._to_copy.default, s(torch.ops.aten._to_copy.default, index, dtype=torch.int32), dtype=torch.int64)


_INDICES = [
    Sample(I8(1, 5, 4, 10), -1), Sample(I8(2, 7, 3), 1, True), Sample(I8(3, 5), None), Sample(I8(1, 8, 4, 5), 1),
    Sample(Ints(3, 77, low=-9, high=9), -1), Sample(Ints(2, 5, 3), None, True),
]  # fmt: skip


@op(
    "aten.argmax.default",
    quant=QuantRule(output="none"),
    decompose=decompose_index_of_extreme,
    decomposes_integers=True,
    samples=_INDICES,
)
def argmax(b: Builder, x: QTensor, dim: int | None = None, keepdim: bool = False, *, out: Result) -> QTensor:
    """Return the first index of the maximum of x along ``dim``. TOSA ARGMAX."""
    return _index_of_extreme(b, x, dim, False, out.shape)


def argmin_of_floats(b: Builder, x: QTensor, dim: int | None = None, keepdim: bool = False, *, out: Result) -> QTensor:
    opposite = b.emit("NEGATE", x.value, input_zp=0, output_zp=0)
    return _index_of_extreme(b, QTensor(opposite, x.dims, x.q), dim, False, out.shape)


@op(
    "aten.argmin.default",
    quant=QuantRule(output="none"),
    decompose=decompose_index_of_extreme,
    decomposes_integers=True,
    floats=argmin_of_floats,
    samples=_INDICES,
)
def argmin(b: Builder, x: QTensor, dim: int | None = None, keepdim: bool = False, *, out: Result) -> QTensor:
    """Return the first index of the minimum of x along ``dim``. TOSA ARGMAX on -x."""
    return _index_of_extreme(b, x, dim, True, out.shape)
