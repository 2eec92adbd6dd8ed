"""Views, and the walks made of them, beside NumPy's strides."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from ethorch.deploy.firmware.views import Axes, View, merge_axes, order_axes

SHAPES = st.lists(st.integers(1, 4), min_size=0, max_size=4).map(tuple)


def _of(shape: tuple[int, ...]) -> tuple[View, np.ndarray]:
    """A contiguous tensor of int16 that counts its elements."""
    strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return View("x", "int16", shape, strides), np.arange(prod(shape), dtype=np.int16).reshape(shape)


def _elements(view: View) -> np.ndarray:
    memory = np.arange(1000, dtype=np.int16)
    return as_strided(memory[view.offset :], view.shape, [stride * 2 for stride in view.strides])


@st.composite
def _views(draw: st.DrawFn) -> tuple[View, np.ndarray]:
    """A tensor that was moved some times, as a View and by NumPy."""
    view, array = _of(draw(SHAPES))
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["permute", "slice", "select", "flip", "insert", "expand"]))
        axes = list(range(view.rank))
        if kind == "insert":
            at = draw(st.integers(0, view.rank))
            view, array = view.insert_axis(at), np.expand_dims(array, at)
        elif not axes:
            continue
        elif kind == "permute":
            order = draw(st.permutations(axes))
            view, array = view.permute(order), array.transpose(order)
        elif kind == "expand":
            shape = tuple(3 if size == 1 else size for size in view.shape)
            expanded = view.expand(shape)
            assert expanded is not None
            view, array = expanded, np.broadcast_to(array, shape)
        else:
            axis = draw(st.sampled_from(axes))
            before = (slice(None),) * axis
            if kind == "slice":
                start, end, step = draw(st.integers(-3, 2)), draw(st.integers(-2, 5)), draw(st.integers(1, 3))
                view, array = view.slice(axis, start, end, step), array[(*before, slice(start, end, step))]
            elif kind == "flip":
                view, array = view.flip([axis]), np.flip(array, axis)
            elif view.shape[axis]:
                index = draw(st.integers(-view.shape[axis], view.shape[axis] - 1))
                view, array = view.select(axis, index), array[(*before, index)]
    return view, array


def _walked(axes: Axes, operand: int) -> list[int]:
    """Bytes from the start, in the order of the walk."""
    places = [0]
    for size, steps in axes:
        places = [place + index * steps[operand] for place in places for index in range(size)]
    return places


@given(_views())
def test_a_view_has_the_elements_that_numpy_has(case: tuple[View, np.ndarray]) -> None:
    view, array = case
    assert view.shape == array.shape and view.numel == array.size
    if array.size:
        assert (_elements(view) == array).all()


@given(_views(), SHAPES)
def test_a_view_under_another_shape_has_the_same_elements_or_there_is_none(
    case: tuple[View, np.ndarray], shape: tuple[int, ...]
) -> None:
    view, array = case
    for wanted in (shape, (array.size,), (*array.shape, 1), (1, *array.shape)):
        other = view.reshape(wanted)
        if other is not None and array.size:
            assert (_elements(other) == array.reshape(wanted)).all()
        if view.is_contiguous or prod(wanted) != array.size:
            assert (other is not None) == (prod(wanted) == array.size)


@given(_views())
def test_a_walk_over_merged_axes_visits_the_same_pairs(case: tuple[View, np.ndarray]) -> None:
    view, array = case
    if not array.size:
        return
    out, _ = _of(view.shape)
    plain = [(size, (to * 2, of * 2)) for size, to, of in zip(view.shape, out.strides, view.strides, strict=True)]
    wanted = list(zip(_walked(plain, 0), _walked(plain, 1), strict=True))
    fewer, free = merge_axes(plain), order_axes([view, out])
    assert len(fewer) <= len(plain) and len(free) <= len(plain)
    assert list(zip(_walked(fewer, 0), _walked(fewer, 1), strict=True)) == wanted
    assert sorted(zip(_walked(free, 1), _walked(free, 0), strict=True)) == sorted(wanted)
