"""Fold adjacent pixels into channels, so that strided convolutions with few input channels use more multipliers.

With stride 2, two columns of three channels become one column of six channels, and 7 kernel columns become 4.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.targets.tuning import FoldColumns, FoldSquares
from ethorch.tosa.ir import Op, Value


class _FoldedAxis(NamedTuple):
    fold: int
    extent: int  # of the folded input, without unread elements
    kernel: int
    before: int  # padding
    after: int
    lead: int  # zeros before the kernel

    @classmethod
    def of(cls, fold: int, extent: int, kernel: int, before: int, after: int) -> _FoldedAxis:
        places = (extent + before + after - kernel) // fold + 1
        folded, front = -(-extent // fold), -(-before // fold)
        lead = front * fold - before
        taps = -(-(lead + kernel) // fold)
        padding_after = places - 1 + taps - folded - front
        return cls(fold, folded + min(padding_after, 0), taps, front, max(padding_after, 0), lead)


def fold_strides(r: Rewriter, fold: FoldColumns | FoldSquares) -> None:
    for op in r.select("CONV2D"):
        if op.attrs["dilation"] == (1, 1) and op.operands[1].is_const and not op.operands[0].is_const:
            if isinstance(fold, FoldColumns):
                _fold_columns(r, op, fold)
            else:
                _fold_squares(r, op, fold)


def _fold_columns(r: Rewriter, op: Op, fold: FoldColumns) -> None:
    read = op.operands[0]
    cut = r.producer(read, "SLICE", sole=True)
    source = cut.operands[0] if cut and not any(cut.attrs["start"]) and cut.operands[0].shape[3] == read.shape[3] else read
    n, height, width, channels = source.shape
    outputs, rows, taps, _ = op.operands[1].shape
    (top, bottom, left, right), stride = op.attrs["pad"], op.attrs["stride"][1]
    if stride == 1 or width % stride or channels * stride > fold.channels or n != read.shape[0]:
        return
    high = _FoldedAxis(1, read.shape[1], rows, top, bottom, 0)
    wide = _FoldedAxis.of(stride, width, taps, left, right + read.shape[2] - width)
    products, folded_products = (fold.taps * -(-rows * columns // fold.taps) for columns in (taps, wide.kernel))
    if folded_products >= products or (products * outputs < fold.least_products and channels * stride < fold.channels):
        return
    at = r.before(op)
    folded = at.reshape(source, n, height, width // stride, channels * stride)
    r.replace(op, _convolve_folded(at, op, folded, high, wide, "hwc"))


def _fold_squares(r: Rewriter, op: Op, fold: FoldSquares) -> None:
    transpose = r.producer(op.operands[0], "TRANSPOSE", sole=True)
    sy, sx = op.attrs["stride"]
    if transpose is None or tuple(transpose.attrs["perms"]) != (0, 2, 3, 1) or min(sy, sx) == 1:
        return
    n, channels, height, width = transpose.operands[0].shape
    if channels * sy * sx > fold.channels or height % sy or width % sx:
        return
    least = {"INT8": fold.least_places_int8, "INT16": fold.least_places_int16}.get(op.operands[0].dtype)
    if least is None or height * width < least:
        return
    _, rows, columns, _ = op.operands[1].shape
    high, wide = _FoldedAxis.of(sy, height, rows, *op.attrs["pad"][:2]), _FoldedAxis.of(sx, width, columns, *op.attrs["pad"][2:])
    at = r.before(op)
    value = at.reshape(transpose.operands[0], n * channels * height, width // sx, sx)
    value = at.emit("TRANSPOSE", value, perms=(0, 2, 1))
    value = at.reshape(value, n, channels, height // sy, sy * width)
    value = at.emit("TRANSPOSE", value, perms=(0, 2, 1, 3))
    value = at.reshape(value, n, height // sy, channels * sy * sx, width // sx)
    value = at.emit("TRANSPOSE", value, perms=(0, 1, 3, 2))
    r.replace(op, _convolve_folded(at, op, value, high, wide, "chw"))


def _convolve_folded(at: Place, op: Op, source: Value, high: _FoldedAxis, wide: _FoldedAxis, order: str) -> Value:
    n, *_, depth = source.shape
    if (shape := (n, high.extent, wide.extent, depth)) != source.shape:  # without unread elements
        source = at.emit("SLICE", source, start=(0, 0, 0, 0), size=shape)
    weight = op.operands[1].data
    assert weight is not None
    outputs, rows, columns, channels = weight.shape
    padded = np.full((outputs, high.kernel * high.fold, wide.kernel * wide.fold, channels), op.attrs["weight_zp"], weight.dtype)
    padded[:, high.lead : high.lead + rows, wide.lead : wide.lead + columns] = weight
    parts = padded.reshape(outputs, high.kernel, high.fold, wide.kernel, wide.fold, channels)
    inner = [{"h": 2, "w": 4, "c": 5}[letter] for letter in order]
    data = np.ascontiguousarray(parts.transpose(0, 1, 3, *inner).reshape(outputs, high.kernel, wide.kernel, -1))
    stride = tuple(s // way.fold for s, way in zip(op.attrs["stride"], (high, wide), strict=True))
    pad = (high.before, high.after, wide.before, wide.after)
    return at.again(op, source, at.constant(data, op.operands[1].dtype), stride=stride, pad=pad)
