"""Helpers for lowerings that read or write at indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor
from ethorch.lower.fx.aten_builder import MADE_FOR, AtenBuilder, shape_of
from ethorch.lower.fx.node import attribute
from ethorch.lower.ops.spec import find
from ethorch.support.errors import Reason

aten = torch.ops.aten

#: Maximum number of runs in a constant index, because Vela's compile time is quadratic in the number of slices.
MOST_PIECES = 1024


def runs(index: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first, length) of each run of consecutive numbers in ``index``."""
    stretches: list[tuple[int, int]] = []
    for value in index:
        if stretches and value == sum(stretches[-1]):
            stretches[-1] = (stretches[-1][0], stretches[-1][1] + 1)
        else:
            stretches.append((value, 1))
    return stretches


def evenly_spaced(places: Sequence[int]) -> tuple[int, int] | None:
    """Return (first, step) of positions with a constant step of at least 2, or None."""
    step = places[1] - places[0] if len(places) > 1 else 0
    return (places[0], step) if step > 1 and list(places) == list(range(places[0], places[-1] + 1, step)) else None


def slice_strided(b: Builder, x: QTensor, dim: int, start: int | None, end: int | None, step: int) -> QTensor:
    """Return x[start:end:step] along ``dim``.

    A step above 1 splits the axis into groups, and a SLICE reads the first element of each.
    """
    value, axis, dims = b.axis_of(x, dim)
    extent = value.shape[axis]
    first, last, step = slice(start, end, step).indices(extent)
    count = len(range(first, last, step))
    size = count if step == 1 else min(count * step, extent - first)
    return b.every(QTensor(b.slice_axis(value, axis, first, size), dims, x.q), dim, step)


def constant_numbers(index: Any) -> npt.NDArray[Any] | None:
    """Return an index as an array, or None if it is not constant."""
    if isinstance(index, np.ndarray):
        return index
    data = index.value.data if isinstance(index, QTensor) else None
    return None if data is None else data.reshape(index.shape)


def check_operands(*indices: Any) -> Reason | None:
    for index in indices:
        if not isinstance(index, (QTensor, np.ndarray)):
            return Reason(
                "index.operand",
                "expected an int32 tensor or a constant as index, got a computed index of another dtype",
                "Convert the index to int32 in the model.",
            )
    return None


def count_from_end(b: Builder, index: QTensor, extent: int) -> QTensor:
    """Add ``extent`` to the negative elements of a computed index, which PyTorch counts from the end."""
    zero, least, size = (b.const_like(index.value, number) for number in (0, -1, extent))
    sign = b.emit("MAXIMUM", b.emit("MINIMUM", index.value, zero), least)
    return QTensor(b.emit("SUB", index.value, b.emit("MUL", sign, size, shift=0)), index.dims, index.q)


def draw_count_from_end(s: AtenBuilder, index: Node, extent: int) -> Node:
    """Add ``extent`` to negative elements of an index."""
    if (constant := attribute(s.model, index)) is not None:
        return s.constant(torch.remainder(constant, extent))
    return s(aten.sub.Tensor, index, s(aten.mul.Scalar, s(aten.clamp.default, index, -1, 0), extent))


def is_count_from_end(node: Node) -> bool:
    """Return True for the result of ``draw_count_from_end``."""
    product = node.args[1] if node.target is aten.sub.Tensor else None
    sign = product.args[0] if isinstance(product, Node) and product.target is aten.mul.Scalar else None
    return isinstance(sign, Node) and sign.target is aten.clamp.default and sign.args == (node.args[0], -1, 0)


def as_int32(s: AtenBuilder, index: Any) -> Node | None:
    """Cast a computed int64 index to int32. Return None for other indices, or without GATHER."""
    # Without GATHER, the operator runs on the CPU, whose kernels require int64.
    is_constant = not isinstance(index, Node) or index.op == "get_attr"
    if is_constant or index.meta["val"].dtype != torch.int64 or s.absent("GATHER"):
        return None
    return s(aten.to.dtype, index, torch.int32)


def index_as_int32(s: AtenBuilder, x: Node) -> Node | None:
    """Return the int32 cast of ``x`` inserted for a GATHER or SCATTER, or None."""
    while x.target is aten.to.dtype and x.meta["val"].dtype == x.args[0].meta["val"].dtype:  # type: ignore[union-attr]
        x = x.args[0]  # type: ignore[assignment]
    for user in x.users:
        made_for = find(user.meta.get(MADE_FOR, (None, None))[1])
        cast = user.target in (aten.to.dtype, aten._to_copy.default) and user.meta["val"].dtype == torch.int32
        if cast and made_for is not None and made_for.needs:
            return user
    return None


def side_by_side(indices: Sequence[Any]) -> tuple[int, int] | None:
    """Return the first and last indexed dim, or None if they enclose another dim."""
    indexed_dims = [k for k, index in enumerate(indices) if index is not None]
    return (indexed_dims[0], indexed_dims[-1]) if indexed_dims == list(range(indexed_dims[0], indexed_dims[-1] + 1)) else None


def merge_dims(s: AtenBuilder, x: Node, first: int, last: int) -> Node:
    shape = shape_of(x)
    return s(aten.reshape.default, x, [*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]])


def flatten_indices(s: AtenBuilder, extents: Sequence[int], indices: Sequence[Node], from_end: bool = False) -> Node:
    """Return row-major positions in dims of sizes ``extents``. If ``from_end`` is set, they may count from the end."""
    number: Node | None = None
    for extent, index in zip(extents, indices, strict=True):
        # If the first index is negative, so is the sum, which then counts from the end of the merged dims.
        position = index if from_end and number is None else draw_count_from_end(s, index, extent)
        number = position if number is None else s(aten.add.Tensor, s(aten.mul.Scalar, number, extent), position)
    assert number is not None
    return number


def merge_indices(s: AtenBuilder, x: Node, indices: Sequence[Any], from_end: bool = False) -> tuple[Node, int, Node] | None:
    """Merge integer indices of several adjacent dims, and return (merged x, merged dim, index).

    Return None if all indices are constant or cannot be merged. See ``flatten_indices``.
    """
    dims = side_by_side(indices)
    if dims is None or dims[0] == dims[1]:
        return None
    merged_indices = indices[dims[0] : dims[1] + 1]
    if all(index.op == "get_attr" for index in merged_indices) or any(
        index.meta["val"].dtype not in (torch.int32, torch.int64) for index in merged_indices
    ):
        return None
    narrow = [as_int32(s, index) or index for index in merged_indices]
    return merge_dims(s, x, *dims), dims[0], flatten_indices(s, shape_of(x)[dims[0] : dims[1] + 1], narrow, from_end)
