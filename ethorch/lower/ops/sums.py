"""Sums and means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.floats import FloatTensor
from ethorch.lower.builder.qparams import QParams, QTensor, Result
from ethorch.lower.builder.reductions import all_dims, compute_in_pieces, sum_axes, sum_axis, with_reduced_dims
from ethorch.lower.ops.quant_rules import EACH_INPUT
from ethorch.lower.ops.samples import I8, Bools, Ints, Sample
from ethorch.lower.ops.spec import op
from ethorch.tosa.ir import Value
from ethorch.tosa.layout import join_axes

#: Bits of the magnitude of an integer value minus its zero point.
_MAGNITUDE_BITS = {"INT8": 8, "INT16": 15}
#: Smallest feature map whose mean is cheapest as an average of column sums. Vela cycles for 14x14x96: 5,674 (REDUCE_SUM: 9,496) on
#: u55-128, 5,003 (AVG_POOL2D: 6,217) on u85-256.
_LARGE_MAP = 100
#: Largest kernel of a convolution, and largest window of an AVG_POOL2D, along one axis (Vela SUPPORTED_OPS).
_KERNEL, _WINDOW = 64, 256


def sum_over(b: Builder, x: QTensor, dims: Sequence[int], out: QParams, factor: float) -> QTensor:
    """Return factor * sum of x over ``dims``, computed in int32 (FP32 for floats) and rounded once. Reduced dims have size 1.

    If the sum can exceed int32, e.g. for 65536 elements of int16, partial sums are rounded to fewer bits before they are added.
    """
    if out.is_float:
        total = (FloatTensor.of(b, x).sum(dims) * factor).t
        return QTensor(b.cast(total.value, out.dtype), total.dims, out)
    return compute_in_pieces(b, x, dims, lambda rows: _sum_integers(b, rows, dims, out, factor))


def _sum_integers(b: Builder, x: QTensor, dims: Sequence[int], out: QParams, factor: float) -> QTensor:
    reduced = {axis for dim in dims for axis in x.dims[dim]}
    joined, places = join_axes(x.value.shape, reduced)
    acc = b.rescale(x.value, 1.0, input_zp=x.qparams.zp, dtype="INT32")  # before the RESHAPE, because Vela copies a reshaped tensor
    acc = b.reshape(acc, joined)
    unit, magnitude = 1.0, 1 << _MAGNITUDE_BITS[x.qparams.dtype]
    for place in places:
        acc, unit, magnitude = _sum_within_int32(b, acc, place, unit, magnitude)
    result = b.requantize(acc, x.qparams.step * factor * unit, out)
    result = b.reshape(result, [1 if axis in reduced else extent for axis, extent in enumerate(x.value.shape)])
    return with_reduced_dims(x, result, dims, out)


def _sum_within_int32(b: Builder, acc: Value, axis: int, unit: float, magnitude: int) -> tuple[Value, float, int]:
    extent = acc.shape[axis]
    if extent * magnitude >= 1 << 31:
        most = ((1 << 31) - 1) // magnitude
        first = next(n for n in range(most, 0, -1) if extent % n == 0)
        if first < most // 8:  # rounding many halves up would add a bias
            parts = -(-extent // most)
            first = -(-extent // parts)
            padding = [0] * (2 * acc.rank)
            padding[2 * axis + 1] = parts * first - extent
            acc = b.emit("PAD", acc, padding=tuple(padding), pad_const=0)
            extent = parts * first
        shape = (*acc.shape[:axis], extent // first, first, *acc.shape[axis + 1 :])
        acc = b.reshape(sum_axis(b, b.reshape(acc, shape), axis + 1), (*shape[: axis + 1], *shape[axis + 2 :]))
        extent, magnitude = extent // first, magnitude * first
        drop = max((extent * magnitude).bit_length() - 31, 2)
        acc, unit, magnitude = b.rescale(acc, 2.0**-drop, dtype="INT32"), unit * 2.0**drop, (magnitude >> drop) + 1
    return sum_axis(b, acc, axis), unit, extent * magnitude


def mean_over(b: Builder, x: QTensor, dims: Sequence[int], out: QParams, factor: float = 1.0) -> QTensor:
    """Return factor * mean of x over ``dims``, using the first method that applies. Reduced dims have size 1.

    If ``dims`` are the height and width of a feature map of up to 256 x 256, the methods are:

    - ``_average_sums``, for int8 maps with at least 100 positions if the quantization parameters of ``out`` and x differ.
      Smaller maps also use it if the target prefers AVG_POOL2D and ``out`` has the finer scale.
    - AVG_POOL2D, if the quantization parameters are equal and ``factor`` is 1.
    - AVG_POOL2D and RESCALE, which round twice, for int8 if the target prefers AVG_POOL2D.

    Other means use ``sum_over``, which rounds once.
    """
    step = x.qparams.step * factor
    same = (step, out.zero_point, out.dtype) == (out.step, x.qparams.zero_point, x.qparams.dtype) and factor == 1.0
    extents, int8 = x.shape[-2:], x.qparams.dtype == "INT8"
    of_map = 3 <= x.rank <= 4 and sorted(dims) == [x.rank - 2, x.rank - 1] and max(extents) <= _WINDOW
    pools = b.tuning.mean == "AVG_POOL2D" and int8
    sums_in_16_bits = of_map and int8 and not same and b.accepts("AVG_POOL2D", "INT16")
    if sums_in_16_bits and (math.prod(extents) >= _LARGE_MAP or (pools and step > out.step)):
        return b.from_nhwc(_average_sums(b, b.nhwc(x), step, x.qparams.zp, out), out, x.rank)
    if of_map and (same or pools):
        zp, value = x.qparams.zp, b.nhwc(x)
        value = b.emit("AVG_POOL2D", value, kernel=value.shape[1:3], stride=(1, 1), pad=(0, 0, 0, 0), input_zp=zp, output_zp=zp)
        if not same:
            value = b.rescale(value, step / out.step, input_zp=zp, output_zp=out.zp, dtype=out.dtype)
        return b.from_nhwc(b.clamp(value, out.qmin, out.qmax), out, x.rank)
    count = math.prod(x.shape[dim] for dim in dims)
    return sum_over(b, x, dims, out, factor / count)


def _average_sums(b: Builder, value: Value, step: float, zp: int, out: QParams) -> Value:
    # The mean of an int8 value [N,H,W,C] with scale ``step`` is computed from exact INT16 sums of columns.
    # An AVG_POOL2D averages the sums if the mean is exact to an eighth of a step of ``out``. Otherwise the sums are added.
    batch, height, width, channels = value.shape
    axis = 1 if height > 1 else 2
    extent = value.shape[axis]
    most = math.ceil(extent / math.ceil(extent / _KERNEL))
    unit = 2.0 ** math.floor(math.log2(32767 / (255 * most)))
    averaged = 4 * step / (most * unit) <= out.step
    unit = unit if averaged else 1.0
    no_bias = b.no_bias(channels, "INT8")
    sums: list[Value] = []
    for start in range(0, extent, most):
        rows = min(most, extent - start)
        part = b.slice_axis(value, axis, start, rows)
        ones = b.const(np.ones((rows, 1, channels, 1) if axis == 1 else (1, rows, channels, 1), np.int8))
        acc = b.depthwise_conv2d(part, ones, no_bias, input_zp=zp)
        if part.shape[1:3] == (rows, 1) == (height, width):
            return b.requantize(acc, step / rows, out)
        sums.append(b.rescale(acc, unit, dtype="INT16"))
    columns = sums[0] if len(sums) == 1 else b.emit("CONCAT", *sums, axis=axis)
    window, scale = (columns.shape[1], columns.shape[2]), step / (height * width * unit)
    if averaged:
        mean = b.emit("AVG_POOL2D", columns, kernel=window, stride=(1, 1), pad=(0, 0, 0, 0), input_zp=0, output_zp=0)
        return b.requantize(mean, scale * math.prod(window), out)
    if max(window) <= _KERNEL:
        total = b.depthwise_conv2d(columns, b.const(np.ones((*window, channels, 1), np.int8)))
        return b.requantize(total, scale, out)
    flat = b.reshape(b.rescale(columns, 1.0, dtype="INT32"), (batch, math.prod(window), channels))
    return b.reshape(b.requantize(sum_axis(b, flat, 1), scale, out), (batch, 1, 1, channels))


@op(
    "aten.mean.dim",
    quant=EACH_INPUT,
    bound=2,
    also={"aten.mean.default": lambda x, **kwargs: ((x, None, False), kwargs)},
    samples=[
        Sample(I8(1, 8, 7, 7), [2, 3], True),
        Sample(I8(2, 6, 5, 4), [-1, -2]),
        Sample(I8(1, 8, 4, 4), [1], True),
        Sample(I8(3, 10), [1]),
        Sample(I8(2, 3, 4), None),
        Sample(I8(1, 2, 256, 400), [2, 3]),
        Sample(I8(2, 1, 3, 2, 5), [0, 3]),
        Sample(I8(1, 2, 3, 2, 3, 4), [-2], True),
        Sample(I8(2, 3, 70, 90), [2, 3]),
        Sample(I8(1, 4, 1, 130), [2, 3], True),
        Sample(I8(1, 5, 12, 9), [2, 3]),
    ],
)
def mean(b: Builder, x: QTensor, dim: Any = None, keepdim: bool = False, *, out: Result, dtype: Any = None) -> QTensor:
    """Return the mean of x over ``dim``, usually from an exact sum rounded once. TOSA REDUCE_SUM, AVG_POOL2D.

    int8 means of feature maps can be rounded twice. See ``mean_over``.
    """
    return b.view(mean_over(b, x, all_dims(x, dim), out.qparams), out.shape)


def sum_of_floats(b: Builder, x: QTensor, dim: Any = None, keepdim: bool = False, *, out: Result, dtype: Any = None) -> FloatTensor:
    return FloatTensor.of(b, x).sum(all_dims(x, dim)).view(out.shape)


@op(
    "aten.sum.dim_IntList",
    quant=EACH_INPUT,
    also={"aten.sum.default": lambda x, **kwargs: ((x, None, False), kwargs)},
    floats=sum_of_floats,
    samples=[
        Sample(I8(1, 8, 5, 5), [2, 3]),
        Sample(I8(2, 6, 5), [-1], True),
        Sample(I8(1, 4, 6, 6), [1], True),
        Sample(I8(3, 2, 1), [1]),
        Sample(Ints(30, 4, 2), [1, 2]),
        Sample(Bools(25, 9), [1]),
    ],
)
def sum_(b: Builder, x: QTensor, dim: Any = None, keepdim: bool = False, *, out: Result, dtype: Any = None) -> QTensor:
    """Return the sum of x over ``dim``, rounded once if it fits into int32. Plain integers are summed in int32. TOSA REDUCE_SUM."""
    if out.q is None:

        def total(rows: QTensor) -> QTensor:
            axes = [axis for d in all_dims(x, dim) for axis in rows.dims[d]]
            return QTensor(sum_axes(b, b.widen(rows.value), axes), rows.dims, None)

        return b.view(compute_in_pieces(b, x, all_dims(x, dim), total), out.shape)
    return b.view(sum_over(b, x, all_dims(x, dim), out.q, 1.0), out.shape)
