"""What reading and writing at indices share: indices as numbers, and several indices as one."""

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
from ethorch.lower.ops.spec import find
from ethorch.support.errors import Reason

aten = torch.ops.aten

#: Most runs of a constant index. One of more would need so many slices that a GATHER of it is better: Vela's time for them grows
#: with the square of their number.
MOST_PIECES = 1024


def runs(index: Sequence[int]) -> list[tuple[int, int]]:
    """(first, length) of each stretch of ``index`` that counts up by one."""
    found: list[tuple[int, int]] = []
    for value in index:
        if found and value == sum(found[-1]):
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((value, 1))
    return found


def evenly_spaced(places: Sequence[int]) -> tuple[int, int] | None:
    """Return (first, step) of places that count up by one step of at least 2; None for all others."""
    step = places[1] - places[0] if len(places) > 1 else 0
    return (places[0], step) if step > 1 and list(places) == list(range(places[0], places[-1] + 1, step)) else None


def strided(b: Builder, x: QTensor, dim: int, start: int | None, end: int | None, step: int) -> QTensor:
    """x[start:end:step] along ``dim``, bounds as Python's. TOSA 1.0 SLICE; a step is a SLICE of the axis folded by it."""
    value, axis, dims = b.axis_of(x, dim)
    extent = value.shape[axis]
    first, last, step = slice(start, end, step).indices(extent)
    count = len(range(first, last, step))
    whole = count if step == 1 else min(count * step, extent - first)
    return b.every(QTensor(b.sliced(value, axis, first, whole), dims, x.q), dim, step)


def constant_numbers(index: Any) -> npt.NDArray[Any] | None:
    """A constant index as an array; None for one that is computed."""
    if isinstance(index, np.ndarray):
        return index
    data = index.value.data if isinstance(index, QTensor) else None
    return None if data is None else data.reshape(index.shape)


def operands_known(*indices: Any) -> Reason | None:
    """Each index is an int32 tensor or a constant."""
    for index in indices:
        if not isinstance(index, (QTensor, np.ndarray)):
            return Reason(
                "index.operand",
                f"an index is {type(index).__name__}; allowed are int32 tensors and constants",
                "Convert the index to int32 in the model.",
            )
    return None


def as_int32(s: AtenBuilder, index: Any) -> Node | None:
    """A computed int64 index as int32, None where it is no such index. The CPU converts it where it is an input of the program.

    Where the NPU has no GATHER it stays int64, which is what the kernels of the CPU take.
    """
    known = not isinstance(index, Node) or index.op == "get_attr"
    if known or index.meta["val"].dtype != torch.int64 or s.absent("GATHER"):
        return None
    return s(aten.to.dtype, index, torch.int32)


def index_as_int32(s: AtenBuilder, x: Node) -> Node | None:
    """The int32 form of an int64 tensor that has one already: what is read as an index somewhere fits int32."""
    while x.target is aten.to.dtype and x.meta["val"].dtype == x.args[0].meta["val"].dtype:  # type: ignore[union-attr]
        x = x.args[0]  # type: ignore[assignment]
    for user in x.users:
        made_for = find(user.meta.get(MADE_FOR, (None, None))[1])
        cast = user.target in (aten.to.dtype, aten._to_copy.default) and user.meta["val"].dtype == torch.int32
        if cast and made_for is not None and made_for.needs:
            return user
    return None


def side_by_side(indices: Sequence[Any]) -> tuple[int, int] | None:
    """(first, last) dim that an index is given for, if one is given for each dim in between; else None."""
    given = [k for k, one in enumerate(indices) if one is not None]
    return (given[0], given[-1]) if given == list(range(given[0], given[-1] + 1)) else None


def merged(s: AtenBuilder, x: Node, first: int, last: int) -> Node:
    """x with its dims ``first`` to ``last`` as one."""
    shape = shape_of(x)
    return s(aten.reshape.default, x, [*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]])


def one_number(s: AtenBuilder, x: Node, indices: Sequence[Any]) -> tuple[Node, int, Node] | None:
    """(x with the indexed dims merged, that dim, one index into it) of several computed indices of dims side by side; or None."""
    dims = side_by_side(indices)
    if dims is None or dims[0] == dims[1]:
        return None
    given = indices[dims[0] : dims[1] + 1]
    if all(one.op == "get_attr" for one in given) or any(one.meta["val"].dtype not in (torch.int32, torch.int64) for one in given):
        return None
    number: Node | None = None
    for extent, index in zip(shape_of(x)[dims[0] :], given, strict=False):
        one = as_int32(s, index) or index
        number = one if number is None else s(aten.add.Tensor, s(aten.mul.Scalar, number, extent), one)
    assert number is not None
    return merged(s, x, *dims), dims[0], number
