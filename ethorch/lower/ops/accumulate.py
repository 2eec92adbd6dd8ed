"""Accumulation at indices, computed as a product with a matrix of ones and zeros."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.indices import flatten_indices, merge_dims, side_by_side
from ethorch.lower.ops.samples import I8, Ints, Sample
from ethorch.lower.ops.spec import composite

aten = torch.ops.aten

#: Maximum number of elements of the matrix of ones and zeros. The CPU is faster for larger matrices.
_LARGEST = 1 << 20


def add_at_index(s: AtenBuilder, x: Node, dim: int, index: Node, values: Node) -> Node | None:
    """Add values[..., k, ...] to x[..., index[k], ...] along ``dim``.

    Return None if x is not float, or if the required matrix of ones and zeros exceeds ``_LARGEST`` elements.
    """
    rows, places = shape_of(x), shape_of(index)
    count, extent = math.prod(places), rows[dim]
    if not count:
        return x
    if count * extent > _LARGEST or not x.meta["val"].dtype.is_floating_point:
        return None
    number = _int32(s, s(aten.reshape.default, index, [1, count]))
    matches = s(aten.eq.Tensor, number, s.constant(torch.arange(extent, dtype=torch.int32).reshape(extent, 1)))
    ones = s(aten.unsqueeze.default, s(aten.to.dtype, matches, torch.float32), 0)
    values = s(aten.expand.default, values, [*rows[:dim], *places, *rows[dim + 1 :]])
    values = s(aten.reshape.default, values, [*rows[:dim], count, *rows[dim + 1 :]])
    others = [d for d in range(len(rows)) if d != dim]
    inner = math.prod(rows[d] for d in others)
    first = s(aten.reshape.default, s(aten.permute.default, values, [dim, *others]), [1, count, inner])
    total = s(aten.reshape.default, s(aten.bmm.default, ones, first), [extent, *(rows[d] for d in others)])
    back = [*range(1, dim + 1), 0, *range(dim + 1, len(rows))]
    return s(aten.add.Tensor, x, s(aten.permute.default, total, back))


def _int32(s: AtenBuilder, x: Node) -> Node:
    return x if x.meta["val"].dtype == torch.int32 else s(aten.to.dtype, x, torch.int32)


@composite(
    "aten.index_add.default",
    samples=[
        Sample(I8(2, 9, 3), 1, Ints(12, low=0, high=8), I8(2, 12, 3)),
        Sample(I8(5, 4), -2, torch.tensor([4, 0, 4]), I8(3, 4)),
        Sample(I8(6), 0, Ints(4, low=0, high=5), I8(4), alpha=2),
    ],
    bound16=3,
)
def index_add(s: AtenBuilder, x: Node, dim: int, index: Node, source: Node, *, alpha: float = 1) -> Any:
    """Add alpha * source[k] to x[index[k]] along ``dim``. Repeated indices accumulate."""
    source = source if alpha == 1 else s(aten.mul.Scalar, source, alpha)
    return add_at_index(s, x, dim % len(shape_of(x)), index, source)


def accumulate_at_indices(s: AtenBuilder, x: Node, indices: Sequence[Any], values: Node) -> Node | None:
    """Decompose an index_put with accumulate=True.

    Return None if an index is not an integer tensor, if the indexed dims are not adjacent, or if ``add_at_index`` returns None.
    """
    dims = side_by_side(indices)
    computed_indices = [index for index in indices if index is not None]
    if dims is None or any(index.meta["val"].dtype not in (torch.int32, torch.int64) for index in computed_indices):
        return None
    shape = shape_of(x)
    number = flatten_indices(s, shape[dims[0] : dims[1] + 1], [_int32(s, index) for index in computed_indices])
    added = add_at_index(s, merge_dims(s, x, *dims), dims[0], number, values)
    return None if added is None else s(aten.reshape.default, added, list(shape))
