"""Reduce pool strides above 3, for which Vela emits one operation per output element.

Vela's compile time is quadratic in the number of these operations.
"""

from __future__ import annotations

import math

from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import Op, Value
from ethorch.tosa.layout import around

#: Largest stride of a pool on every NPU (Vela's SUPPORTED_OPS).
LARGEST_STRIDE = 3
#: Maximum number of rows, and of channels, of a feature map.
_LARGEST_EXTENT = 65536


def fold_pools(r: Rewriter, fewest_results: int) -> None:
    """Reduce strides above 3 of pools with at least ``fewest_results`` output elements per channel.

    Maxima of disjoint windows, and averages of disjoint windows along one axis, do not require this minimum. Methods:

    - A RESHAPE splits an axis into disjoint windows.
    - For averages of disjoint 2-D windows, a TRANSPOSE makes the rows of each window adjacent.
    - Overlapping windows are pooled with a stride of 1 to 3, and the results are subsampled.
    """
    for op in r.select("MAX_POOL2D", "AVG_POOL2D"):
        (_, height, width, _), (kernel, stride) = op.result.shape, (op.attrs["kernel"], op.attrs["stride"])
        if max(stride) <= LARGEST_STRIDE:
            continue
        separable = op.name == "MAX_POOL2D" or (1, 1) in zip(kernel, stride, strict=True)  # an average must be rounded only once
        is_disjoint = all(s <= LARGEST_STRIDE or k <= s for k, s in zip(kernel, stride, strict=True)) and not any(op.attrs["pad"])
        if height * width < fewest_results and not (separable and is_disjoint):
            continue
        at, value = r.before(op), op.operands[0]
        if separable:
            for axis in (1, 0):
                value = _along(at, op, value, axis)
        elif kernel == stride and is_disjoint and _maps(value.shape[0] * height * width) is not None:
            value = _squares(at, op, value)
        else:
            value = _subsample(at, op, value, kernel, stride, op.attrs["pad"])
        r.replace(op, value)


def _along(at: Place, op: Op, value: Value, axis: int) -> Value:
    kernel, stride, pad = op.attrs["kernel"][axis], op.attrs["stride"][axis], op.attrs["pad"][2 * axis : 2 * axis + 2]
    if (kernel, stride) == (1, 1) and not any(pad):
        return value
    outer, extent, inner = around(value.shape, 1 + axis)
    count = op.result.shape[1 + axis]
    maps = _maps(outer * count)
    if stride <= LARGEST_STRIDE or kernel > stride or any(pad) or inner > _LARGEST_EXTENT or maps is None:
        arguments = {0: ((kernel, 1), (stride, 1), (*pad, 0, 0)), 1: ((1, kernel), (1, stride), (0, 0, *pad))}[axis]
        return _subsample(at, op, value, *arguments)
    windows = _windows(at, at.reshape(value, outer, extent, inner), count, stride, kernel)
    folded = at.reshape(windows, maps, outer * count // maps, kernel, inner)
    if kernel > 1:
        folded = at.again(op, folded, kernel=(1, kernel), stride=(1, 1), pad=(0, 0, 0, 0))
    return at.reshape(folded, *(count if k == 1 + axis else e for k, e in enumerate(value.shape)))


def _squares(at: Place, op: Op, value: Value) -> Value:
    (n, height, width, c), (kh, kw) = op.result.shape, op.attrs["kernel"]
    rows = at.emit("TRANSPOSE", at.reshape(value, n * height, kh, width, kw * c), perms=(0, 2, 1, 3))
    maps = _maps(n * height * width)
    assert maps is not None
    folded = at.reshape(rows, maps, n * height * width // maps, kh * kw, c)
    return at.reshape(at.again(op, folded, kernel=(1, kh * kw), stride=(1, 1)), n, height, width, c)


def _maps(rows: int) -> int | None:
    return next((maps for maps in range(-(-rows // _LARGEST_EXTENT), 65) if rows % maps == 0), None)


def _windows(at: Place, value: Value, count: int, stride: int, kernel: int) -> Value:
    outer, extent, inner = value.shape
    if extent < count * stride:
        value = at.emit("PAD", value, padding=(0, 0, 0, count * stride - extent, 0, 0), pad_const=0)
    value = at.reshape(value, outer * count, stride, inner)
    return value if kernel == stride else at.emit("SLICE", value, start=(0, 0, 0), size=(outer * count, kernel, inner))


def _subsample(at: Place, op: Op, value: Value, kernel: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...]) -> Value:
    steps = tuple(next(step for step in (3, 2, 1) if s % step == 0) if s > LARGEST_STRIDE else s for s in stride)
    if (kernel, math.prod(steps), any(pad)) != ((1, 1), 1, False):
        value = at.again(op, value, kernel=kernel, stride=steps, pad=pad)
    for axis, every in ((1, stride[1] // steps[1]), (0, stride[0] // steps[0])):
        if every > 1:
            outer, extent, inner = around(value.shape, 1 + axis)
            count = -(-extent // every)
            firsts = _windows(at, at.reshape(value, outer, extent, inner), count, every, 1)
            value = at.reshape(firsts, *(count if k == 1 + axis else e for k, e in enumerate(value.shape)))
    return value
