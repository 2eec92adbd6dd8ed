"""Convolutions over two axes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.builder.window import Window
from ethorch.lower.ops.weights import Filters

#: The largest stride of a convolution on any Ethos-U (Vela SUPPORTED_OPS, CONV2D).
_LARGEST_STRIDE = 3


def conv2d(b: Builder, x: QTensor, filters: Filters, window: Window, groups: int, out: Result) -> QTensor:
    """Convolve x[N,C,H,W] with weights [O,C/G,KH,KW].

    - If, along some axis, all windows read only padding, the result is the bias.
    - A convolution with a stride above 3, one group and no dilation uses space-to-depth.
    - For one group per output channel, a stride above 3 is replaced with one of its divisors, and excess output elements are
      discarded.
    - For several groups with one input channel each, a DEPTHWISE_CONV2D is used.
    - Other convolutions use a CONV2D per group, and a CONCAT, which Vela eliminates.
    """
    if window.misses(x.shape[2:], out.shape[2:]):
        bias = filters.bias_in_shape(b, (x.shape[0], *out.shape[2:], len(filters.codes)), out.qparams)
        return b.from_nhwc(bias, out.qparams)
    if groups == 1 and max(window.stride) > _LARGEST_STRIDE and set(window.dilation) == {1}:
        return _patches(b, x, filters, window, out)
    requested_stride = window.stride
    if groups == len(filters.codes):
        window = replace(window, stride=tuple(_first_step(stride) for stride in window.stride))
    window = window.ending(x.shape[2:])
    value = b.nhwc(x)
    if value is not x.value and b.tuning.crop == "kernel":
        filters, window = _pad_kernel(filters, window)
    value, window = window.crop(b, value)
    channels, wide = filters.codes.shape[:2]
    each = channels // groups
    if groups > 1 and wide == 1:
        codes = filters.codes.transpose(2, 3, 1, 0).reshape(*window.kernel, groups, each)
        result = filters.with_codes(codes).depthwise_conv2d(b, value, window, out.qparams)
    else:
        parts = []
        for group in range(groups):
            rows = slice(group * each, (group + 1) * each)
            group_filters = filters.with_codes(filters.codes[rows].transpose(0, 2, 3, 1), rows)
            parts.append(group_filters.conv2d(b, b.slice_axis(value, 3, group * wide, wide), window, out.qparams))
        result = parts[0] if groups == 1 else b.emit("CONCAT", *parts, axis=3)
    y = b.from_nhwc(result, out.qparams)
    for axis in (0, 1):
        y = b.every(y, 2 + axis, requested_stride[axis] // window.stride[axis])
    return y


def _first_step(stride: int) -> int:
    return stride if stride <= _LARGEST_STRIDE else next(step for step in (3, 2, 1) if stride % step == 0)


def _pad_kernel(filters: Filters, window: Window) -> tuple[Filters, Window]:
    bottom, right = (max(-after, 0) for after in window.after)
    if max(bottom, right) == 0 or window.dilation != (1, 1):
        return filters, window
    codes = np.pad(filters.codes, [(0, 0), (0, 0), (0, bottom), (0, right)], constant_values=filters.zero_point)
    after = (max(window.after[0], 0), max(window.after[1], 0))
    return filters.with_codes(codes), replace(window, kernel=codes.shape[2:], after=after)


def _patches(b: Builder, x: QTensor, filters: Filters, window: Window, out: Result) -> QTensor:
    # Space-to-depth, because Vela would otherwise emit a convolution for each output pixel.
    steps = window.stride
    blocks = [-(-kernel // step) for kernel, step in zip(window.kernel, steps, strict=True)]
    counts = [size + block - 1 for size, block in zip(out.shape[2:], blocks, strict=True)]
    for axis in (0, 1):
        x = b.pad_or_crop(x, 2 + axis, window.before[axis], counts[axis] * steps[axis])
    fill = [(0, block * step - kernel) for block, step, kernel in zip(blocks, steps, window.kernel, strict=True)]
    n, c = x.shape[:2]
    codes = np.pad(filters.codes, [(0, 0), (0, 0), *fill]).reshape(-1, c, blocks[0], steps[0], blocks[1], steps[1])
    x = b.view(x, (n, c, counts[0], steps[0], counts[1], steps[1]))
    inside = sorted((1, 3, 5), key=lambda dim: x.dims[dim] or (-1,))
    value = b.store_as(x, [(0,), (2,), (4,), tuple(inside)])
    codes = codes.transpose(0, 2, 4, *inside).reshape(len(codes), *blocks, -1)
    result = filters.with_codes(codes).conv2d(b, value, None, out.qparams)
    return b.view(b.from_nhwc(result, out.qparams), out.shape)
