"""Movement: what is cut, put together and reduced along one axis, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor
from ethorch.lower.builder.reductions import reduce_axes
from ethorch.tosa.layout import MAX_RANK, Dims, contiguous
from ethorch.tosa.limits import Limits, Range
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.ladder import reference

pytestmark = pytest.mark.core

Q = QParams((0.1,), (3,), -128, 127, "INT8")
DATA = np.arange(2 * 3 * 10, dtype=np.int8).reshape(2, 3, 10)


def found(build) -> np.ndarray:
    """What ``build(b, x)``, x of DATA stored with its dims in another order, has for a result, in its logical order."""
    b = Builder()
    value = b.input("x", (10, 2, 3), "INT8")
    result = build(b, QTensor(value, ((1,), (2,), (0,)), Q))
    b.graph.outputs.append(b.logical(result))
    verify(b.graph)
    return reference(serialize(b.graph), [np.ascontiguousarray(DATA.transpose(2, 0, 1))])[0]


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda b, x: b.narrow(x, 2, 3, 4), DATA[:, :, 3:7]),
        (lambda b, x: b.narrow(x, -2, 1, 2), DATA[:, 1:3]),
        (lambda b, x: b.every(x, 2, 4), DATA[:, :, ::4]),
        (lambda b, x: b.every(x, 1, 3), DATA[:, ::3]),
        (lambda b, x: b.pad_or_crop(x, 2, -3, 5), DATA[:, :, 3:8]),
        (lambda b, x: b.pad_or_crop(x, 2, 1, 12), np.pad(DATA, ((0, 0), (0, 0), (1, 1)), constant_values=3)),
        (lambda b, x: b.pad_or_crop(x, 2, -2, 9), np.pad(DATA[:, :, 2:], ((0, 0), (0, 0), (0, 1)), constant_values=3)),
        (lambda b, x: b.concat([x, b.narrow(x, 1, 0, 1)], 1), np.concatenate([DATA, DATA[:, :1]], 1)),
        (lambda b, x: b.tile(x, [2, 1, 3]), np.tile(DATA, (2, 1, 3))),
        (lambda b, x: b.from_order(b.store_as(x, [(1,), (2,), (0,)]), [1, 2, 0], x.q), DATA),
    ],
)
def test_against_numpy(build, wanted: np.ndarray) -> None:
    assert np.array_equal(found(build), wanted)


@pytest.mark.parametrize(
    ("stored", "dims", "dim"),
    [
        ((1, 1, 1, 1, 1, 1), ((), (3,), (4,), (5,)), 0),
        ((2, 3, 1, 1, 1, 2), ((0,), (), (2, 3), (5,)), 2),
        ((2, 3, 2, 2, 2, 2), ((0, 1), (), (2, 3), (4, 5)), 1),
    ],
)
def test_an_axis_of_a_full_array_is_within_max_rank(stored: tuple[int, ...], dims: Dims, dim: int) -> None:
    b = Builder()
    value, axis, found = b.axis_of(x := QTensor(b.input("x", stored, "INT8"), dims, Q), dim)
    assert value.rank <= MAX_RANK and value.shape[axis] == 1 and found[dim] == (axis,)
    assert QTensor(value, found, Q).shape == x.shape


def test_what_moves_nothing_emits_nothing() -> None:
    b = Builder()
    x = QTensor(b.input("x", (2, 3, 4), "INT8"), contiguous((2, 3, 4)), Q)
    for same in (b.narrow(x, 1, 0, 3), b.every(x, 1, 1), b.pad_or_crop(x, 1, 0, 3), b.tile(x, [1, 1, 1]), b.concat([x], 0)):
        assert same.value is x.value
    assert b.reshape(x.value, (2, 3, 4)) is b.crop(x.value, (2, 3, 4)) is b.pad_axis(x.value, 0, 0, 0, 0) is x.value
    assert b.to_qparams(x, None) is x and not b.graph.ops


@pytest.mark.parametrize(("axes", "reductions"), [({0, 1}, 1), ({0, 2}, 2), ({1}, 1), ({0, 1, 2}, 1), (set(), 0)])
def test_neighbours_are_reduced_as_one(axes: set[int], reductions: int) -> None:
    b = Builder()
    result = reduce_axes(b, "REDUCE_SUM", b.input("x", (2, 3, 4), "INT32"), axes)
    b.graph.outputs.append(result)
    assert sum(op.name == "REDUCE_SUM" for op in b.graph.ops) == reductions
    data = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    if reductions:
        assert np.array_equal(reference(serialize(b.graph), [data])[0], data.sum(tuple(axes), keepdims=True))


def test_a_region_has_the_targets_limits_and_names_of_its_own() -> None:
    """The Builder of a region is made anew: it has to know all that the outer one was told."""
    limits = {"ADD": Limits({}, present=False), "TILE": Limits({"rank": Range(1, 4)})}
    b = Builder(limits, target="some-npu", floats=("FP32",), integers=False)
    outer, inner = b.input("x", (1,), "INT8"), b.region("then")
    assert (inner.limits, inner.target, inner.floats, inner.integers, inner.tuning) == (
        limits,
        "some-npu",
        {"FP32"},
        False,
        b.tuning,
    )
    assert inner.graph is not b.graph and inner.graph.name == "then"
    assert inner.input("x", (1,), "INT8").name != outer.name
