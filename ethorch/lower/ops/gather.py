"""Indexed reads: slices and a CONCAT for constant indices, or a GATHER, which only U85 supports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import tensor_of
from ethorch.lower.ops.indices import (
    MOST_PIECES,
    as_int32,
    check_operands,
    constant_numbers,
    count_from_end,
    evenly_spaced,
    merge_indices,
    runs,
    side_by_side,
    slice_strided,
)
from ethorch.lower.ops.quant_rules import QuantRule
from ethorch.lower.ops.samples import I8, Ints, Sample, W
from ethorch.lower.ops.spec import composite, op
from ethorch.support.errors import Reason
from ethorch.tosa.ir import Value

aten = torch.ops.aten

#: Rule for operators whose result has the quantization parameters of the first input. Other inputs are not quantized.
_FIRST_ONLY = QuantRule(only_first=True, output="same")


def rows_of(b: Builder, x: QTensor, dim: int, index: Any) -> QTensor:
    """Return the slices of x at ``index`` along ``dim``. The dims of ``index`` replace ``dim``."""
    dim %= x.rank
    shape = tuple(index.shape)
    constant = constant_numbers(index)
    if constant is not None:
        if constant.dtype == np.bool_:
            constant = np.flatnonzero(constant)
            shape = constant.shape
        numbers = [int(k) % x.shape[dim] for k in constant.ravel()]
        pieces = runs(numbers)
        if len(pieces) > MOST_PIECES and (even := evenly_spaced(numbers)) is not None:
            rows = slice_strided(b, x, dim, even[0], None, even[1])
            return b.view(b.narrow(rows, dim, 0, len(numbers)), (*x.shape[:dim], *shape, *x.shape[dim + 1 :]))
        if len(pieces) <= MOST_PIECES:
            parts = [b.narrow(x, dim, first, size) for first, size in pieces]
            return b.view(b.concat(parts, dim), (*x.shape[:dim], *shape, *x.shape[dim + 1 :]))
        codes = b.const(np.asarray(numbers, np.int32), name="index")
    else:
        codes = b.logical(index)
    return gather_along(b, x, dim, codes, shape)


def _gather(b: Builder, values: Value, index: Value) -> Value:
    if values.dtype != "BOOL":
        return b.emit("GATHER", values, index)
    return b.emit("CAST", b.emit("GATHER", b.emit("CAST", values, dtype="INT8"), index), dtype="BOOL")


def gather_along(b: Builder, x: QTensor, dim: int, index: Value, shape: tuple[int, ...]) -> QTensor:
    """Emit a GATHER along ``dim``. ``shape`` is the original shape of the INT32 ``index``."""
    others = [d for d in range(x.rank) if d != dim]
    inner = math.prod(x.shape[d] for d in others)
    value = b.reshape(b.store_as(x, [(dim,), tuple(others)]), (1, x.shape[dim], inner))
    rows = _gather(b, value, b.reshape(index, (1, math.prod(shape))))
    places = range(dim, dim + len(shape))
    order = [*places, *range(dim), *range(places.stop, len(shape) + len(others))]
    return b.from_order(b.reshape(rows, (*shape, *(x.shape[d] for d in others))), order, x.q)


def check_index_select(x: Any, dim: int, index: Any) -> Reason | None:
    return check_operands(index)


def decompose_index_select(s: AtenBuilder, x: Node, dim: int, index: Any) -> Any:
    if isinstance(index, Node) and not shape_of(index):
        return s(aten.index_select.default, x, dim, s(aten.reshape.default, index, [1]))
    narrow = as_int32(s, index)
    return None if narrow is None else s(aten.index_select.default, x, dim, narrow)


@op(
    "aten.index_select.default",
    "aten.index_select_copy.default",
    quant=_FIRST_ONLY,
    needs="GATHER",
    check=check_index_select,
    decompose=decompose_index_select,
    decomposes_integers=True,
    samples=[
        Sample(I8(2, 5, 7), 1, torch.tensor([3, 0, 1, 4])),
        Sample(I8(6, 4), -1, torch.tensor([2])),
        Sample(I8(2, 5, 7), 1, Ints(4, low=0, high=4)),
    ],
)
def index_select(b: Builder, x: QTensor, dim: int, index: Any, *, out: Result) -> QTensor:
    """Compute out[..., k, ...] = x[..., index[k], ...]. TOSA SLICE, CONCAT, GATHER."""
    return b.to_qparams(rows_of(b, x, dim, index), out.q)


def check_embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale_grad: bool = False, sparse: bool = False
) -> Reason | None:
    if not isinstance(weight, QTensor):
        return Reason(
            "graph.weight_not_quantized",
            "the weight is float; expected a quantized weight",
            "Configure the quantizer to quantize the operator's module.",
        )
    return check_operands(indices)


def decompose_embedding(
    s: AtenBuilder, weight: Node, indices: Node, padding_idx: int = -1, scale_grad: bool = False, sparse: bool = False
) -> Any:
    narrow = as_int32(s, indices)
    return None if narrow is None else s(aten.embedding.default, weight, narrow, padding_idx)


@op(
    "aten.embedding.default",
    quant=_FIRST_ONLY,
    needs="GATHER",
    check=check_embedding,
    decompose=decompose_embedding,
    samples=[Sample(W(9, 16), Ints(2, 5, low=0, high=8)), Sample(W(9, 16), Ints(7, low=0, high=8))],
)
def embedding(
    b: Builder,
    weight: QTensor,
    indices: Any,
    padding_idx: int = -1,
    scale_grad: bool = False,
    sparse: bool = False,
    *,
    out: Result,
) -> QTensor:
    """Return weight[indices]. TOSA SLICE, CONCAT, GATHER."""
    return b.to_qparams(rows_of(b, weight, 0, indices), out.q)


@composite(
    "aten.embedding_bag.padding_idx",
    "aten.embedding_bag.default",
    samples=[
        Sample(W(9, 16), Ints(6, low=0, high=8), torch.tensor([0, 3]), False, 1).of("aten.embedding_bag.default"),
        Sample(W(9, 16), Ints(6, low=0, high=8), torch.tensor([0, 2, 4, 6]), False, 2, False, None, True, None),
        Sample(W(9, 16), Ints(4, low=0, high=8), torch.tensor([0]), False, 0, False, I8(4), False, None),
    ],
)
def embedding_bag(
    s: AtenBuilder,
    weight: Node,
    indices: Node,
    offsets: Node,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Node | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Return the sum, mean or maximum of each bag's rows, for constant bags of equal size."""
    starts = tensor_of(s.model, offsets)
    if starts is None or padding_idx is not None:
        return None
    count = shape_of(indices)[0]
    bounds = starts.tolist() if include_last_offset else [*starts.tolist(), count]
    size = count // (len(bounds) - 1)
    if not size or bounds != list(range(0, count + 1, size)):
        return None
    rows = s(aten.embedding.default, weight, indices)
    if per_sample_weights is not None:
        rows = s(aten.mul.Tensor, rows, s(aten.unsqueeze.default, per_sample_weights, -1))
    bags = s(aten.reshape.default, rows, [-1, size, shape_of(weight)[1]])
    reduce = (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default)[mode]
    return [s(reduce, bags, [1]), None, None, None]


def check_index(x: Any, indices: Any) -> Reason | None:
    indexed_dims = [k for k, index in enumerate(indices) if index is not None]
    constant = all(constant_numbers(indices[k]) is not None for k in indexed_dims if isinstance(indices[k], (QTensor, np.ndarray)))
    if len(indexed_dims) > 1 and not (constant and side_by_side(indices)):
        return Reason(
            "index.several",
            f"expected one index tensor, or constant index tensors for adjacent dims, got {len(indexed_dims)} index tensors",
            "Flatten the indexed dims, and replace indices i and j with i * size + j, where size is the length of the second dim.",
        )
    return check_operands(*(indices[k] for k in indexed_dims))


def decompose_index(s: AtenBuilder, x: Node, indices: Any) -> Any:
    """Merge computed indices of adjacent dims into one index, and convert int64 indices to int32."""
    several = None if s.absent("GATHER") else merge_indices(s, x, indices)
    if several is not None:
        merged, dim, number = several
        rows, places = shape_of(merged), shape_of(number)
        selected = s(aten.index_select.default, merged, dim, s(aten.reshape.default, number, [-1]))
        return s(aten.reshape.default, selected, [*rows[:dim], *places, *rows[dim + 1 :]])
    narrow = [as_int32(s, index) for index in indices]
    if not any(narrow):
        return None
    return s(aten.index.Tensor, x, [new or old for new, old in zip(narrow, indices, strict=True)])


@op(
    "aten.index.Tensor",
    quant=_FIRST_ONLY,
    needs="GATHER",
    check=check_index,
    decompose=decompose_index,
    decomposes_integers=True,
    samples=[
        Sample(I8(2, 5, 7), [None, torch.tensor([3, 0, 1])]),
        Sample(I8(6, 4), [torch.tensor([[2, 0], [5, 5]])]),
        Sample(I8(4, 5, 3), [torch.tensor([0, 3, 1]), torch.tensor([4, 2, 2])]),
        Sample(I8(4, 5, 3), [Ints(6, low=-4, high=3), Ints(2, 1, low=-5, high=4)]),
        Sample(I8(2, 5, 7), [None, Ints(4, low=-5, high=4)]),
    ],
)
def index(b: Builder, x: QTensor, indices: Sequence[Any], *, out: Result) -> QTensor:
    """Return x[indices]. Constant indices of adjacent dims are merged. TOSA SLICE, CONCAT, GATHER."""
    indexed_dims = [k for k, array in enumerate(indices) if array is not None]
    if len(indexed_dims) == 1:
        dim, numbers = indexed_dims[0], indices[indexed_dims[0]]
        if constant_numbers(numbers) is None:
            numbers = count_from_end(b, numbers, x.shape[dim])
        return b.to_qparams(rows_of(b, x, dim, numbers), out.q)
    arrays = np.broadcast_arrays(*(np.asarray(constant_numbers(indices[k])) for k in indexed_dims))
    first, last = indexed_dims[0], indexed_dims[-1]
    extents = x.shape[first : last + 1]
    flat = np.ravel_multi_index([a % extent for a, extent in zip(arrays, extents, strict=True)], extents)
    merged = b.view(x, (*x.shape[:first], math.prod(extents), *x.shape[last + 1 :]))
    return b.to_qparams(rows_of(b, merged, first, np.asarray(flat).reshape(arrays[0].shape)), out.q)


def check_gather(x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Reason | None:
    return check_operands(index)


def decompose_gather(s: AtenBuilder, x: Node, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    narrow = as_int32(s, index)
    return None if narrow is None else s(aten.gather.default, x, dim, narrow)


@op(
    "aten.gather.default",
    quant=_FIRST_ONLY,
    needs="GATHER",
    check=check_gather,
    decompose=decompose_gather,
    decomposes_integers=True,
    samples=[
        Sample(I8(3, 6), 1, torch.tensor([[0, 5], [2, 2], [1, 4]])),
        Sample(I8(1, 5, 4), 1, torch.tensor([[[3] * 4, [0] * 4]])),
    ],
)
def gather(b: Builder, x: QTensor, dim: int, index: Any, sparse_grad: bool = False, *, out: Result) -> QTensor:
    """Compute out[i, j] = x[i, index[i, j]] for ``dim`` = 1. TOSA SLICE, CONCAT, GATHER."""
    dim %= x.rank
    shape = tuple(index.shape)
    constant = constant_numbers(index)
    if constant is not None:
        places = list(np.indices(shape, sparse=True))
        places[dim] = constant % x.shape[dim]
        flat = np.ravel_multi_index(tuple(np.broadcast_arrays(*places)), x.shape)
        rows = rows_of(b, b.view(x, (math.prod(x.shape),)), 0, flat)
        return b.to_qparams(rows, out.q)
    for d in range(x.rank):
        if d != dim:
            x = b.narrow(x, d, 0, shape[d])
    order = [*(d for d in range(x.rank) if d != dim), dim]
    lines = math.prod(shape[d] for d in order[:-1])
    values = b.reshape(b.logical(b.permute(x, order)), (lines, x.shape[dim], 1))
    numbers = b.reshape(b.logical(b.permute(index, order)), (lines, shape[dim]))
    elements = b.reshape(_gather(b, values, numbers), [shape[d] for d in order])
    return b.to_qparams(b.from_order(elements, order, x.q), out.q)
