"""The layout algebra against NumPy: whatever is stored, the logical tensor is what PyTorch would show."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ethorch.tosa.layout import arrangement, coarsest, contiguous, join_axes, refine

pytestmark = pytest.mark.core

EXTENTS = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=5)


def logical(stored: np.ndarray, dims: tuple[tuple[int, ...], ...]) -> np.ndarray:
    """The logical tensor of a stored array, by definition of ``dims``."""
    order = [axis for axes in dims for axis in axes]
    rest = [axis for axis in range(stored.ndim) if axis not in order]
    assert all(stored.shape[axis] == 1 for axis in rest)
    shape = [math.prod(stored.shape[axis] for axis in axes) for axes in dims]
    return stored.transpose(*order, *rest).reshape(shape)


@given(EXTENTS, st.randoms(use_true_random=False), st.data())
def test_refine_is_a_view(extents: list[int], random, data) -> None:
    order = list(range(len(extents)))
    random.shuffle(order)
    stored = np.arange(math.prod(extents)).reshape([extents[dim] for dim in order])
    dims = tuple((order.index(dim),) for dim in range(len(extents)))
    tensor = logical(stored, dims)
    assert tensor.shape == tuple(extents)
    factors = [f for e in extents for f in _factors(e)]
    new_shape = data.draw(_joined(factors))
    refined = refine(stored.shape, dims, new_shape)
    assert refined is not None, "a shape that only joins and splits whole factors needs no move"
    shape, new_dims = refined
    np.testing.assert_array_equal(logical(stored.reshape(shape), new_dims), tensor.reshape(new_shape))
    fewer, joined = coarsest(shape, new_dims)
    assert len(fewer) <= len(shape)
    np.testing.assert_array_equal(logical(stored.reshape(fewer), joined), tensor.reshape(new_shape))


def _factors(extent: int) -> list[int]:
    return {1: [], 2: [2], 3: [3], 4: [2, 2], 6: [2, 3]}[extent]


@st.composite
def _joined(draw, factors: list[int]) -> list[int]:
    shape, left = [], list(factors)
    while left:
        count = draw(st.integers(1, len(left)))
        shape.append(math.prod(left[:count]))
        left = left[count:]
        if draw(st.booleans()):
            shape.append(1)
    return shape or [1]


def test_coarsest_joins_what_lies_side_by_side() -> None:
    assert coarsest((2, 3, 4, 5), ((0, 1), (3,), (2,))) == ((6, 4, 5), ((0,), (2,), (1,)))
    assert coarsest((2, 3, 1, 4), ((0, 1), (3,))) == ((6, 1, 4), ((0,), (2,)))  # axis 2 is left out, and stays
    assert coarsest((2, 3), ((1, 0),)) == ((2, 3), ((1, 0),))


@given(EXTENTS, st.randoms(use_true_random=False))
def test_arrangement_is_a_transpose(extents: list[int], random) -> None:
    order = list(range(len(extents)))
    random.shuffle(order)
    stored = np.arange(math.prod(extents)).reshape(extents)
    wanted = stored.transpose(order)
    move = arrangement(stored.shape, order)
    if move is None:
        np.testing.assert_array_equal(stored.ravel(), wanted.ravel())
    else:
        shape, perm = move
        assert len(perm) >= 2
        np.testing.assert_array_equal(stored.reshape(shape).transpose(perm).ravel(), wanted.ravel())


def test_a_view_across_permuted_axes_needs_a_move() -> None:
    assert refine((2, 3), ((1,), (0,)), (2, 3)) is None
    assert refine((2, 3), contiguous((2, 3)), (3, 2)) is None


@given(EXTENTS, st.data())
def test_join_axes_reduce_the_same_elements(extents: list[int], data) -> None:
    axes = data.draw(st.sets(st.sampled_from(range(len(extents)))))
    tensor = np.random.default_rng(0).integers(-50, 50, extents)
    shape, places = join_axes(tuple(extents), axes)
    joined = tensor.reshape(shape).sum(places, keepdims=True)
    assert np.array_equal(joined.ravel(), tensor.sum(tuple(axes), keepdims=True).ravel())
    assert all(shape[place] > 1 for place in places)
    assert all(b - a > 1 for a, b in pairwise(places)), "neighbours are one"
