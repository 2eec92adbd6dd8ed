"""Convolutions over three axes, computed by convolutions over two axes."""

from __future__ import annotations

import math

import numpy as np

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.builder.window import Window
from ethorch.lower.ops.weights import Filters
from ethorch.tosa.ir import Value

#: Maximum number of channels that every NPU supports.
MOST_CHANNELS = 65536


def conv3d(b: Builder, x: QTensor, filters: Filters, window: Window, groups: int, out: Result) -> QTensor:
    """Convolve x[N,C,D,H,W] with weights [O,C/G,KD,KH,KW].

    - With one group and no dilation along the depth, one CONV2D per output plane reads input planes as channels. Weights for
      padding planes are omitted, unless padding the feature map is cheaper.
    - For int8 with one input and one output channel per group, each kernel plane uses a DEPTHWISE_CONV2D, and the results are
      added in INT32. (TOSA 1.0 cannot add INT48.)
    - Otherwise, e.g. if the input planes exceed ``MOST_CHANNELS`` channels, one CONV2D per group computes all output planes
      from concatenated input planes.
    """
    n, c, d = x.shape[:3]
    if window.misses(x.shape[2:], out.shape[2:]):
        bias = filters.bias_in_shape(b, (n, *out.shape[2:], len(filters.codes)), out.qparams)
        return QTensor(bias, ((0,), (4,), (1,), (2,), (3,)), out.qparams)
    depth, plane = window.axes(0), window.axes(1, 2).ending(x.shape[3:])
    if groups == 1 and depth.dilation == (1,) and c * (d + 2 * depth.before[0] + depth.kernel[0]) <= MOST_CHANNELS:
        return _of_channels(b, x, filters, depth, plane, out)
    taps = _taps(b, x, depth, out.shape[2])
    cropped = [plane.crop(b, tap) for tap in taps]
    taps, plane = [tap for tap, _ in cropped], cropped[0][1]
    channels = len(filters.codes)
    if groups == channels == c and x.qparams.dtype == "INT8":
        total: Value | None = None
        for k, tap in enumerate(taps):
            plane_filters = filters.with_codes(filters.codes[:, 0, k].transpose(1, 2, 0)[..., None])
            acc = (plane_filters if k == 0 else plane_filters.without_bias()).depthwise(b, tap, plane)
            total = acc if total is None else b.emit("ADD", total, acc)
        assert total is not None
        result = filters.requantize(b, total, out.qparams)
    else:
        parts, wide, each = [], c // groups, channels // groups
        for group in range(groups):
            rows, group_taps = slice(group * each, (group + 1) * each), [b.slice_axis(tap, 3, group * wide, wide) for tap in taps]
            value = b.emit("CONCAT", *group_taps, axis=3) if len(group_taps) > 1 else group_taps[0]
            codes = filters.codes[rows].transpose(0, 3, 4, 2, 1).reshape(each, *plane.kernel, -1)
            parts.append(filters.with_codes(codes, rows).conv2d(b, value, plane, out.qparams))
        result = b.emit("CONCAT", *parts, axis=3) if groups > 1 else parts[0]
    stored = (n, out.shape[2], *result.shape[1:3], channels)
    return QTensor(b.reshape(result, stored), ((0,), (4,), (1,), (2,), (3,)), out.qparams)


def _of_channels(b: Builder, x: QTensor, filters: Filters, depth: Window, plane: Window, out: Result) -> QTensor:
    n, c, d = x.shape[:3]
    if x.dims[1][-1:] == (x.value.rank - 1,) or not x.dims[1]:
        value = b.store_as(x, [(0,), (3,), (4,), (2, 1)])
    else:  # move entire feature maps first
        maps = b.store_as(x, [(0,), (2, 1), (3,), (4,)])
        value = b.nhwc(QTensor(maps, ((0,), (1,), (2,), (3,)), x.q))
    value, plane = plane.crop(b, value)
    starts = [place * depth.stride[0] - depth.before[0] for place in range(out.shape[2])]
    planes = [(max(start, 0), min(start + depth.kernel[0], d)) for start in starts]
    weights = math.prod(filters.codes.shape) // depth.kernel[0]
    extra = {(first - start, last - start) for start, (first, last) in zip(starts, planes, strict=True)} - {(0, depth.kernel[0])}
    if sum(max(last - first, 1) for first, last in extra) * weights > math.prod(value.shape):  # padding the feature map costs less
        value = b.pad_axis(value, 3, max(-starts[0], 0) * c, max(starts[-1] + depth.kernel[0] - d, 0) * c, x.qparams.zp)
        starts = [start + max(depth.before[0], 0) for start in starts]
        planes = [(start, start + depth.kernel[0]) for start in starts]
    parts = []
    for start, (first, last) in zip(starts, planes, strict=True):
        codes = filters.codes[:, :, first - start : last - start]
        if first >= last:
            first, codes = 0, np.zeros_like(filters.codes[:, :, :1])
        plane_filters = filters.with_codes(codes.transpose(0, 3, 4, 2, 1).reshape(len(codes), *plane.kernel, -1))
        read = b.slice_axis(value, 3, first * c, codes.shape[2] * c)
        parts.append(plane_filters.conv2d(b, read, plane, out.qparams))
    result = b.emit("CONCAT", *parts, axis=3) if len(parts) > 1 else parts[0]
    stored = (n, *result.shape[1:3], out.shape[2], len(filters.codes))
    return QTensor(b.reshape(result, stored), ((0,), (4,), (3,), (1,), (2,)), out.qparams)


def _taps(b: Builder, x: QTensor, depth: Window, planes: int) -> list[Value]:
    (kernel,), (stride,), (dilation,) = depth.kernel, depth.stride, depth.dilation
    last = (planes - 1) * stride
    x = b.pad_or_crop(x, 2, depth.before[0], last + depth.span[0])
    taps = []
    for k in range(kernel):
        plane = b.pad_or_crop(x, 2, -k * dilation, last + 1)
        taps.append(b.store_as(b.every(plane, 2, stride), [(0, 2), (3,), (4,), (1,)]))
    return taps
