"""How a logical tensor lies in a stored one: the algebra behind free permutes, views and NHWC.

A stored array has axes; a logical dimension is the product of some of them, outermost first. ``dims`` lists those axes
for each logical dimension, so for a [N, C, H, W] tensor stored as NHWC it is ``((0,), (3,), (1,), (2,))``. Every stored
axis of extent > 1 belongs to exactly one logical dimension; axes of extent 1 may be left out. A permute reorders
``dims``, a view splits and joins entries, and only ``arrangement`` says what moving the data would take.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

Dims = tuple[tuple[int, ...], ...]
Shape = tuple[int, ...]
#: How many axes a stored array may have: TOSA 1.0, level 8K, MAX_RANK, which Vela keeps to.
MAX_RANK = 6


def contiguous(shape: Sequence[int]) -> Dims:
    """dims of a tensor stored in its logical order: logical dimension i is stored axis i."""
    return tuple((axis,) for axis in range(len(shape)))


def refine(stored: Shape, dims: Dims, new_shape: Sequence[int]) -> tuple[Shape, Dims] | None:
    """View as ``new_shape`` without moving data: (finer stored shape, dims), or None where that takes a transpose.

    Stored axes may be split (a reshape of the stored array) but never reordered or joined across a gap, which is
    always possible when every factor boundary of the new shape falls on one of the old axes or splits one evenly.
    """
    if math.prod(stored) == 0 or math.prod(stored) != math.prod(new_shape):
        return None
    # Factors of the logical sequence, outermost first: [stored axis, extent].
    factors = [[axis, stored[axis]] for axes in dims for axis in axes if stored[axis] != 1]
    pieces: dict[int, list[int]] = {}  # stored axis -> extents of its pieces, outermost first
    plan: list[list[tuple[int, int]]] = []  # per new dimension: (stored axis, piece index)
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
    if all(len(sizes) == 1 for sizes in pieces.values()):  # nothing was split: the stored array serves as it is
        return tuple(stored), tuple(tuple(axis for axis, _ in members) for members in plan)
    new_stored: list[int] = []
    index: dict[tuple[int, int], int] = {}
    for axis in range(len(stored)):
        for piece, size in enumerate(pieces.get(axis, [])):
            index[axis, piece] = len(new_stored)
            new_stored.append(size)
    return tuple(new_stored), tuple(tuple(index[member] for member in members) for members in plan)


def coarsest(stored: Shape, dims: Dims) -> tuple[Shape, Dims]:
    """The same tensor with as few stored axes as say it: neighbours joined that are neighbours in a logical dimension too."""
    after = {one: other for axes in dims for one, other in itertools.pairwise(axes) if other == one + 1}
    starts = [axis for axis in range(len(stored)) if axis - 1 not in after]
    place = {axis: index for index, axis in enumerate(starts)}
    ends = [*starts[1:], len(stored)]
    shape = tuple(math.prod(stored[start:end]) for start, end in zip(starts, ends, strict=True))
    return shape, tuple(tuple(place[axis] for axis in axes if axis in place) for axes in dims)


def arrangement(stored: Shape, order: Sequence[int]) -> tuple[Shape, tuple[int, ...]] | None:
    """Bring the stored axes into ``order``: None if a reshape does it, else (shape to reshape to first, perm).

    Axes of extent 1 never count, and runs of axes that stay together are joined, so the permutation has as few axes
    as possible.
    """
    wanted = [axis for axis in order if stored[axis] != 1]
    present = [axis for axis in range(len(stored)) if stored[axis] != 1]
    if wanted == present:
        return None
    position = {axis: index for index, axis in enumerate(present)}
    runs: list[list[int]] = []
    for axis in wanted:
        if runs and position[runs[-1][-1]] + 1 == position[axis]:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    in_memory = sorted(runs, key=lambda run: position[run[0]])
    shape = tuple(math.prod(stored[axis] for axis in run) for run in in_memory)
    return shape, tuple(in_memory.index(run) for run in runs)


def around(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """(elements before ``axis``, its extent, elements behind it): the shape in three axes, the middle one ``axis``."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def joined_axes(shape: Shape, axes: Collection[int]) -> tuple[Shape, tuple[int, ...]]:
    """Neighbours among ``axes`` joined to one: (shape to reshape to, the places of the joined axes in it).

    Axes of extent 1 are no place: nothing needs to be done along them.
    """
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
    """Return the place in NHWC of an axis of a tensor of that rank."""
    return axis if rank not in (4, 5) or axis == 0 else axis - 1 if axis > 1 else rank - 1
