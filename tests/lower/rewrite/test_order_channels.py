"""Channels come out of a convolution in the order that a TRANSPOSE behind it wants; no bit changes."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from ethorch.lower.builder.builder import Builder
from ethorch.lower.rewrite.order_channels import order_channels
from ethorch.lower.rewrite.rewriter import Rewriter
from ethorch.tosa.ir import Graph
from ethorch.tosa.serialize import serialize
from ethorch.tosa.verify import verify
from tests.helpers.ladder import reference


def shuffled(shape: tuple[int, ...], perms: tuple[int, ...], *, per_channel: bool) -> Graph:
    """A convolution of [1,5,4,3] to 12 channels, rescaled and clamped, its result as ``shape`` and transposed."""
    rng, b = np.random.default_rng(0), Builder()
    x = b.input("x", (1, 5, 4, 3), "INT8")
    weight, bias = (
        b.const(rng.integers(-127, 128, (12, 3, 3, 3)).astype(np.int8)),
        b.const(rng.integers(-999, 999, 12).astype(np.int32)),
    )
    window = {"pad": (1, 1, 1, 1), "stride": (1, 1), "dilation": (1, 1), "input_zp": 3, "weight_zp": 0}
    scales = [0.002 + 0.0001 * k for k in range(12)] if per_channel else [0.003]
    value = b.emit("CLAMP", b.rescale(b.emit("CONV2D", x, weight, bias, **window), scales, output_zp=4), min_val=-50, max_val=90)
    b.graph.outputs.append(b.emit("TRANSPOSE", b.reshape(value, shape), perms=perms))
    return b.graph


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(
    ("shape", "perms", "wanted"),
    [
        ((5, 4, 3, 2, 2), (0, 3, 1, 4, 2), (0, 2, 1, 3, 4)),  # a pixel shuffle
        ((1, 5, 4, 3, 4), (0, 1, 2, 4, 3), (0, 1, 2, 3, 4)),  # channels alone
        ((20, 4, 3), (2, 0, 1), (1, 0, 2)),
    ],
)
def test_channels_come_out_as_wanted(shape, perms, wanted, per_channel: bool) -> None:
    graph = shuffled(shape, perms, per_channel=per_channel)
    before, r = copy.deepcopy(graph), Rewriter(graph)
    order_channels(r, by_nhwc=False)
    r.drop_dead()
    verify(r.finish())
    assert [op.attrs["perms"] for op in graph.ops if op.name == "TRANSPOSE"] == [wanted]
    x = np.random.default_rng(3).integers(-128, 128, (1, 5, 4, 3)).astype(np.int8)
    np.testing.assert_array_equal(reference(serialize(graph), [x])[0], reference(serialize(before), [x])[0])


@pytest.mark.parametrize(("shape", "perms"), [((5, 4, 3, 2, 2), (0, 2, 1, 3, 4)), ((5, 48), (1, 0))])
def test_what_keeps_the_order_or_mixes_it_with_places_stays(shape, perms) -> None:
    r = Rewriter(shuffled(shape, perms, per_channel=True))
    order_channels(r, by_nhwc=True)
    assert r.changes == 0


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(("shape", "perms"), [((5, 4, 3, 2, 2), (2, 0, 3, 1, 4)), ((1, 5, 4, 3, 4, 1), (0, 3, 1, 4, 2, 5))])
def test_a_shuffle_to_nchw_by_nhwc(shape, perms, per_channel: bool) -> None:
    graph = shuffled(shape, perms, per_channel=per_channel)
    before, r = copy.deepcopy(graph), Rewriter(graph)
    order_channels(r, by_nhwc=True)
    r.drop_dead()
    verify(r.finish())
    moves = [op for op in graph.ops if op.name == "TRANSPOSE"]
    assert len(moves) == 2 and moves[0].attrs["perms"][-1] == len(shape) - 1 and moves[1].attrs["perms"] == (0, 3, 1, 2)
    x = np.random.default_rng(3).integers(-128, 128, (1, 5, 4, 3)).astype(np.int8)
    np.testing.assert_array_equal(reference(serialize(graph), [x])[0], reference(serialize(before), [x])[0])
