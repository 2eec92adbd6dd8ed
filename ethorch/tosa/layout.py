"""Tensor layouts that represent NHWC storage, permutes and views without copying data.

``dims`` lists the memory axes of each logical dimension, e.g. ``((0,), (3,), (1,), (2,))`` for NCHW stored as NHWC.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

Dims = tuple[tuple[int, ...], ...]
Shape = tuple[int, ...]
#: Largest rank of a stored array: MAX_RANK of TOSA 1.0, level 8K, which Vela requires.
MAX_RANK = 6


def merge_axes(shape: Sequence[int]) -> Shape:
    """Merge the first axes of an array into one if it has more than ``MAX_RANK`` axes."""
    count = len(shape) - MAX_RANK + 1
    return tuple(shape) if count < 2 else (math.prod(shape[:count]), *shape[count:])


def contiguous(shape: Sequence[int]) -> Dims:
    """Return the memory axes of each dimension of a tensor stored in logical order."""
    return tuple((axis,) for axis in range(len(shape)))


def refine(stored: Shape, dims: Dims, new_shape: Sequence[int]) -> tuple[Shape, Dims] | None:
    """View a tensor as ``new_shape`` without moving data. Return the view's shape in memory and ``dims``, or None if impossible.

    A view can split axes in memory, but cannot reorder them or join nonadjacent axes.
    """
    if math.prod(stored) == 0 or math.prod(stored) != math.prod(new_shape):
        return None
    # Factors of the logical sequence, outermost first: [stored axis, extent].
    factors = [[axis, stored[axis]] for axes in dims for axis in axes if stored[axis] != 1]
    pieces: dict[int, list[int]] = {}  # stored axis -> extents into which it is split, outermost first
    plan: list[list[tuple[int, int]]] = []  # per new dimension: (stored axis, index into ``pieces``)
    position = 0
    for extent in new_shape:
        members: list[tuple[int, int]] = []
        left = extent
        while left > 1:
            axis, size = factors[position]
            if left % size == 0:
                take = size
                position += 1
            elif size % left == 0:
                take = left
                factors[position][1] = size // left
            else:
                return None
            pieces.setdefault(axis, []).append(take)
            members.append((axis, len(pieces[axis]) - 1))
            left //= take
        plan.append(members)
    if all(len(sizes) == 1 for sizes in pieces.values()):  # no axis was split
        return tuple(stored), tuple(tuple(axis for axis, _ in members) for members in plan)
    new_stored: list[int] = []
    index: dict[tuple[int, int], int] = {}
    for axis in range(len(stored)):
        for piece, size in enumerate(pieces.get(axis, [])):
            index[axis, piece] = len(new_stored)
            new_stored.append(size)
    return tuple(new_stored), tuple(tuple(index[member] for member in members) for members in plan)


def coarsest(stored: Shape, dims: Dims) -> tuple[Shape, Dims]:
    """Join axes adjacent both in memory and in a logical dimension."""
    after = {axis: following for axes in dims for axis, following in itertools.pairwise(axes) if following == axis + 1}
    starts = [axis for axis in range(len(stored)) if axis - 1 not in after]
    place = {axis: index for index, axis in enumerate(starts)}
    ends = [*starts[1:], len(stored)]
    shape = tuple(math.prod(stored[start:end]) for start, end in zip(starts, ends, strict=True))
    return shape, tuple(tuple(place[axis] for axis in axes if axis in place) for axes in dims)


def arrangement(stored: Shape, order: Sequence[int]) -> tuple[Shape, tuple[int, ...]] | None:
    """Return the RESHAPE shape and TRANSPOSE perms that reorder axes to ``order``, or None if a RESHAPE is sufficient.

    Axes of extent 1 are omitted, and axes that remain adjacent are joined.
    """
    target_order = [axis for axis in order if stored[axis] != 1]
    present = [axis for axis in range(len(stored)) if stored[axis] != 1]
    if target_order == present:
        return None
    position = {axis: index for index, axis in enumerate(present)}
    runs: list[list[int]] = []
    for axis in target_order:
        if runs and position[runs[-1][-1]] + 1 == position[axis]:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    in_memory = sorted(runs, key=lambda run: position[run[0]])
    shape = tuple(math.prod(stored[axis] for axis in run) for run in in_memory)
    return shape, tuple(in_memory.index(run) for run in runs)


def around(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Return the product of the extents before ``axis``, the extent of ``axis``, and the product of the extents after it."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def join_axes(shape: Shape, axes: Collection[int]) -> tuple[Shape, tuple[int, ...]]:
    """Join adjacent ``axes``, ignoring those of size 1. Return the new shape and the new positions of the others."""
    counted = {axis for axis in axes if shape[axis] > 1}
    runs: list[list[int]] = []
    for axis in range(len(shape)):
        if axis in counted and axis - 1 in counted:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    joined = tuple(math.prod(shape[axis] for axis in run) for run in runs)
    return joined, tuple(place for place, run in enumerate(runs) if run[0] in counted)


def nhwc_axis(axis: int, rank: int) -> int:
    """Return the channels-last position of an axis. It differs from ``axis`` only for ranks 4 and 5."""
    return axis if rank not in (4, 5) or axis == 0 else axis - 1 if axis > 1 else rank - 1
