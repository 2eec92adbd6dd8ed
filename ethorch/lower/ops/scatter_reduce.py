"""Reductions at indices, for scatter_add and scatter_reduce."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import attribute
from ethorch.lower.ops.accumulate import add_at_index
from ethorch.lower.ops.samples import I8, Ints, Sample
from ethorch.lower.ops.spec import composite

aten = torch.ops.aten

#: Maximum number of elements that are selected for extremes.
_LARGEST = 1 << 20

_ROWS = torch.tensor([3, 0, 0, 2, 3, 3])


def _as_rows(s: AtenBuilder, x: Node, dim: int, index: Node, source: Node) -> tuple[Node, int, Node, Node]:
    # Returns x (flattened if necessary), the indexed dim, the index int[n], and the n rows of ``source``.
    # An index of complete rows becomes an index of row numbers. For any other index, x is flattened.
    shape, places = shape_of(x), shape_of(index)
    for axis, (extent, available) in enumerate(zip(places, shape_of(source), strict=True)):
        if extent < available:
            source = s(aten.slice.Tensor, source, axis, 0, extent)
    others = [axis for axis in range(len(shape)) if axis != dim]
    constant = attribute(s.model, index) if index.op == "get_attr" else None
    if constant is not None and all(places[axis] == shape[axis] for axis in others):
        rows = constant
        for axis in others:
            rows = rows.narrow(axis, 0, 1)
        if torch.equal(rows.expand(places), constant):
            return x, dim, s.constant(rows.flatten()), source
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    offsets = torch.zeros(places, dtype=torch.int32)
    for axis in others:
        steps = torch.arange(places[axis], dtype=torch.int32) * strides[axis]
        offsets = offsets + steps.reshape([-1 if each == axis else 1 for each in range(len(shape))])
    if constant is not None:
        number = s.constant((constant * strides[dim] + offsets).flatten())
    else:
        narrow = index if index.meta["val"].dtype == torch.int32 else s(aten.to.dtype, index, torch.int32)
        scaled = narrow if strides[dim] == 1 else s(aten.mul.Scalar, narrow, strides[dim])
        number = s(aten.reshape.default, s(aten.add.Tensor, scaled, s.constant(offsets)) if others else scaled, [-1])
    return s(aten.reshape.default, x, [-1]), 0, number, s(aten.reshape.default, source, [-1])


@composite(
    "aten.scatter_add.default",
    samples=[
        Sample(I8(4, 5), 0, _ROWS[:, None].expand(6, 5).clone(), I8(6, 5)),
        Sample(I8(2, 4, 3), 1, torch.tensor([[[0, 3, 1], [0, 2, 1]]]), I8(2, 3, 3)),
        Sample(I8(3, 6), -1, Ints(3, 4, low=0, high=5), I8(3, 4)),
    ],
    bound16=3,
)
def scatter_add(s: AtenBuilder, x: Node, dim: int, index: Node, source: Node) -> Any:
    """Add source[i, j] to x[index[i, j], j] for dim 0. Repeated indices accumulate."""
    return _sum_at_index(s, x, dim % max(1, len(shape_of(x))), index, source)


def _sum_at_index(s: AtenBuilder, x: Node, dim: int, index: Node, source: Node) -> Node | None:
    shape = shape_of(x)
    if not shape or not math.prod(shape_of(index)):
        return x if shape else None
    flat, axis, number, rows = _as_rows(s, x, dim, index, source)
    added = add_at_index(s, flat, axis, number, rows)
    return added if added is None or shape_of(added) == shape else s(aten.reshape.default, added, list(shape))


@composite(
    "aten.scatter_reduce.two",
    samples=[
        Sample(I8(4, 5), 0, _ROWS[:, None].expand(6, 5).clone(), I8(6, 5), "amax"),
        Sample(I8(4, 5), 0, _ROWS[:, None].expand(6, 5).clone(), I8(6, 5), "amin", include_self=False),
        Sample(I8(2, 4, 3), 1, torch.tensor([[[0, 3, 1], [0, 2, 1]]]), I8(2, 3, 3), "amax"),
        Sample(I8(4, 5), 0, _ROWS[:, None].expand(6, 5).clone(), I8(6, 5), "mean"),
        Sample(I8(4, 5), 0, _ROWS[:, None].expand(6, 5).clone(), I8(6, 5), "mean", include_self=False),
        Sample(I8(4, 5), 0, _ROWS[:, None].expand(6, 5).clone(), I8(6, 5), "sum", include_self=False),
        Sample(I8(3, 6), -1, Ints(3, 4, low=0, high=5), I8(3, 4), "sum"),
        Sample(I8(4), 0, Ints(9, low=0, high=3), I8(9), "amax"),
        Sample(I8(3, 6), -1, Ints(3, 4, low=0, high=5), I8(3, 4), "amin"),
    ],
    bound16=4,
)
def scatter_reduce(s: AtenBuilder, x: Node, dim: int, index: Node, source: Node, reduce: str, *, include_self: bool = True) -> Any:
    """Return x with the sum, mean, amax or amin of ``source`` (and x if ``include_self``) at each position in ``index``.

    With a computed index, only sums, amax and amin with ``include_self`` are decomposed.
    """
    shape = shape_of(x)
    dim %= max(1, len(shape))
    if reduce == "sum" and include_self:
        return _sum_at_index(s, x, dim, index, source)
    constant = attribute(s.model, index) if index.op == "get_attr" else None
    needs_constant = reduce == "mean" or not include_self
    if (constant is None and needs_constant) or not shape or reduce == "prod" or not x.meta["val"].dtype.is_floating_point:
        return None
    if not math.prod(shape_of(index)):
        return x
    flat, axis, number, rows = _as_rows(s, x, dim, index, source)
    places = attribute(s.model, number) if number.op == "get_attr" else None
    if places is None:
        reduced = _computed_extremes(s, flat, number, rows, reduce)
    elif reduce in ("amax", "amin"):
        reduced = _extremes(s, flat, axis, places, rows, reduce, include_self)
    else:
        reduced = _sums(s, flat, axis, places, rows, reduce, include_self)
    return reduced if reduced is None or shape_of(reduced) == shape else s(aten.reshape.default, reduced, list(shape))


def _sums(s: AtenBuilder, x: Node, dim: int, places: torch.Tensor, rows: Node, reduce: str, include_self: bool) -> Node | None:
    shape = shape_of(x)
    along = [-1 if axis == dim else 1 for axis in range(len(shape))]
    counts = torch.bincount(places, minlength=shape[dim]).to(torch.float32).reshape(along)
    if not include_self:
        x = s(aten.mul.Tensor, x, s.constant((counts == 0).to(torch.float32)))
    total = add_at_index(s, x, dim, s.constant(places), rows)
    if total is None or reduce == "sum":
        return total
    return s(aten.mul.Tensor, total, s.constant(1 / (counts + 1 if include_self else counts.clamp(min=1))))


def _extremes(s: AtenBuilder, x: Node, dim: int, places: torch.Tensor, rows: Node, reduce: str, include_self: bool) -> Node | None:
    shape = shape_of(x)
    counts = torch.bincount(places, minlength=shape[dim])
    named = counts.nonzero().flatten()
    most = int(counts.max())
    if len(named) * most * math.prod(shape) // shape[dim] > _LARGEST:
        return None
    order = torch.argsort(places, stable=True)
    starts = (counts.cumsum(0) - counts)[named]
    turns = torch.arange(most) % counts[named][:, None]
    selected = s(aten.index_select.default, rows, dim, s.constant(order[starts[:, None] + turns].flatten()))
    apart = s(aten.reshape.default, selected, [*shape[:dim], len(named), most, *shape[dim + 1 :]])
    extreme = s(aten.amax.default if reduce == "amax" else aten.amin.default, apart, [dim + 1])
    everywhere = len(named) == shape[dim]
    if include_self:
        current = x if everywhere else s(aten.index_select.default, x, dim, s.constant(named))
        extreme = s(aten.maximum.default if reduce == "amax" else aten.minimum.default, current, extreme)
    return extreme if everywhere else s(aten.index_copy.default, x, dim, s.constant(named), extreme)


def _computed_extremes(s: AtenBuilder, x: Node, number: Node, rows: Node, reduce: str) -> Node | None:
    # For x of rank 1. Each element of x replaces the rows that have another index, so that they do not change the extreme.
    (extent,), (count,) = shape_of(x), shape_of(number)
    if extent * count > _LARGEST:
        return None
    matches = s(aten.eq.Tensor, number, s.constant(torch.arange(extent, dtype=torch.int32).reshape(extent, 1)))
    candidates = s(aten.where.self, matches, rows, s(aten.reshape.default, x, [extent, 1]))
    extreme = s(aten.amax.default if reduce == "amax" else aten.amin.default, candidates, [1])
    return s(aten.maximum.default if reduce == "amax" else aten.minimum.default, x, extreme)
