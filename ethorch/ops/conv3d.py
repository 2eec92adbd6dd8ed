"""Convolutions over three axes, as convolutions over two."""

from __future__ import annotations

from ethorch.builder.builder import Builder
from ethorch.builder.qparams import QTensor, Result
from ethorch.builder.window import Window
from ethorch.ops.weights import Filters
from ethorch.tosa.ir import Value


def conv3d(b: Builder, x: QTensor, filters: Filters, window: Window, groups: int, out: Result) -> QTensor:
    """x[N,C,D,H,W] convolved with codes [O,C/G,KD,KH,KW]. All planes of the result are a batch of maps.

    - Groups of one channel, of int8: a DEPTHWISE_CONV2D for each of the KD planes, added up in INT32. TOSA 1.0 adds no INT48.
    - All others: the KD planes that a plane of the result reads lie side by side as channels of one CONV2D.
    """
    n, c = x.shape[:2]
    depth, plane = window.axes(0), window.axes(1, 2).ending(x.shape[3:])
    taps = _taps(b, x, depth, out.shape[2])
    cropped = [plane.cropped(b, tap) for tap in taps]
    taps, plane = [tap for tap, _ in cropped], cropped[0][1]
    channels = len(filters.codes)
    if groups == channels == c and x.qparams.dtype == "INT8":
        total: Value | None = None
        for k, tap in enumerate(taps):
            own = filters.with_codes(filters.codes[:, 0, k].transpose(1, 2, 0)[..., None])
            acc = (own if k == 0 else own.without_bias()).depthwise(b, tap, plane)
            total = acc if total is None else b.emit("ADD", total, acc)
        assert total is not None
        result = filters.requantize(b, total, out.qparams)
    else:
        parts, wide, each = [], c // groups, channels // groups
        for group in range(groups):
            rows, own_taps = slice(group * each, (group + 1) * each), [b.sliced(tap, 3, group * wide, wide) for tap in taps]
            value = b.emit("CONCAT", *own_taps, axis=3) if len(own_taps) > 1 else own_taps[0]
            codes = filters.codes[rows].transpose(0, 3, 4, 2, 1).reshape(each, *plane.kernel, -1)
            parts.append(filters.with_codes(codes, rows).conv2d(b, value, plane, out.qparams))
        result = b.emit("CONCAT", *parts, axis=3) if groups > 1 else parts[0]
    stored = (n, out.shape[2], *result.shape[1:3], channels)
    return QTensor(b.reshape(result, stored), ((0,), (4,), (1,), (2,), (3,)), out.qparams)


def _taps(b: Builder, x: QTensor, depth: Window, planes: int) -> list[Value]:
    """For each place of the kernel's depth, what ``planes`` planes of the result read there: stored [N * planes,H,W,C]."""
    (kernel,), (stride,), (dilation,) = depth.kernel, depth.stride, depth.dilation
    last = (planes - 1) * stride
    x = b.pad_or_crop(x, 2, depth.before[0], last + depth.span[0])
    taps = []
    for k in range(kernel):
        plane = b.pad_or_crop(x, 2, -k * dilation, last + 1)
        taps.append(b.stored_as(b.every(plane, 2, stride), [(0, 2), (3,), (4,), (1,)]))
    return taps
