"""Channels that a TRANSPOSE behind a convolution puts into another order come out of the convolution in that order.

The convolution's weights are exchanged, which costs nothing. What is left of the TRANSPOSE moves whole rows of channels, or none.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import Op, Value


def order_channels(r: Rewriter) -> None:
    """CONV2D, RESCALE and others element by element, RESHAPE of channels into parts, TRANSPOSE of the parts: a pixel shuffle."""
    for op in r.named("TRANSPOSE"):
        reshape = r.producer(op.operands[0], "RESHAPE", sole=True)
        if reshape is None:
            continue
        between: list[Op] = []
        value = reshape.operands[0]
        while inner := r.producer(value, "RESCALE", "CLAMP", "TABLE", sole=True):
            between.append(inner)
            value = inner.operands[0]
        conv = r.producer(value, "CONV2D", sole=True)
        if conv is not None and conv.operands[1].is_const and conv.operands[2].is_const:
            _order(r, conv, between[::-1], op)


def _order(r: Rewriter, conv: Op, between: list[Op], op: Op) -> None:
    """Channels in the order of ``op``, if it has another."""
    channels, shape, perms = conv.result.shape[-1], op.operands[0].shape, op.attrs["perms"]
    first = next((k for k in range(len(shape) - 1, -1, -1) if math.prod(shape[k:]) == channels), None)
    if first is None:  # an axis has channels and something else
        return
    order = [axis for axis in perms if axis >= first]
    if [axis for axis in order if shape[axis] > 1] == [axis for axis in range(first, len(shape)) if shape[axis] > 1]:
        return
    parts = np.arange(channels).reshape(shape[first:])
    wanted = parts.transpose([axis - first for axis in order]).reshape(-1)
    at = r.before(op)
    weight, bias = (_in_order(at, operand, wanted) for operand in conv.operands[1:3])
    value = at.again(conv, conv.operands[0], weight, bias)
    for inner in between:
        each = inner.name == "RESCALE" and inner.attrs["per_channel"]
        scales = {name: tuple(inner.attrs[name][k] for k in wanted) for name in ("multiplier", "shift")} if each else {}
        value = at.again(inner, value, **scales)
    value = at.reshape(value, *shape[:first], *(shape[axis] for axis in order))
    moved = tuple(first + order.index(axis) if axis >= first else axis for axis in perms)
    r.replace(op, at.again(op, value, perms=moved))


def _in_order(at: Place, value: Value, wanted: npt.NDArray[Any]) -> Value:
    """A constant with its first axis in another order; of one element for all channels, itself."""
    assert value.data is not None
    return value if value.shape[0] == 1 else at.constant(value.data[wanted], value.dtype)
