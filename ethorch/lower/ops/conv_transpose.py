"""Transposed convolutions over two and three axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor, Result
from ethorch.lower.builder.window import Window
from ethorch.lower.ops.weights import Filters
from ethorch.tosa.ir import Value

#: Maximum number of channels for which additional taps are cheaper than a SLICE of columns.
FEW = 4


def conv_transpose(b: Builder, x: QTensor, filters: Filters, window: Window, groups: int, out: Result) -> QTensor:
    """Compute out[n,o,s*i+k] += x[n,c,i] * w[c,o,k] for weights [C,O/G,KH,KW].

    The formula shows one axis, without padding and dilation.

    The positions s*q + r of the result (phase r) depend only on taps k = r (mod s). One convolution with stride 1 and s*s*O
    output channels computes all phases, which are then interleaved.

    - For several groups with one input and one output channel each, a DEPTHWISE_CONV2D computes the phases.
    - For one group and stride (2, 2), a TRANSPOSE_CONV2D is used if it is faster on the target.
    - Otherwise, a CONV2D computes the phases of each group, and a CONCAT joins the groups.
    """
    filters = filters.with_codes(_insert_zeros(filters.codes, window.dilation))
    inputs, outputs = filters.codes.shape[0] // groups, filters.codes.shape[1]
    if groups > 1 and inputs == outputs == 1:
        return _phases(b, x, filters, window, out.shape, out.qparams, depthwise=True)
    parts = []
    value = b.nhwc(x)
    for group in range(groups):
        part = b.from_nhwc(b.slice_axis(value, 3, group * inputs, inputs), x.q)
        codes = filters.codes[group * inputs : (group + 1) * inputs]
        group_filters = filters.with_codes(codes, slice(group * outputs, (group + 1) * outputs))
        if groups == 1 and window.stride == (2, 2) and b.tuning.transpose_conv == "TRANSPOSE_CONV2D":
            parts.append(_transpose_conv2d(b, part, group_filters, window, out.shape, out.qparams))
        else:
            parts.append(_phases(b, part, group_filters, window, out.shape, out.qparams, depthwise=False))
    if groups == 1:
        return parts[0]
    values, dims = b.alike(parts)
    return QTensor(b.emit("CONCAT", *values, axis=dims[1][0]), dims, out.qparams)


def conv_transpose3d(b: Builder, x: QTensor, filters: Filters, window: Window, groups: int, out: Result) -> QTensor:
    """Compute a transposed convolution with weights [C,O/G,KD,KH,KW], using ``conv_transpose`` over height and width.

    For depth stride s and a fixed r, all result planes s*q + r use the same depth taps. One ``conv_transpose`` for each r reads
    input planes as channels.
    """
    (n, c, d), (planes, *extents) = x.shape[:3], out.shape[2:]
    depth, plane = window.axes(0), window.axes(1, 2)
    (stride,), (dilation,), before = depth.stride, depth.dilation, depth.before[0]
    count, channels = -(-planes // stride), out.shape[1]
    phases = []
    for r in range(min(stride, planes)):
        ahead = {k: r + before - k * dilation for k in range(depth.kernel[0])}
        firsts = {k: places // stride for k, places in ahead.items() if places % stride == 0 and -count < places // stride < d}
        if firsts:
            read = [b.pad_or_crop(x, 2, -first, count) for first in firsts.values()]
            maps = _concat_by_group(b, [b.from_nhwc(b.store_as(tap, [(0, 2), (3,), (4,), (1,)]), x.q) for tap in read], groups)
            codes = np.stack([filters.codes[:, :, k].reshape(groups, c // groups, -1, *plane.kernel) for k in firsts], axis=1)
            phase_filters = filters.with_codes(codes.reshape(c * len(firsts), -1, *plane.kernel))
            result = conv_transpose(b, maps, phase_filters, plane, groups, replace(out, shape=(n * count, channels, *extents)))
        else:
            bias = filters.bias_in_shape(b, (n * count, *extents, channels), out.qparams)
            result = b.from_nhwc(bias, out.qparams)
        by_plane = b.view(result, (n, count, channels, *extents))
        phases.append(b.permute(by_plane, (0, 2, 1, 3, 4)))
    if len(phases) == 1:
        return b.narrow(phases[0], 2, 0, planes)
    apart = [b.view(phase, (n, channels, count, 1, *extents)) for phase in phases]
    return b.narrow(b.view(b.concat(apart, 3), (n, channels, count * len(phases), *extents)), 2, 0, planes)


def _concat_by_group(b: Builder, maps: Sequence[QTensor], groups: int) -> QTensor:
    n, c, *extents = maps[0].shape
    if groups == 1:
        return b.concat(maps, 1)
    apart = [b.view(value, (n, groups, 1, c // groups, *extents)) for value in maps]
    return b.view(b.concat(apart, 2), (n, c * len(maps), *extents))


def _insert_zeros(codes: npt.NDArray[Any], dilation: Sequence[int]) -> npt.NDArray[Any]:
    spans = [(k - 1) * d + 1 for k, d in zip(codes.shape[2:], dilation, strict=True)]
    spread = np.zeros((*codes.shape[:2], *spans), codes.dtype)
    spread[:, :, :: dilation[0], :: dilation[1]] = codes
    return spread


def _transpose_conv2d(b: Builder, x: QTensor, filters: Filters, window: Window, shape: Sequence[int], out: QParams) -> QTensor:
    pads: list[int] = []  # rows of output_padding that the kernel does not reach contain the bias
    for axis in (0, 1):
        reach = (x.shape[2 + axis] - 1) * 2 + filters.codes.shape[2 + axis]
        pads += [-window.before[axis], shape[2 + axis] + window.before[axis] - reach]
    acc = b.emit(
        "TRANSPOSE_CONV2D",
        b.nhwc(x),
        b.const(np.ascontiguousarray(filters.codes.transpose(1, 2, 3, 0)), name="weight"),
        filters.bias_codes(b),
        out_pad=tuple(pads),
        stride=(2, 2),
        input_zp=x.qparams.zp,
        weight_zp=filters.zero_point,
    )
    return b.from_nhwc(filters.requantize(b, acc, out), out)


def _phases(
    b: Builder, x: QTensor, filters: Filters, window: Window, shape: Sequence[int], out: QParams, *, depthwise: bool
) -> QTensor:
    # Tap k = m*s + r of the weights [I,O,KH,KW] becomes tap m of phase r.
    # If this adds no tap, or if there are few channels, zeros before the kernel move the first result to phase 0 to avoid a crop.
    stride, kernel = window.stride, filters.codes.shape[2:]
    few = filters.codes.shape[1] <= FEW
    zeros = [
        -p % s if few or -(-(k + -p % s) // s) == -(-k // s) else 0 for k, p, s in zip(kernel, window.before, stride, strict=True)
    ]
    padding = [p + z for p, z in zip(window.before, zeros, strict=True)]
    taps = [max(-(-(k + z) // s), 1) for k, z, s in zip(kernel, zeros, stride, strict=True)]
    fill = [(z, tap * s - k - z) for z, tap, s, k in zip(zeros, taps, stride, kernel, strict=True)]
    i, o = filters.codes.shape[:2]
    codes = np.pad(filters.codes, [(0, 0), (0, 0), *fill]).reshape(i, o, taps[0], stride[0], taps[1], stride[1])
    codes = codes[:, :, ::-1, :, ::-1]
    firsts = [p // s for p, s in zip(padding, stride, strict=True)]  # complete periods that padding removes
    counts = [-(-(size + p - f * s) // s) for size, p, f, s in zip(shape[2:], padding, firsts, stride, strict=True)]
    extents = [count + tap - 1 for count, tap in zip(counts, taps, strict=True)]
    value = _pad_or_crop(b, b.nhwc(x), [tap - 1 - first for tap, first in zip(taps, firsts, strict=True)], extents, x.qparams.zp)
    phases = stride[0] * stride[1]
    if depthwise:
        codes = codes[:, 0].transpose(1, 3, 0, 2, 4).reshape(*taps, i, phases)
        phase_filters = filters.with_codes(codes, np.repeat(np.arange(i), phases))
        result = phase_filters.depthwise_conv2d(b, value, None, out)
        stored, dims = (*result.shape[:3], i, *stride), ((0,), (3,), (1, 4), (2, 5))
    else:
        codes = codes.transpose(3, 5, 1, 2, 4, 0).reshape(phases * o, *taps, i)
        result = filters.with_codes(codes, np.tile(np.arange(o), phases)).conv2d(b, value, None, out)
        stored, dims = (*result.shape[:3], *stride, o), ((0,), (5,), (1, 3), (2, 4))
    y = b.nhwc(QTensor(b.reshape(result, stored), dims, out))  # most readers require NHWC
    before = [f * s - p for f, s, p in zip(firsts, stride, padding, strict=True)]
    return b.from_nhwc(_pad_or_crop(b, y, before, shape[2:], out.zp), out)


def _pad_or_crop(b: Builder, value: Value, before: Sequence[int], extents: Sequence[int], code: int) -> Value:
    starts = [max(-n, 0) for n in before]
    sizes = [min(value.shape[1 + k] - starts[k], extents[k] - max(before[k], 0)) for k in (0, 1)]
    if (*sizes,) != value.shape[1:3]:
        n, h, w, c = value.shape
        if c <= FEW:  # columns become contiguous
            rows = b.reshape(value, (n, h, w * c))
            value = b.emit("SLICE", rows, start=(0, starts[0], starts[1] * c), size=(n, sizes[0], sizes[1] * c))
            value = b.reshape(value, (n, *sizes, c))
        else:
            value = b.emit("SLICE", value, start=(0, *starts, 0), size=(n, *sizes, c))
    inserted_before = [max(n, 0) for n in before]
    inserted_after = [extents[k] - inserted_before[k] - sizes[k] for k in (0, 1)]
    if not any(inserted_before + inserted_after):
        return value
    padding = (0, 0, inserted_before[0], inserted_after[0], inserted_before[1], inserted_after[1], 0, 0)
    return b.emit("PAD", value, padding=padding, pad_const=code)
