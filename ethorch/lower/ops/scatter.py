"""Writes at indices: index_put, index_copy.

Places known at compile time become slices and a CONCAT. Those from a tensor are a SCATTER, which only some NPUs have.
"""

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
from ethorch.lower.ops.accumulate import accumulated
from ethorch.lower.ops.compare import compared
from ethorch.lower.ops.indices import as_int32, constant_numbers, merged, one_number, operands_known, side_by_side
from ethorch.lower.ops.quant_rules import OVERWRITTEN
from ethorch.lower.ops.samples import I8, Bools, Ints, Sample
from ethorch.lower.ops.selection import either
from ethorch.lower.ops.slicing import overwritten
from ethorch.lower.ops.spec import op
from ethorch.support.errors import Reason

aten = torch.ops.aten

_SHORTEST_ROW = 8  #: elements of rows that are scattered as they lie


def _known_number(s: AtenBuilder, x: Node, indices: Sequence[Any]) -> tuple[Node, int, Node] | None:
    """As ``one_number``, of constants. A mask is the numbers of what is true in it. None where their dims are not side by side."""
    each: list[torch.Tensor | None] = []
    for one in indices:
        tensor = None if one is None else attribute(s.model, one)
        each += tensor.nonzero().unbind(1) if tensor is not None and tensor.dtype == torch.bool else [tensor]
    dims = side_by_side(each)
    if dims is None:
        return None
    number = torch.zeros((), dtype=torch.int64)
    for extent, tensor in zip(shape_of(x)[dims[0] :], each[dims[0] : dims[1] + 1], strict=False):
        assert tensor is not None
        number = number * extent + torch.remainder(tensor.to(torch.int64), extent)
    return merged(s, x, *dims), dims[0], s.constant(number)


def _with_row(b: Builder, x: QTensor, dim: int, index: QTensor, source: QTensor, q: QParams | None) -> QTensor:
    """x with source[..., 0, ...] as x[..., index[0], ...]: TOSA 1.0 SELECT by the numbers of the rows."""
    others = [1] * x.rank
    rows = np.arange(x.shape[dim], dtype=np.int32).reshape([*others[:dim], -1, *others[dim + 1 :]])
    return either(b, compared(b, "eq", b.view(index, others), rows), source, x, q)


def _scattered(b: Builder, x: QTensor, dim: int, index: QTensor, source: QTensor) -> QTensor:
    """x with source[..., k, ...] as x[..., index[k], ...]: TOSA 1.0 SCATTER along ``dim``, once for each place in front of it."""
    lead, tail = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 :])
    count = source.shape[dim]
    if tail < _SHORTEST_ROW:  # rows of the other dims are longer, at the cost of moving x
        others = [d for d in range(x.rank) if d != dim]
        rows = b.reshape(b.stored_as(x, [(dim,), tuple(others)]), (1, x.shape[dim], lead * tail))
        given = b.reshape(b.stored_as(source, [(dim,), tuple(others)]), (1, count, lead * tail))
        put = b.emit("SCATTER", rows, b.reshape(b.logical(index), (1, count)), given)
        return b.from_order(b.reshape(put, (x.shape[dim], *(x.shape[d] for d in others))), [dim, *others], x.q)
    rows, given = b.reshape(b.logical(x), (lead, x.shape[dim], tail)), b.reshape(b.logical(source), (lead, count, tail))
    places = b.reshape(b.logical(index), (1, count))
    if lead > 1:
        places = b.emit("TILE", places, multiples=(lead, 1))
    put = b.emit("SCATTER", rows, places, given)
    return b.from_order(b.reshape(put, x.shape), list(range(x.rank)), x.q)


def check_index_copy(x: Any, dim: int, index: Any, source: Any) -> Reason | None:
    """The index is a constant."""
    if constant_numbers(index) is None:
        return Reason(
            "index_copy.dynamic",
            "its index is computed at run time; a constant one is needed",
            "Compare a constant arange with the index, and choose with torch.where.",
        )
    return operands_known(index)


def decompose_index_copy(s: AtenBuilder, x: Node, dim: int, index: Node, source: Node) -> Any:
    """A computed index makes it an index_put; of several rows where there is SCATTER. An index of no places leaves x."""
    if not math.prod(shape_of(index)):
        return x
    if index.op == "get_attr" or (s.absent("SCATTER") and math.prod(shape_of(index)) != 1):
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
    """out = x with source[k] as x[index[k]] along ``dim``, exact: slices and a CONCAT. A computed index is an index_put."""
    dim %= x.rank
    numbers = constant_numbers(index)
    assert numbers is not None
    places = [int(k) % x.shape[dim] for k in numbers.ravel()]
    return overwritten(b, b.moved_operand(x, out), dim, places, b.moved_operand(source, out))


def check_index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Reason | None:
    """There is one index: a constant, or int32 of rank 1; its values are quantized, and do not accumulate."""
    given = [one for one in indices if one is not None]
    if accumulate:
        return Reason(
            "index_put.accumulate",
            "accumulate=True of a mask, of distant dims, of integers or of very many places",
            "Let EthosUQuantizer quantize what can be taken apart.",
        )
    if len(given) != 1 or not isinstance(given[0], (QTensor, np.ndarray)):
        return Reason(
            "index_put.index",
            f"{len(given)} indices; allowed are one, of int32, or several of dims side by side",
            "Let EthosUQuantizer quantize it, and index what is transposed.",
        )
    if constant_numbers(given[0]) is None and len(given[0].shape) != 1:
        text = f"a computed index of rank {len(given[0].shape)}; allowed is 1"
        return Reason("index_put.index", text, "Let EthosUQuantizer quantize it.")
    if isinstance(given[0], QTensor) and not given[0].value.is_const and given[0].value.dtype != "INT32":
        text = f"a computed index of {given[0].value.dtype}; allowed is INT32"
        return Reason("index_put.index", text, "Choose by torch.where, which takes a mask.")
    if not isinstance(values, QTensor) or not isinstance(x, QTensor):
        return Reason("index_put.operand", "its values are not quantized", "Quantize the module they are in.")
    return None


def decompose_index_put(s: AtenBuilder, x: Node, indices: Any, values: Node, accumulate: bool = False) -> Any:
    """What becomes of an index_put, the first that applies:

    - an index of no places: x;
    - values that accumulate: ``accumulated``;
    - indices of distant dims: x with those dims first;
    - one constant index of rank 1: it stays;
    - a mask and one value: a choice between x and that value;
    - constants, masks among them: one index of rank 1;
    - computed indices, and a target with SCATTER: one int32 index of rank 1;
    - a computed index of one row, and a target without: as int32, which the row is told by; so are several, as one.
    """
    given = [k for k, one in enumerate(indices) if one is not None]
    first, shape = indices[given[0]], shape_of(x)
    if not all(math.prod(shape_of(indices[k])) for k in given):
        return x
    if accumulate:
        return accumulated(s, x, indices, values)
    if given[-1] - given[0] >= len(given) and not any(indices[k].meta["val"].dtype == torch.bool for k in given):
        order = [*given, *(k for k in range(len(shape)) if k not in given)]  # the values have these dims first, as in PyTorch
        put = s(aten.index_put.default, s(aten.permute.default, x, order), [indices[k] for k in given], values)
        return s(aten.permute.default, put, [order.index(k) for k in range(len(shape))])
    constant = all(indices[k].op == "get_attr" for k in given)
    if constant and len(given) == 1 and len(shape_of(first)) == 1:
        return None
    if first.meta["val"].dtype == torch.bool and len(given) == 1 and math.prod(shape_of(values)) == 1:
        mask = [*[1] * given[0], *shape_of(first)]
        return s(aten.where.self, s(aten.reshape.default, first, [*mask, *[1] * (len(shape) - len(mask))]), values, x)
    if constant:
        known = _known_number(s, x, indices)
        if known is None:
            return None
        flat_x, dim, number = known
        if not math.prod(shape_of(number)):
            return x
    elif s.absent("SCATTER") and len(given) == 1 and first.meta["val"].dtype == torch.int64 and math.prod(shape_of(first)) == 1:
        return s(aten.index_put.default, x, [*indices[: given[0]], s(aten.to.dtype, first, torch.int32)], values)
    elif any(indices[k].meta["val"].dtype == torch.bool for k in given):  # noqa: SIM114
        return None
    elif s.absent("SCATTER") and (len(given) == 1 or max(math.prod(shape_of(indices[k])) for k in given) > 1):
        return None
    elif len(given) == 1:
        flat_x, dim, number = x, given[0], as_int32(s, first) or first
    else:
        merged_dims = one_number(s, x, indices)
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
        Sample(I8(2, 5, 3), [None, Ints(1, low=0, high=4)], I8(2, 1, 3, low=-1.0)),
        Sample(I8(3, 9, 8), [None, Ints(1, low=0, high=8)], I8(3, 1, 8, low=-1.0)),
        Sample(I8(2, 3, 9, 16), [None, None, torch.tensor([7, 2], dtype=torch.int32)], I8(2, 3, 2, 16, low=-1.0)),
        Sample(I8(4, 5, 3), [Ints(1, low=0, high=3), Ints(1, low=0, high=4)], I8(3)),
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
    """out = x with values as x[indices], exact. There is one index.

    - A constant: slices and a CONCAT.
    - Computed, of one row, as of a cache: TOSA 1.0 SELECT. Vela's estimate of a SCATTER has a burst for each element.
    - Computed, of several: SCATTER. It should name no place twice.
    - Values that accumulate: see ``accumulated``.
    """
    (dim,) = (k for k, one in enumerate(indices) if one is not None)
    numbers, shape = constant_numbers(indices[dim]), x.shape
    if numbers is not None and numbers.dtype == np.bool_ and numbers.ndim > 1:  # a mask of several dims: those dims are merged
        x = b.view(x, (*shape[:dim], numbers.size, *shape[dim + numbers.ndim :]))
    places: list[int] = []
    if numbers is not None:
        places = [int(k) % x.shape[dim] for k in (np.flatnonzero(numbers) if numbers.dtype == np.bool_ else numbers.ravel())]
    count = indices[dim].shape[0] if numbers is None else len(places)
    values = b.view(values, (1,) * (x.rank - values.rank) + values.shape) if isinstance(values, QTensor) else values
    if numbers is None and count == 1 and not accumulate:
        return _with_row(b, x, dim, indices[dim], values, out.q)
    values = b.moved_operand(values, out)
    full = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    source = b.tile(values, [want // have for want, have in zip(full, values.shape, strict=True)])
    if numbers is None:
        return _scattered(b, b.moved_operand(x, out), dim, indices[dim], source)
    return b.view(overwritten(b, b.moved_operand(x, out), dim, places, source), shape)
