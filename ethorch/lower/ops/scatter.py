"""Indexed writes, lowered to slices and a CONCAT for constant indices, or to a SCATTER, which only the U85 supports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor, Result
from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import attribute
from ethorch.lower.ops.accumulate import accumulate_at_indices
from ethorch.lower.ops.compare import emit_comparison
from ethorch.lower.ops.indices import (
    as_int32,
    check_operands,
    constant_numbers,
    count_from_end,
    merge_dims,
    merge_indices,
    side_by_side,
)
from ethorch.lower.ops.quant_rules import OVERWRITTEN
from ethorch.lower.ops.samples import I8, Bools, Ints, Sample
from ethorch.lower.ops.selection import either
from ethorch.lower.ops.slicing import overwrite_rows
from ethorch.lower.ops.spec import op
from ethorch.support.errors import Reason

aten = torch.ops.aten

_SHORTEST_ROW = 8  #: shortest row that is scattered without a transposition


def _merge_constants(s: AtenBuilder, x: Node, indices: Sequence[Any]) -> tuple[Node, int, Node] | None:
    each: list[torch.Tensor | None] = []
    for index in indices:
        tensor = None if index is None else attribute(s.model, index)
        each += tensor.nonzero().unbind(1) if tensor is not None and tensor.dtype == torch.bool else [tensor]
    dims = side_by_side(each)
    if dims is None:
        return None
    number = torch.zeros((), dtype=torch.int64)
    for extent, tensor in zip(shape_of(x)[dims[0] :], each[dims[0] : dims[1] + 1], strict=False):
        assert tensor is not None
        number = number * extent + torch.remainder(tensor.to(torch.int64), extent)
    return merge_dims(s, x, *dims), dims[0], s.constant(number)


def _with_row(b: Builder, x: QTensor, dim: int, index: QTensor, source: QTensor, q: QParams | None) -> QTensor:
    others = [1] * x.rank
    rows = np.arange(x.shape[dim], dtype=np.int32).reshape([*others[:dim], -1, *others[dim + 1 :]])
    return either(b, emit_comparison(b, "eq", b.view(index, others), rows), source, x, q)


def _scatter(b: Builder, x: QTensor, dim: int, index: QTensor, source: QTensor) -> QTensor:
    lead, tail = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 :])
    count = source.shape[dim]
    if tail < _SHORTEST_ROW:  # the rows become longer if x is moved
        others = [d for d in range(x.rank) if d != dim]
        rows = b.reshape(b.store_as(x, [(dim,), tuple(others)]), (1, x.shape[dim], lead * tail))
        updates = b.reshape(b.store_as(source, [(dim,), tuple(others)]), (1, count, lead * tail))
        put = b.emit("SCATTER", rows, b.reshape(b.logical(index), (1, count)), updates)
        return b.from_order(b.reshape(put, (x.shape[dim], *(x.shape[d] for d in others))), [dim, *others], x.q)
    rows, updates = b.reshape(b.logical(x), (lead, x.shape[dim], tail)), b.reshape(b.logical(source), (lead, count, tail))
    places = b.reshape(b.logical(index), (1, count))
    if lead > 1:
        places = b.emit("TILE", places, multiples=(lead, 1))
    put = b.emit("SCATTER", rows, places, updates)
    return b.from_order(b.reshape(put, x.shape), list(range(x.rank)), x.q)


def check_index_copy(x: Any, dim: int, index: Any, source: Any) -> Reason | None:
    if constant_numbers(index) is None:
        return Reason(
            "index_copy.dynamic",
            "the index is computed at run time; expected a constant index",
            "Compare a constant arange with the index, and select with torch.where.",
        )
    return check_operands(index)


def decompose_index_copy(s: AtenBuilder, x: Node, dim: int, index: Node, source: Node) -> Any:
    """Decompose an index_copy with a computed index into an index_put."""
    if not math.prod(shape_of(index)):
        return x
    if index.op == "get_attr":
        return None
    return s(aten.index_put.default, x, [*[None] * (dim % len(shape_of(x))), index], source)


@op(
    "aten.index_copy.default",
    quant=OVERWRITTEN,
    needs="SCATTER",
    check=check_index_copy,
    decompose=decompose_index_copy,
    samples=[Sample(I8(2, 5, 3), 1, torch.tensor([4, 0]), I8(2, 2, 3, low=-1.0))],
)
def index_copy(b: Builder, x: QTensor, dim: int, index: Any, source: QTensor, *, out: Result) -> QTensor:
    """Return x with source[k] at x[index[k]] along ``dim``, using slices and a CONCAT.

    With a computed index, the operator becomes an index_put.
    """
    dim %= x.rank
    numbers = constant_numbers(index)
    assert numbers is not None
    places = [int(k) % x.shape[dim] for k in numbers.ravel()]
    return overwrite_rows(b, b.convert_operand(x, out), dim, places, b.convert_operand(source, out))


def check_index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Reason | None:
    present = [index for index in indices if index is not None]
    if accumulate:
        return Reason(
            "index_put.accumulate",
            "accumulate=True requires float values, integer indices of adjacent dims, and "
            "number of indices x size of the indexed dims <= 1,048,576",
            "Quantize the model with EthosUQuantizer, which decomposes calls that meet these requirements.",
        )
    if len(present) != 1 or not isinstance(present[0], (QTensor, np.ndarray)):
        return Reason(
            "index_put.index",
            f"expected one int32 index tensor, or several that index adjacent dims, got {len(present)} index tensors",
            "Quantize the model with EthosUQuantizer, and transpose the tensor so that the indexed dims are adjacent.",
        )
    if constant_numbers(present[0]) is None and len(present[0].shape) != 1:
        text = f"expected a computed index of rank 1, got rank {len(present[0].shape)}"
        return Reason("index_put.index", text, "Quantize the model with EthosUQuantizer.")
    if isinstance(present[0], QTensor) and not present[0].value.is_const and present[0].value.dtype != "INT32":
        text = f"expected a computed index of dtype INT32, got {present[0].value.dtype}"
        return Reason("index_put.index", text, "Use torch.where, which supports masks.")
    if not isinstance(values, QTensor) or not isinstance(x, QTensor):
        return Reason(
            "index_put.operand",
            "the tensor or the written values are float; expected quantized tensors",
            "Quantize the module that contains the operator.",
        )
    return None


def decompose_index_put(s: AtenBuilder, x: Node, indices: Any, values: Node, accumulate: bool = False) -> Any:
    """Decompose an index_put into simpler operators.

    - For a call with ``accumulate``, see ``accumulate_at_indices``.
    - A masked write of one value becomes a ``where``.
    - Other calls become an index_put with one index. Indexed dims that are not adjacent are first moved to the front. Writing
      several rows at computed indices requires SCATTER.
    """
    indexed_dims = [k for k, index in enumerate(indices) if index is not None]
    first, shape = indices[indexed_dims[0]], shape_of(x)
    if not all(math.prod(shape_of(indices[k])) for k in indexed_dims):
        return x
    if accumulate:
        return accumulate_at_indices(s, x, indices, values)
    if indexed_dims[-1] - indexed_dims[0] >= len(indexed_dims) and not any(
        indices[k].meta["val"].dtype == torch.bool for k in indexed_dims
    ):
        order = [*indexed_dims, *(k for k in range(len(shape)) if k not in indexed_dims)]  # PyTorch's values have these dims first
        put = s(aten.index_put.default, s(aten.permute.default, x, order), [indices[k] for k in indexed_dims], values)
        return s(aten.permute.default, put, [order.index(k) for k in range(len(shape))])
    constant = all(indices[k].op == "get_attr" for k in indexed_dims)
    if constant and len(indexed_dims) == 1 and len(shape_of(first)) == 1:
        return None
    if first.meta["val"].dtype == torch.bool and len(indexed_dims) == 1 and math.prod(shape_of(values)) == 1:
        mask = [*[1] * indexed_dims[0], *shape_of(first)]
        return s(aten.where.self, s(aten.reshape.default, first, [*mask, *[1] * (len(shape) - len(mask))]), values, x)
    if constant:
        flattened = _merge_constants(s, x, indices)
        if flattened is None:
            return None
        flat_x, dim, number = flattened
        if not math.prod(shape_of(number)):
            return x
    elif (
        s.absent("SCATTER")
        and len(indexed_dims) == 1
        and first.meta["val"].dtype == torch.int64
        and math.prod(shape_of(first)) == 1
    ):
        return s(aten.index_put.default, x, [*indices[: indexed_dims[0]], s(aten.to.dtype, first, torch.int32)], values)
    elif any(indices[k].meta["val"].dtype == torch.bool for k in indexed_dims):  # noqa: SIM114
        return None
    elif s.absent("SCATTER") and (len(indexed_dims) == 1 or max(math.prod(shape_of(indices[k])) for k in indexed_dims) > 1):
        return None
    elif len(indexed_dims) == 1:
        flat_x, dim, number = x, indexed_dims[0], as_int32(s, first) or first
    else:
        merged_dims = merge_indices(s, x, indices, from_end=True)
        if merged_dims is None:
            return None
        flat_x, dim, number = merged_dims
    places, rows = shape_of(number), shape_of(flat_x)
    if number is first and len(places) == 1 and shape_of(values) == (*rows[:dim], *places, *rows[dim + 1 :]):
        return None
    values = s(aten.expand.default, values, [*rows[:dim], *places, *rows[dim + 1 :]])
    values = s(aten.reshape.default, values, [*rows[:dim], math.prod(places), *rows[dim + 1 :]])
    flat = s.constant(attribute(s.model, number).flatten()) if constant else s(aten.reshape.default, number, [-1])
    put = s(aten.index_put.default, flat_x, [*[None] * dim, flat], values)
    return s(aten.reshape.default, put, list(shape))


@op(
    "aten.index_put.default",
    quant=OVERWRITTEN,
    needs="SCATTER",
    check=check_index_put,
    decompose=decompose_index_put,
    samples=[
        Sample(I8(2, 5, 3), [None, torch.tensor([4, 0])], I8(2, 2, 3, low=-1.0)),
        Sample(I8(5, 3), [torch.tensor([1])], I8(3)),
        Sample(I8(2, 5, 3), [None, Ints(1, low=-5, high=-1)], I8(2, 1, 3, low=-1.0)),
        Sample(I8(3, 9, 8), [None, Ints(1, low=0, high=8)], I8(3, 1, 8, low=-1.0)),
        Sample(I8(2, 3, 9, 16), [None, None, torch.tensor([7, 2], dtype=torch.int32)], I8(2, 3, 2, 16, low=-1.0)),
        Sample(I8(4, 5, 3), [Ints(1, low=-4, high=3), Ints(1, low=-5, high=4)], I8(3)),
        Sample(I8(4, 5), [Bools(4, 5)], I8(1)),
        Sample(Ints(9, 4), [torch.tensor([4, 0])], Ints(2, 4)),
        Sample(I8(5, 3), [Ints(8, low=-5, high=4)], I8(8, 3, low=-1.0), True),
        Sample(I8(4, 5, 3), [Ints(6, low=0, high=3), Ints(6, low=-5, high=4)], I8(3), True),
        Sample(I8(4, 5, 3), [torch.tensor([[3, -4], [1, 3]]), torch.tensor([4, 0])], I8(2, 3)),
        Sample(I8(4, 5, 3), [Ints(1, low=0, high=3), None, Ints(1, low=0, high=2)], I8(1, 5)),
        Sample(I8(4, 5, 3), [torch.tensor([2, 0]), None, torch.tensor([1, 1])], I8(5)),
        Sample(I8(4, 5, 3), [None, Ints(1, low=0, high=4)], I8(1, 3)),
        Sample(I8(4, 5, 3), [None, Bools(5)], I8(1)),
        Sample(I8(3, 4, 5), [None, torch.tensor([[True, False, False, True, True], [False] * 5] * 2)], I8(6)),
    ],
)
def index_put(b: Builder, x: QTensor, indices: Sequence[Any], values: QTensor, accumulate: bool = False, *, out: Result) -> QTensor:
    """Return x with ``values`` written to x[indices]. The lowering requires a single index.

    - A constant index uses slices and a CONCAT.
    - A single row, e.g. of a cache, at a computed index is lowered like ``where``, because Vela estimates one memory burst
      for each element of a SCATTER.
    - Several rows at computed indices use SCATTER. The indices must be distinct.
    """
    (dim,) = (k for k, index in enumerate(indices) if index is not None)
    numbers, shape = constant_numbers(indices[dim]), x.shape
    if numbers is not None and numbers.dtype == np.bool_ and numbers.ndim > 1:  # merge the dims of a mask
        x = b.view(x, (*shape[:dim], numbers.size, *shape[dim + numbers.ndim :]))
    places: list[int] = []
    if numbers is not None:
        places = [int(k) % x.shape[dim] for k in (np.flatnonzero(numbers) if numbers.dtype == np.bool_ else numbers.ravel())]
    index = count_from_end(b, indices[dim], x.shape[dim]) if numbers is None else indices[dim]
    count = index.shape[0] if numbers is None else len(places)
    values = b.view(values, (1,) * (x.rank - values.rank) + values.shape) if isinstance(values, QTensor) else values
    if numbers is None and count == 1 and not accumulate:
        return _with_row(b, x, dim, index, values, out.q)
    values = b.convert_operand(values, out)
    full = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    source = b.tile(values, [want // have for want, have in zip(full, values.shape, strict=True)])
    if numbers is None:
        return _scatter(b, b.convert_operand(x, out), dim, index, source)
    return b.view(overwrite_rows(b, b.convert_operand(x, out), dim, places, source), shape)
