"""Sums by place: index_add, and index_put that accumulates. A place may be named many times, which no SCATTER takes.
What is added is a product: the matrix that has a 1 where a number names a place, times the values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ethorch.ops.spec import I8, Ints, Sample, composite
from ethorch.sketch import Sketch, shape_of

aten = torch.ops.aten

#: Elements of the matrix of ones; beyond, the CPU is the better place.
_LARGEST = 1 << 20


def added_at(s: Sketch, x: Node, dim: int, index: Node, values: Node) -> Node | None:
    """x plus values[..., k, ...] at x[..., index[k], ...], ``index`` of any rank in place of ``dim``; None if it is too much."""
    rows, places = shape_of(x), shape_of(index)
    count, extent = math.prod(places), rows[dim]
    if count * extent > _LARGEST or not x.meta["val"].dtype.is_floating_point:
        return None
    number = s(aten.reshape.default, index, [1, count])
    number = _int32(s, number)
    named = s(aten.eq.Tensor, number, s.constant(torch.arange(extent, dtype=torch.int32).reshape(extent, 1)))
    ones = s(aten.unsqueeze.default, s(aten.to.dtype, named, torch.float32), 0)
    values = s(aten.expand.default, values, [*rows[:dim], *places, *rows[dim + 1 :]])
    values = s(aten.reshape.default, values, [*rows[:dim], count, *rows[dim + 1 :]])
    others = [d for d in range(len(rows)) if d != dim]
    inner = math.prod(rows[d] for d in others)
    first = s(aten.reshape.default, s(aten.permute.default, values, [dim, *others]), [1, count, inner])
    total = s(aten.reshape.default, s(aten.bmm.default, ones, first), [extent, *(rows[d] for d in others)])
    back = [*range(1, dim + 1), 0, *range(dim + 1, len(rows))]
    return s(aten.add.Tensor, x, s(aten.permute.default, total, back))


def _int32(s: Sketch, x: Node) -> Node:
    return x if x.meta["val"].dtype == torch.int32 else s(aten.to.dtype, x, torch.int32)


@composite(
    "aten.index_add.default",
    samples=[
        Sample(I8(2, 9, 3), 1, Ints(12, low=0, high=8), I8(2, 12, 3)), Sample(I8(5, 4), -2, torch.tensor([4, 0, 4]), I8(3, 4)),
        Sample(I8(6), 0, Ints(4, low=0, high=5), I8(4), alpha=2),
    ],
    bound16=3,
)  # fmt: skip
def index_add(s: Sketch, x: Node, dim: int, index: Node, source: Node, *, alpha: float = 1) -> Any:
    """out = x with alpha * source[k] added to x[index[k]] along ``dim``, as often as a place is named."""
    source = source if alpha == 1 else s(aten.mul.Scalar, source, alpha)
    return added_at(s, x, dim % len(shape_of(x)), index, source)


def accumulated(s: Sketch, x: Node, indices: Sequence[Any], values: Node) -> Node | None:
    """index_put(x, indices, values, accumulate=True) of neighbouring dims, all indices numbers; None of any other."""
    given = [k for k, one in enumerate(indices) if one is not None]
    first, last = given[0], given[-1]
    numbers = [indices[k] for k in given]
    if given != list(range(first, last + 1)) or any(one.meta["val"].dtype not in (torch.int32, torch.int64) for one in numbers):
        return None
    shape = shape_of(x)
    number: Any = None
    for k, one in zip(given, numbers, strict=True):
        one = _int32(s, one)
        one = s(aten.where.self, s(aten.lt.Scalar, one, 0), s(aten.add.Tensor, one, shape[k]), one)  # from the end
        number = one if number is None else s(aten.add.Tensor, s(aten.mul.Scalar, number, shape[k]), one)
    merged = s(aten.reshape.default, x, [*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]])
    added = added_at(s, merged, first, number, values)
    return None if added is None else s(aten.reshape.default, added, list(shape))
