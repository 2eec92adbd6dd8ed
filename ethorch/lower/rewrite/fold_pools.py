"""Pools with a stride above 3, of which Vela makes one operation for each result, in a few operations.

- Along an axis whose windows do not overlap, what a window reads becomes an axis of its own by a RESHAPE.
- Means of squares that do not overlap are the same behind a TRANSPOSE of the windows' rows.
- Of overlapping windows more are computed, with a stride of 1 to 3, and every so many of them kept.

The last two take the NPU longer than Vela's way. Vela's own time grows with the square of the results: 15,000 took a minute.
"""

from __future__ import annotations

import math

from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import Op, Value
from ethorch.tosa.layout import around

#: The largest stride of a pool, on every NPU (Vela's SUPPORTED_OPS).
LARGEST_STRIDE = 3
#: The most rows of a map, and the most channels.
_LARGEST_EXTENT = 65536


def fold_pools(r: Rewriter, fewest_results: int) -> None:
    """Each MAX_POOL2D and AVG_POOL2D with a stride above 3: where windows do not overlap, or there are so many results."""
    for op in r.named("MAX_POOL2D", "AVG_POOL2D"):
        (_, height, width, _), (kernel, stride) = op.result.shape, (op.attrs["kernel"], op.attrs["stride"])
        if max(stride) <= LARGEST_STRIDE:
            continue
        separable = op.name == "MAX_POOL2D" or (1, 1) in zip(kernel, stride, strict=True)  # a mean is rounded once
        apart = all(s <= LARGEST_STRIDE or k <= s for k, s in zip(kernel, stride, strict=True)) and not any(op.attrs["pad"])
        if height * width < fewest_results and not (separable and apart):
            continue
        at, value = r.before(op), op.operands[0]
        if separable:
            for axis in (1, 0):
                value = _along(at, op, value, axis)
        elif kernel == stride and apart and _maps(value.shape[0] * height * width) is not None:
            value = _squares(at, op, value)
        else:
            value = _picked(at, op, value, kernel, stride, op.attrs["pad"])
        r.replace(op, value)


def _along(at: Place, op: Op, value: Value, axis: int) -> Value:
    """The pool's windows along the height (``axis`` 0) or the width (1) alone."""
    kernel, stride, pad = op.attrs["kernel"][axis], op.attrs["stride"][axis], op.attrs["pad"][2 * axis : 2 * axis + 2]
    if (kernel, stride) == (1, 1) and not any(pad):
        return value
    outer, extent, inner = around(value.shape, 1 + axis)
    count = op.result.shape[1 + axis]
    maps = _maps(outer * count)
    if stride <= LARGEST_STRIDE or kernel > stride or any(pad) or inner > _LARGEST_EXTENT or maps is None:
        one = {0: ((kernel, 1), (stride, 1), (*pad, 0, 0)), 1: ((1, kernel), (1, stride), (0, 0, *pad))}[axis]
        return _picked(at, op, value, *one)
    windows = _windows(at, at.reshape(value, outer, extent, inner), count, stride, kernel)
    folded = at.reshape(windows, maps, outer * count // maps, kernel, inner)
    if kernel > 1:
        folded = at.again(op, folded, kernel=(1, kernel), stride=(1, 1), pad=(0, 0, 0, 0))
    return at.reshape(folded, *(count if k == 1 + axis else e for k, e in enumerate(value.shape)))


def _squares(at: Place, op: Op, value: Value) -> Value:
    """Windows that divide the map: what each reads becomes a row of its own, by a TRANSPOSE of rows of the windows."""
    (n, height, width, c), (kh, kw) = op.result.shape, op.attrs["kernel"]
    rows = at.emit("TRANSPOSE", at.reshape(value, n * height, kh, width, kw * c), perms=(0, 2, 1, 3))
    maps = _maps(n * height * width)
    assert maps is not None
    folded = at.reshape(rows, maps, n * height * width // maps, kh * kw, c)
    return at.reshape(at.again(op, folded, kernel=(1, kh * kw), stride=(1, 1)), n, height, width, c)


def _maps(rows: int) -> int | None:
    """In how many maps of equal height so many rows are; None where that takes too many."""
    return next((maps for maps in range(-(-rows // _LARGEST_EXTENT), 65) if rows % maps == 0), None)


def _windows(at: Place, value: Value, count: int, stride: int, kernel: int) -> Value:
    """[outer, extent, inner] as [outer * count, kernel, inner]: what the windows read that do not overlap."""
    outer, extent, inner = value.shape
    if extent < count * stride:
        value = at.emit("PAD", value, padding=(0, 0, 0, count * stride - extent, 0, 0), pad_const=0)
    value = at.reshape(value, outer * count, stride, inner)
    return value if kernel == stride else at.emit("SLICE", value, start=(0, 0, 0), size=(outer * count, kernel, inner))


def _picked(at: Place, op: Op, value: Value, kernel: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...]) -> Value:
    """The pool with the largest stride of up to 3 that divides its own; of the results along each axis every so many."""
    steps = tuple(next(step for step in (3, 2, 1) if s % step == 0) if s > LARGEST_STRIDE else s for s in stride)
    if (kernel, math.prod(steps), any(pad)) != ((1, 1), 1, False):
        value = at.again(op, value, kernel=kernel, stride=steps, pad=pad)
    for axis, every in ((1, stride[1] // steps[1]), (0, stride[0] // steps[0])):
        if every > 1:
            outer, extent, inner = around(value.shape, 1 + axis)
            count = -(-extent // every)
            kept = _windows(at, at.reshape(value, outer, extent, inner), count, every, 1)
            value = at.reshape(kept, *(count if k == 1 + axis else e for k, e in enumerate(value.shape)))
    return value
