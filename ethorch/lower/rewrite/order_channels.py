"""Replace a TRANSPOSE of a convolution's output channels with reordered weights, e.g. in a pixel shuffle.

If a TRANSPOSE remains, it moves entire rows of channels.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import Op, Value


def order_channels(r: Rewriter, *, by_nhwc: bool) -> None:
    """Reorder the channels of each CONV2D that is followed by elementwise operators, a RESHAPE of the channels, and a TRANSPOSE.

    Args:
        by_nhwc: Whether to split a TRANSPOSE that moves channels before spatial axes.
    """
    for op in r.select("TRANSPOSE"):
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
            if by_nhwc:
                op = _by_nhwc(r, conv, op)
            _order(r, conv, between[::-1], op)


def _by_nhwc(r: Rewriter, conv: Op, op: Op) -> Op:
    shape, perms = op.operands[0].shape, [axis for axis in op.attrs["perms"] if op.operands[0].shape[axis] > 1]
    first = _first_part(shape, conv.result.shape[-1])
    if first is None:
        return op
    batch = 0
    while math.prod(shape[axis] for axis in perms[:batch]) < conv.result.shape[0]:
        batch += 1
    places = [k for k, axis in enumerate(perms) if axis < first and k >= batch]
    if math.prod(shape[axis] for axis in perms[:batch]) != conv.result.shape[0] or len(places) < 2 or places[0] == batch:
        return op
    front, rest = perms[batch : places[0]], perms[places[0] :]
    if all(axis < first for axis in rest):  # already a feature map
        return op
    second = places[1] - places[0]
    n, height, width, channels = (
        math.prod(shape[axis] for axis in part) for part in (perms[:batch], rest[:second], rest[second:], front)
    )
    ones = [axis for axis in range(len(shape)) if shape[axis] == 1]
    at = r.before(op)
    value = at.again(op, op.operands[0], perms=(*ones, *perms[:batch], *rest, *front))
    moved = r.producer(value)
    assert moved is not None
    value = at.emit("TRANSPOSE", at.reshape(value, n, height, width, channels), perms=(0, 3, 1, 2))
    r.replace(op, at.reshape(value, *op.result.shape))
    return moved


def _first_part(shape: tuple[int, ...], channels: int) -> int | None:
    return next((k for k in range(len(shape) - 1, -1, -1) if math.prod(shape[k:]) == channels), None)


def _order(r: Rewriter, conv: Op, between: list[Op], op: Op) -> None:
    channels, shape, perms = conv.result.shape[-1], op.operands[0].shape, op.attrs["perms"]
    first = _first_part(shape, channels)
    if first is None:
        return
    order = [axis for axis in perms if axis >= first]
    if [axis for axis in order if shape[axis] > 1] == [axis for axis in range(first, len(shape)) if shape[axis] > 1]:
        return
    parts = np.arange(channels).reshape(shape[first:])
    permutation = parts.transpose([axis - first for axis in order]).reshape(-1)
    at = r.before(op)
    weight, bias = (_in_order(at, operand, permutation) for operand in conv.operands[1:3])
    value = at.again(conv, conv.operands[0], weight, bias)
    for inner in between:
        each = inner.name == "RESCALE" and inner.attrs["per_channel"]
        scales = {name: tuple(inner.attrs[name][k] for k in permutation) for name in ("multiplier", "shift")} if each else {}
        value = at.again(inner, value, **scales)
    value = at.reshape(value, *shape[:first], *(shape[axis] for axis in order))
    moved = tuple(first + order.index(axis) if axis >= first else axis for axis in perms)
    r.replace(op, at.again(op, value, perms=moved))


def _in_order(at: Place, value: Value, permutation: npt.NDArray[Any]) -> Value:
    assert value.data is not None
    return value if value.shape[0] == 1 else at.constant(value.data[permutation], value.dtype)
