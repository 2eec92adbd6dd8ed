"""Convolution: regular, depthwise, grouped, transposed; one, two and three spatial dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ethorch.errors import Reason
from ethorch.ops.quant_rules import WEIGHTED
from ethorch.ops.spec import I8, Sample, W, op
from ethorch.qparams import QParams, QTensor, dtype_range
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import DTYPES, FLOATS, Value


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return (values[0], values[-1])


def _convolution(x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    """Arguments of aten.conv1d/conv2d (padding by number) as those of aten.convolution."""
    spatial = len(w.shape) - 2

    def each(value: Any) -> list[int]:
        values = [value] if isinstance(value, int) else list(value)
        return values * spatial if len(values) == 1 else values

    return (x, w, bias, each(stride), each(padding), each(dilation), False, [0] * spatial, groups), {}


def _convolution_transposed(
    x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1
) -> Any:
    """Arguments of aten.conv_transpose1d/2d/3d as those of aten.convolution."""
    args, _ = _convolution(x, w, bias, stride, padding, dilation, groups)
    extra = _convolution(x, w, bias, output_padding)[0][3]
    return (*args[:6], True, extra, groups), {}


def _convolution_same(
    x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: str = "valid", dilation: Any = 1, groups: int = 1
) -> Any:
    """Arguments of aten.conv2d.padding ("same", "valid") as those of aten.convolution; "same" may pad unevenly."""
    args, kwargs = _convolution(x, w, bias, stride, 0, dilation, groups)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(args[5], w.shape[2:], strict=True)]
        args = (*args[:4], [(t // 2, t - t // 2) for t in total], *args[5:])
    return args, kwargs


def bias_codes(b: Builder, bias: Any, scales: Sequence[float], channels: int, activations: str = "INT8") -> Value:
    """int32[O], or int48[O] with int16 activations: round(bias / scale[o]), the bias in units of the accumulator.

    Saturated, which the quantizer warns of; at 40 bits for int48, which is what the NPU adds (Vela SUPPORTED_OPS, TOSA CONV2D).
    """
    real = np.zeros(channels) if bias is None else real_values(bias)
    if activations in FLOATS:
        return b.const(real.astype(DTYPES[activations]), activations, name="bias")
    codes = np.rint(real.astype(np.float64) / np.asarray(scales))
    if activations == "INT16":
        return b.const(np.clip(codes, -(2**39), 2**39 - 1).astype(np.int64), "INT48", name="bias")
    low, high = dtype_range("INT32")
    return b.const(np.clip(codes, low, high).astype(np.int32), name="bias")


def real_values(bias: Any) -> np.ndarray:
    """A bias as reals: a float constant, or one that was quantized after all."""
    if not isinstance(bias, QTensor):
        return np.asarray(bias)
    q, data = bias.qparams, bias.value.data
    assert data is not None
    return (data.astype(np.float64) - np.asarray(q.zero_point)) * np.asarray(q.scale)


def accumulator_scales(x: QTensor, w: QTensor, channels: int) -> list[float]:
    """Real value of one accumulator unit for each output channel: input scale x weight scale."""
    scales = w.qparams.scale
    return [x.qparams.step * scale for scale in (scales if len(scales) == channels else scales * channels)]


def weight_array(w: QTensor) -> np.ndarray:
    """A constant weight in its logical order; nothing is copied."""
    data = w.value.data
    assert data is not None
    order = [axis for axes in w.dims for axis in axes]
    rest = [axis for axis in range(data.ndim) if axis not in order]
    return data.transpose(*order, *rest).reshape(w.shape)


@op(
    "aten.convolution.default", quant=WEIGHTED,
    also={
        "aten.conv1d.default": _convolution, "aten.conv2d.default": _convolution,
        "aten.conv1d.padding": _convolution_same, "aten.conv2d.padding": _convolution_same, "aten.conv3d.default": _convolution,
        "aten.conv3d.padding": _convolution_same, "aten.conv_transpose1d.default": _convolution_transposed,
        "aten.conv_transpose2d.input": _convolution_transposed, "aten.conv_transpose3d.input": _convolution_transposed,
    },
    samples=[
        Sample(I8(1, 8, 9, 7), W(16, 8, 3, 3), W(16), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        Sample(I8(1, 3, 15, 16), W(8, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
        Sample(I8(1, 3, 16, 14), W(8, 3, 3, 3), W(8), [2, 2], [0, 0], [1, 1], False, [0, 0], 1),
        Sample(I8(2, 5, 6, 6), W(7, 5, 1, 1), W(7), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        Sample(I8(1, 16, 12, 12), W(16, 1, 3, 3), W(16), [2, 2], [1, 1], [1, 1], False, [0, 0], 16),
        Sample(I8(1, 8, 12, 12), W(16, 1, 3, 3), W(16), [1, 1], [2, 2], [2, 2], False, [0, 0], 8),
        Sample(I8(1, 12, 8, 8), W(18, 4, 3, 3), W(18), [1, 1], [1, 1], [1, 1], False, [0, 0], 3),
        Sample(I8(1, 4, 11, 9), W(6, 4, 4, 2), W(6), [3, 2], [1, 0], [1, 1], False, [0, 0], 1),
        Sample(I8(1, 40, 3, 3), W(72, 40, 1, 1), W(72), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        Sample(I8(1, 6, 20), W(4, 6, 3), W(4), [1], [1], [1], False, [0], 1),
        Sample(I8(1, 3, 16, 24), W(10, 3, 8, 8), W(10), [8, 8], [0, 0], [1, 1], False, [0, 0], 1),
        Sample(I8(1, 5, 19, 17), W(6, 5, 7, 5), W(6), [4, 5], [3, 2], [1, 1], False, [0, 0], 1),
        Sample(I8(1, 6, 17, 13), W(6, 1, 3, 3), W(6), [4, 4], [1, 1], [1, 1], False, [0, 0], 6),
        Sample(I8(1, 8, 5, 4), W(8, 6, 2, 2), W(6), [2, 2], [0, 0], [1, 1], True, [0, 0], 1),
        Sample(I8(1, 4, 6, 5), W(4, 6, 3, 3), W(6), [1, 1], [1, 1], [1, 1], True, [0, 0], 1),
        Sample(I8(1, 4, 5, 6), W(4, 7, 4, 3), W(7), [2, 2], [1, 0], [1, 1], True, [0, 1], 1),
        Sample(I8(1, 4, 5, 6), W(4, 3, 5, 3), W(3), [3, 4], [1, 1], [1, 1], True, [0, 0], 1),
        Sample(I8(1, 6, 5, 4), W(6, 1, 4, 4), W(6), [2, 2], [1, 1], [1, 1], True, [0, 0], 6),
        Sample(I8(1, 6, 5, 4), W(6, 2, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 3),
        Sample(I8(1, 4, 9), W(4, 5, 4), W(5), [3], [1], [2], True, [1], 1),
        Sample(I8(1, 3, 5, 6, 7), W(8, 3, 3, 3, 3), W(8), [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 1),
        Sample(I8(1, 4, 7, 6, 6), W(4, 2, 2, 3, 3), W(4), [2, 2, 1], [0, 1, 0], [2, 1, 1], False, [0, 0, 0], 2),
        Sample(I8(1, 4, 4, 6, 6), W(4, 1, 3, 3, 3), W(4), [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 4),
    ],
)  # fmt: skip
def convolution(
    b: Builder, x: QTensor, w: QTensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, *, out: QParams,
) -> QTensor:  # fmt: skip
    """out[n,o] = bias[o] + sum over i, ky, kx of x[n,i] * w[o,i]: int8[N,C,H,W] -> int8[N,O,OH,OW], exact in int32;
    int16 -> int16, exact in int48.

    Rounded once, by the RESCALE. TOSA 1.0 CONV2D and DEPTHWISE_CONV2D. One spatial dimension is a map of height 1;
    groups other than depthwise are slices of C and a CONCAT, which Vela makes free.
    """
    weight = weight_array(w)
    if transposed:
        return _transposed(b, x, w, bias, stride, padding, dilation, groups, out)
    if x.rank == 5:
        return _three_dimensional(b, x, w, bias, stride, padding, dilation, groups, out)
    if groups == 1 and max(stride) > 3 and set(dilation) == {1}:
        return _patches(b, x, w, bias, stride, padding, out)
    if x.rank == 3:
        (x, weight), stride, padding, dilation = (
            (b.view(x, (*x.shape[:2], 1, x.shape[2])), weight[:, :, None]),
            [1, *stride], [0, *padding], [1, *dilation],
        )  # fmt: skip
        flat = True
    else:
        flat = False
    channels = weight.shape[0]
    scales = accumulator_scales(x, w, channels)
    wide_stride = stride
    if groups == channels:  # strides above 3 in two steps, the second one a choice of every so many results
        stride = [next(s for s in (3, 2, 1) if total % s == 0) if total > 3 else total for total in stride]
    settings = {
        "pad": _trimmed(x.shape[2:], weight.shape[2:], stride, padding, dilation), 
        "stride": _pair(stride), "dilation": _pair(dilation),
        "input_zp": x.qparams.zp, "weight_zp": w.qparams.zero_point[0],
    }  # fmt: skip
    value = b.nhwc(x)
    if value is not x.value and b.forms.get("crop") == "kernel":
        weight = _widened(weight, settings)
    value = _crop(b, value, weight.shape[2:], settings)
    bias32 = np.zeros(channels) if bias is None else real_values(bias)
    per_group = channels // groups
    if groups > 1 and weight.shape[1] == 1:
        depthwise = weight.transpose(2, 3, 1, 0).reshape(*weight.shape[2:], groups, per_group)
        acc = b.emit(
            "DEPTHWISE_CONV2D",
            value,
            b.const(depthwise, name="weight"),
            bias_codes(b, bias32, scales, channels, x.qparams.dtype),
            **settings,
        )
        result = b.requantize(acc, _shared(w, scales), out)
    else:
        parts = []
        for group in range(groups):
            rows = slice(group * per_group, (group + 1) * per_group)
            part = value
            if groups > 1:
                size = (*value.shape[:3], weight.shape[1])
                part = b.emit("SLICE", value, start=(0, 0, 0, group * weight.shape[1]), size=size)
            acc = b.emit(
                "CONV2D", part, b.const(weight[rows].transpose(0, 2, 3, 1), name="weight"),
                bias_codes(b, bias32[rows], scales[rows], per_group, x.qparams.dtype), **settings,
            )  # fmt: skip
            parts.append(b.requantize(acc, _shared(w, scales[rows]), out))
        result = parts[0] if groups == 1 else b.emit("CONCAT", *parts, axis=3)
    y = b.from_nhwc(result, out)
    for axis, (wide, narrow) in enumerate(zip(wide_stride, stride, strict=True)):
        y = every(b, y, 2 + axis, wide // narrow)
    return b.view(y, b.result_shape) if flat else y


def every(b: Builder, x: QTensor, dim: int, step: int) -> QTensor:
    """x[::step] along ``dim``: the axis is folded by ``step``, and the first of each group kept. TOSA 1.0 SLICE."""
    if step == 1 or x.shape[dim] == 1:
        return x
    value, axis, dims = b.axis_of(x, dim)
    count = -(-value.shape[axis] // step)
    missing = count * step - value.shape[axis]
    if missing:  # the last group is short: fill it with what is dropped again
        padding = [0] * (2 * value.rank)
        padding[2 * axis + 1] = missing
        value = b.emit("PAD", value, padding=tuple(padding), pad_const=0)
    outer, inner = math.prod(value.shape[:axis]), math.prod(value.shape[axis + 1 :])
    folded = b.reshape(value, (outer * count, step, inner))
    kept = b.emit("SLICE", folded, start=(0, 0, 0), size=(outer * count, 1, inner))
    return QTensor(b.reshape(kept, (*value.shape[:axis], count, *value.shape[axis + 1 :])), dims, x.q)


def _plain(
    b: Builder, value: Value, weight: np.ndarray, bias: np.ndarray, scales: Sequence[float], x: QTensor, w: QTensor, out: QParams,
    pad: tuple[int, int, int, int] = (0, 0, 0, 0), stride: tuple[int, int] = (1, 1), dilation: tuple[int, int] = (1, 1),
) -> Value:  # fmt: skip
    """CONV2D of a stored [N,H,W,C] with [O,KH,KW,C], requantized."""
    codes = bias_codes(b, bias, scales, len(weight), x.qparams.dtype)
    acc = b.emit(
        "CONV2D", value, b.const(np.ascontiguousarray(weight), name="weight"), codes, pad=pad, stride=stride, dilation=dilation,
        input_zp=x.qparams.zp, weight_zp=w.qparams.zero_point[0],
    )  # fmt: skip
    return b.requantize(acc, _shared(w, list(scales)), out)


def _fitted(b: Builder, x: QTensor, dim: int, before: int, extent: int) -> QTensor:
    """x with ``before`` zeros in front of ``dim`` (negative: without the first), then cut or padded to ``extent``."""
    after = extent - before - x.shape[dim]
    if before == 0 == after:
        return x
    value, axis, dims = b.axis_of(x, dim)
    shape = (math.prod(value.shape[:axis]), value.shape[axis], math.prod(value.shape[axis + 1 :]))
    flat = b.reshape(value, shape)
    if min(before, after) < 0:
        size = shape[1] + min(before, 0) + min(after, 0)
        flat = b.emit("SLICE", flat, start=(0, max(-before, 0), 0), size=(shape[0], size, shape[2]))
    if max(before, after) > 0:
        flat = b.emit("PAD", flat, padding=(0, 0, max(before, 0), max(after, 0), 0, 0), pad_const=x.qparams.zp)
    return QTensor(b.reshape(flat, (*value.shape[:axis], extent, *value.shape[axis + 1 :])), dims, x.q)


def _patches(b: Builder, x: QTensor, w: QTensor, bias: Any, stride: Any, padding: Any, out: QParams) -> QTensor:
    """A convolution with a stride above 3 as space to depth and a small convolution of stride 1.

    Vela would make one convolution per output pixel of it. The kernel is filled up to a multiple of the stride; the order of
    the new channels is the one x is stored in, and the weights follow.
    """
    weight = weight_array(w)
    if x.rank == 3:
        x, weight = b.view(x, (*x.shape[:2], 1, x.shape[2])), weight[:, :, None]
        stride, padding = [1, *stride], [0, *padding]
    channels = len(weight)
    steps, sizes = _pair(stride), (b.result_shape if len(b.result_shape) == 4 else (*b.result_shape[:2], 1, b.result_shape[2]))[2:]
    blocks = [-(-k // s) for k, s in zip(weight.shape[2:], steps, strict=True)]
    counts = [size + block - 1 for size, block in zip(sizes, blocks, strict=True)]
    for axis in (0, 1):
        before = padding[axis] if isinstance(padding[axis], int) else padding[axis][0]
        x = _fitted(b, x, 2 + axis, before, counts[axis] * steps[axis])
    fill = [(0, block * s - k) for block, s, k in zip(blocks, steps, weight.shape[2:], strict=True)]
    n, c = x.shape[:2]
    weight = np.pad(weight, [(0, 0), (0, 0), *fill]).reshape(channels, c, blocks[0], steps[0], blocks[1], steps[1])
    x = b.view(x, (n, c, counts[0], steps[0], counts[1], steps[1]))
    inside = sorted((1, 3, 5), key=lambda dim: x.dims[dim] or (-1,))
    value = b.stored_as(x, [(0,), (2,), (4,), tuple(inside)])
    weight = weight.transpose(0, 2, 4, *inside).reshape(channels, *blocks, -1)
    bias32 = np.zeros(channels) if bias is None else real_values(bias)
    result = _plain(b, value, weight, bias32, accumulator_scales(x, w, channels), x, w, out)
    return b.view(b.from_nhwc(result, out), b.result_shape)


def _transposed(
    b: Builder, x: QTensor, w: QTensor, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, out: QParams
) -> QTensor:
    """out[n,o,s*i+k] += x[n,c,i] * w[c,o,k]: a TRANSPOSE_CONV2D for stride (2, 2) where that is fast, else by phases.

    Every output position y = s*q + r depends on the taps k = r (mod s) only: one convolution of stride 1 with s*s times
    the channels, which lie in between each other afterwards. In one dimension that order costs nothing.
    """
    weight = weight_array(w)
    flat = x.rank == 3
    shape = b.result_shape
    if flat:
        x, weight, shape = b.view(x, (*x.shape[:2], 1, x.shape[2])), weight[:, :, None], (*shape[:2], 1, shape[2])
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    spread = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    full = np.zeros((*weight.shape[:2], *spread), weight.dtype)
    full[:, :, :: dilation[0], :: dilation[1]] = weight
    channels, per_group = full.shape[1] * groups, full.shape[0] // groups
    bias32 = np.zeros(channels) if bias is None else real_values(bias)
    scales = accumulator_scales(x, w, channels)
    if groups > 1 and per_group == full.shape[1] == 1:
        y = _phases(b, x, w, full, bias32, scales, stride, padding, shape, out, depthwise=True)
        return b.view(y, b.result_shape)
    parts = []
    value = b.nhwc(x)
    for group in range(groups):
        rows = slice(group * full.shape[1], (group + 1) * full.shape[1])
        start, size = (0, 0, 0, group * per_group), (*value.shape[:3], per_group)
        part = b.from_nhwc(value if groups == 1 else b.emit("SLICE", value, start=start, size=size), x.q)
        kernel = full[group * per_group : (group + 1) * per_group]
        if groups == 1 and list(stride) == [2, 2] and b.forms.get("transpose_conv") != "CONV2D":
            result = _transpose_conv2d(b, part, w, kernel, bias32[rows], scales[rows], padding, shape, out)
        else:
            result = _phases(b, part, w, kernel, bias32[rows], scales[rows], stride, padding, shape, out, depthwise=False)
        parts.append(result)
    if groups > 1:
        values, dims = b.alike(parts)
        return b.view(QTensor(b.emit("CONCAT", *values, axis=dims[1][0]), dims, out), b.result_shape)
    return b.view(parts[0], b.result_shape)


def _transpose_conv2d(
    b: Builder, x: QTensor, w: QTensor, weight: np.ndarray, bias: np.ndarray, scales: list[float], padding: Any,
    shape: Sequence[int], out: QParams,
) -> QTensor:  # fmt: skip
    """TOSA 1.0 TRANSPOSE_CONV2D, stride (2, 2). Rows that output_padding adds beyond the kernel's reach hold the bias."""
    pads: list[int] = []
    for axis in (0, 1):
        reach = (x.shape[2 + axis] - 1) * 2 + weight.shape[2 + axis]
        pads += [-padding[axis], shape[2 + axis] + padding[axis] - reach]
    acc = b.emit(
        "TRANSPOSE_CONV2D", b.nhwc(x), b.const(np.ascontiguousarray(weight.transpose(1, 2, 3, 0)), name="weight"),
        bias_codes(b, bias, scales, len(bias), x.qparams.dtype), out_pad=tuple(pads), stride=(2, 2), input_zp=x.qparams.zp,
        weight_zp=w.qparams.zero_point[0],
    )  # fmt: skip
    return b.from_nhwc(b.requantize(acc, _shared(w, scales), out), out)


def _phases(
    b: Builder, x: QTensor, w: QTensor, weight: np.ndarray, bias: np.ndarray, scales: list[float], stride: Any, padding: Any,
    shape: Sequence[int], out: QParams, *, depthwise: bool,
) -> QTensor:  # fmt: skip
    """A transposed convolution by phases: weight [I, O, KH, KW] becomes taps [m] of phases [r], k = m*s + r."""
    taps = [max(-(-k // s), 1) for k, s in zip(weight.shape[2:], stride, strict=True)]
    fill = [(0, tap * s - k) for tap, s, k in zip(taps, stride, weight.shape[2:], strict=True)]
    i, o = weight.shape[:2]
    kernel = np.pad(weight, [(0, 0), (0, 0), *fill]).reshape(i, o, taps[0], stride[0], taps[1], stride[1])[:, :, ::-1, :, ::-1]
    firsts = [p // s for p, s in zip(padding, stride, strict=True)]  # whole periods that padding cuts off
    counts = [-(-(size + p - f * s) // s) for size, p, f, s in zip(shape[2:], padding, firsts, stride, strict=True)]
    for axis in (0, 1):
        x = _fitted(b, x, 2 + axis, taps[axis] - 1 - firsts[axis], counts[axis] + taps[axis] - 1)
    value, phases = b.nhwc(x), stride[0] * stride[1]
    if depthwise:
        ready = kernel[:, 0].transpose(1, 3, 0, 2, 4).reshape(*taps, i, phases)
        wide = [scale for scale in scales for _ in range(phases)]
        acc = b.emit(
            "DEPTHWISE_CONV2D", value, b.const(np.ascontiguousarray(ready), name="weight"),
            bias_codes(b, np.repeat(bias, phases), wide, i * phases, x.qparams.dtype), pad=(0, 0, 0, 0), stride=(1, 1),
            dilation=(1, 1), input_zp=x.qparams.zp, weight_zp=w.qparams.zero_point[0],
        )  # fmt: skip
        result = b.requantize(acc, _shared(w, wide), out)
        n, h, wd, _ = result.shape
        y = QTensor(b.reshape(result, (n, h, wd, i, *stride)), ((0,), (3,), (1, 4), (2, 5)), out)
    else:
        ready = kernel.transpose(3, 5, 1, 2, 4, 0).reshape(phases * o, *taps, i)
        result = _plain(b, value, ready, np.tile(bias, phases), scales * phases, x, w, out)
        n, h, wd, _ = result.shape
        y = QTensor(b.reshape(result, (n, h, wd, *stride, o)), ((0,), (5,), (1, 3), (2, 4)), out)
    for axis in (0, 1):
        left = padding[axis] - firsts[axis] * stride[axis]
        if left or counts[axis] * stride[axis] != shape[2 + axis]:
            y = _fitted(b, b.from_nhwc(b.nhwc(y), out), 2 + axis, -left, shape[2 + axis])
    return y


def _three_dimensional(
    b: Builder, x: QTensor, w: QTensor, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, out: QParams
) -> QTensor:
    """[N,C,D,H,W] with [O,C/G,KD,KH,KW]: the planes that a plane of the result depends on, side by side as channels, in one
    CONV2D over all planes as a batch; depthwise, a DEPTHWISE_CONV2D for each of them, added in INT32 (TOSA adds no INT48)."""
    weight = weight_array(w)
    n, c = x.shape[:2]
    channels, depth, reach = len(weight), b.result_shape[2], (weight.shape[2] - 1) * dilation[0] + 1
    before = padding[0] if isinstance(padding[0], int) else padding[0][0]
    x = _fitted(b, x, 2, before, (depth - 1) * stride[0] + reach)
    taps = []
    for k in range(weight.shape[2]):
        start = k * dilation[0]
        plane = _fitted(b, x, 2, -start, (depth - 1) * stride[0] + 1)
        taps.append(b.stored_as(every(b, plane, 2, stride[0]), [(0, 2), (3,), (4,), (1,)]))
    bias32 = np.zeros(channels) if bias is None else real_values(bias)
    scales = accumulator_scales(x, w, channels)
    pad = _trimmed(x.shape[3:], weight.shape[3:], stride[1:], padding[1:], dilation[1:])
    steps, dilations = _pair(stride[1:]), _pair(dilation[1:])
    zero_points = {"input_zp": x.qparams.zp, "weight_zp": w.qparams.zero_point[0]}
    taps = [_crop(b, tap, weight.shape[3:], {"pad": pad}) for tap in taps]
    pad = (pad[0], max(pad[1], 0), pad[2], max(pad[3], 0))
    if groups == channels == c and x.qparams.dtype == "INT8":
        total: Value | None = None
        for k, tap in enumerate(taps):
            kernel = b.const(np.ascontiguousarray(weight[:, 0, k].transpose(1, 2, 0)[..., None]), name="weight")
            codes = bias_codes(b, bias32 if k == 0 else np.zeros(channels), scales, channels, x.qparams.dtype)
            acc = b.emit("DEPTHWISE_CONV2D", tap, kernel, codes, pad=pad, stride=steps, dilation=dilations, **zero_points)
            total = acc if total is None else b.emit("ADD", total, acc)
        assert total is not None
        result = b.requantize(total, _shared(w, scales), out)
    else:
        parts, wide, per_group = [], c // groups, channels // groups
        for group in range(groups):
            rows = slice(group * per_group, (group + 1) * per_group)
            own = taps
            if groups > 1:
                own = [b.emit("SLICE", t, start=(0, 0, 0, group * wide), size=(*t.shape[:3], wide)) for t in taps]
            value = b.emit("CONCAT", *own, axis=3) if len(own) > 1 else own[0]
            kernel_array = weight[rows].transpose(0, 3, 4, 2, 1).reshape(per_group, *weight.shape[3:], -1)
            parts.append(_plain(b, value, kernel_array, bias32[rows], scales[rows], x, w, out, pad, steps, dilations))
        result = b.emit("CONCAT", *parts, axis=3) if groups > 1 else parts[0]
    height, width = result.shape[1:3]
    return QTensor(b.reshape(result, (n, depth, height, width, channels)), ((0,), (4,), (1,), (2,), (3,)), out)


def _shared(w: QTensor, scales: list[float]) -> list[float]:
    """One scale where all channels share it."""
    return scales if w.qparams.per_channel and len(set(scales)) > 1 else scales[:1]


def _trimmed(extents: Sequence[int], kernel: Sequence[int], stride: Any, padding: Any, dilation: Any) -> tuple[int, int, int, int]:
    """(top, bottom, left, right), the far side reduced to what the last window reaches: TOSA wants exact division.

    Negative where even the tensor's own last rows are never read; ``_crop`` removes those.
    """
    pads: list[int] = []
    for extent, k, s, pad, d in zip(extents, kernel, _pair(stride), padding, _pair(dilation), strict=True):
        before, after = (pad, pad) if isinstance(pad, int) else pad
        span = extent + before + after - (k - 1) * d - 1
        pads += [before, after - span % s]
    return (pads[0], pads[1], pads[2], pads[3])


def _widened(weight: np.ndarray, settings: dict[str, Any]) -> np.ndarray:
    """The weight with zeros on its far side, which then read the far rows and columns that ``_crop`` would slice off."""
    top, bottom, left, right = settings["pad"]
    if min(bottom, right) >= 0 or settings["dilation"] != (1, 1):
        return weight
    settings["pad"] = (top, max(bottom, 0), left, max(right, 0))
    far = [(0, 0), (0, 0), (0, max(-bottom, 0)), (0, max(-right, 0))]
    return np.pad(weight, far, constant_values=settings["weight_zp"])


def _crop(b: Builder, value: Value, kernel: Sequence[int], settings: dict[str, Any]) -> Value:
    """Slice off far rows and columns that no window reads, so that the far padding is never negative."""
    top, bottom, left, right = settings["pad"]
    settings["pad"] = (top, max(bottom, 0), left, max(right, 0))
    if bottom >= 0 and right >= 0:
        return value
    n, h, w, c = value.shape
    return b.emit("SLICE", value, start=(0, 0, 0, 0), size=(n, h + min(bottom, 0), w + min(right, 0), c))


@convolution.check
def _(
    x: Any,
    w: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Reason | None:
    if transposed and len(w.shape) == 5:
        return Reason("convolution.transposed_3d", "transposed convolution over three dimensions, allowed are one and two")
    if not isinstance(w, QTensor):
        return Reason("graph.weight_not_quantized", "its weight is float", "Give the quantizer a config for this module.")
    if not w.value.is_const:
        return Reason("convolution.dynamic_weight", "its weight is computed at run time; a constant weight is needed")
    return None
