"""Reductions: mean and sum over any dimensions."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.fx import Node

from ethorch.layout import contiguous
from ethorch.ops.logic import widened
from ethorch.ops.quant_rules import EACH_INPUT, QuantRule
from ethorch.ops.rows import sum_axes
from ethorch.ops.spec import I8, Ints, Sample, Truth, op
from ethorch.qparams import QParams, QTensor
from ethorch.real import Real
from ethorch.sketch import Sketch
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import Value


def sum_over(b: Builder, x: QTensor, dims: Sequence[int], out: QParams, factor: float) -> QTensor:
    """out = factor * sum of x over ``dims`` (kept with extent 1): exact in int32, rounded once. TOSA 1.0 REDUCE_SUM.

    Stored axes that lie side by side are summed as one. Where the sum could leave int32 (65536 elements of int16), partial sums
    lose the bits that are too many. Floats are summed in FP32.
    """
    if out.is_real:
        total = (Real.of(b, x).sum(dims) * factor).t
        return QTensor(b.cast(total.value, out.dtype), total.dims, out)
    reduced = {axis for dim in dims for axis in x.dims[dim] if x.value.shape[axis] > 1}
    kept_dims = tuple(() if dim in dims else axes for dim, axes in enumerate(x.dims))
    runs: list[list[int]] = []
    for axis in range(x.value.rank):
        if runs and axis - 1 in runs[-1] and axis in reduced and axis - 1 in reduced:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    acc = b.rescale(x.value, 1.0, input_zp=x.qparams.zp, dtype="INT32")  # first: a RESHAPE of x would make Vela copy it
    acc = b.reshape(acc, [math.prod(x.value.shape[axis] for axis in run) for run in runs])
    unit, magnitude = 1.0, 1 << _MAGNITUDE_BITS[x.qparams.dtype]
    for index, run in enumerate(runs):
        if run[0] in reduced:
            acc, unit, magnitude = _summed_within_int32(b, acc, index, unit, magnitude)
    result = b.requantize(acc, x.qparams.step * factor * unit, out)
    result = b.reshape(result, [1 if axis in reduced else extent for axis, extent in enumerate(x.value.shape)])
    return QTensor(result, kept_dims, out)


#: Bits of the magnitude of a code without its zero point.
_MAGNITUDE_BITS = {"INT8": 8, "INT16": 15}


def _summed_within_int32(b: Builder, acc: Value, axis: int, unit: float, magnitude: int) -> tuple[Value, float, int]:
    """The sum over ``axis`` of values of at most ``magnitude`` that mean ``unit`` each: (sum, its unit, its magnitude)."""
    extent = acc.shape[axis]
    if extent * magnitude >= 1 << 31:
        first = next(n for n in range(((1 << 31) - 1) // magnitude, 0, -1) if extent % n == 0)
        shape = (*acc.shape[:axis], extent // first, first, *acc.shape[axis + 1 :])
        acc = b.reshape(_summed(b, b.reshape(acc, shape), axis + 1), (*shape[: axis + 1], *shape[axis + 2 :]))
        extent, magnitude = extent // first, magnitude * first
        drop = max((extent * magnitude).bit_length() - 31, 2)
        acc, unit, magnitude = b.rescale(acc, 2.0**-drop, dtype="INT32"), unit * 2.0**drop, (magnitude >> drop) + 1
    return _summed(b, acc, axis), unit, extent * magnitude


def _summed(b: Builder, value: Value, axis: int) -> Value:
    """REDUCE_SUM of one axis of INT32, in as many pieces as the target's limits ask for; exact."""
    shape = value.shape
    folded = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    ranges = b.limits["REDUCE_SUM"].ranges if "REDUCE_SUM" in b.limits else {}
    ranges = ranges if folded[2] > 1 else {name: ranges[name] for name in ranges if name == "extent"}
    for place, feature in enumerate(("outer", "extent", "inner")):
        most = ranges[feature].high if feature in ranges else folded[place]
        if folded[place] <= most:
            continue
        flat, parts = b.reshape(value, folded), []
        whole = next((k for k in range(most, folded[place] // most, -1) if folded[place] % k == 0), 0)
        if feature == "extent" and whole and folded[2] == 1:  # sums of sums need no SLICE of INT32, of which see vela.compile
            rows = b.emit("REDUCE_SUM", b.reshape(flat, (folded[0], folded[1] // whole, whole)), axis=2)
            return b.reshape(b.emit("REDUCE_SUM", rows, axis=1), (*shape[:axis], 1, *shape[axis + 1 :]))
        for start in range(0, folded[place], most):
            starts = tuple(start if k == place else 0 for k in range(3))
            size = tuple(min(most, extent - start) if k == place else extent for k, extent in enumerate(folded))
            parts.append(_summed(b, b.emit("SLICE", flat, start=starts, size=size), 1))
        if feature != "extent":
            total = b.emit("CONCAT", *parts, axis=place)
        else:
            total = functools.reduce(lambda x, y: b.emit("ADD", x, y), parts)
        return b.reshape(total, (*shape[:axis], 1, *shape[axis + 1 :]))
    return b.emit("REDUCE_SUM", value, axis=axis)


#: A mean may be rounded to steps of its input that are up to this many of its own.
_COARSE = 1.0
#: From so many elements on a mean of sums of rows is the cheapest: 14x14x96 takes 5,003 cycles, an AVG_POOL2D 6,217 (u85-256);
#: 5,674 and as a REDUCE_SUM 9,496 (u55-128). Of 7x7x1280, 46,842 and 18,316; 29,056 and 32,120.
_LARGE_MAP = 100
#: Largest kernel of a convolution and largest window of an AVG_POOL2D in one direction.
_KERNEL, _WINDOW = 64, 256


def _mean_of_sums(b: Builder, value: Value, step: float, zp: int, out: QParams) -> Value:
    """Codes of ``out`` of the mean over an int8 [N, H, W, C] in units of ``step``: INT16 sums of its columns, averaged.

    DEPTHWISE_CONV2Ds with weights of 1, exact, and an AVG_POOL2D, where it is exact to an eighth of a step of ``out``; else
    the columns' sums are summed as they are.
    """
    batch, height, width, channels = value.shape
    axis = 1 if height > 1 else 2
    extent, plain = value.shape[axis], {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1)}
    most = math.ceil(extent / math.ceil(extent / _KERNEL))
    unit = 2.0 ** math.floor(math.log2(32767 / (255 * most)))
    averaged = 4 * step / (most * unit) <= out.step
    unit = unit if averaged else 1.0
    none = b.const(np.zeros(channels, np.int32))
    sums: list[Value] = []
    for start in range(0, extent, most):
        rows = min(most, extent - start)
        starts, size = (0, start, 0, 0), (batch, rows, width, channels)
        if axis == 2:
            starts, size = (0, 0, start, 0), (batch, 1, rows, channels)
        part = value if rows == extent else b.emit("SLICE", value, start=starts, size=size)
        ones = b.const(np.ones((rows, 1, channels, 1) if axis == 1 else (1, rows, channels, 1), np.int8))
        acc = b.emit("DEPTHWISE_CONV2D", part, ones, none, **plain, input_zp=zp, weight_zp=0)
        if size[1:3] == (rows, 1) == (height, width):
            return b.requantize(acc, step / rows, out)
        sums.append(b.rescale(acc, unit, dtype="INT16"))
    columns = sums[0] if len(sums) == 1 else b.emit("CONCAT", *sums, axis=axis)
    window, scale = (columns.shape[1], columns.shape[2]), step / (height * width * unit)
    if averaged:
        mean = b.emit("AVG_POOL2D", columns, kernel=window, stride=(1, 1), pad=(0, 0, 0, 0), input_zp=0, output_zp=0)
        return b.requantize(mean, scale * math.prod(window), out)
    if max(window) <= _KERNEL:
        ones, none = b.const(np.ones((*window, channels, 1), np.int8)), b.const(np.zeros(channels, np.int64), "INT48")
        return b.requantize(b.emit("DEPTHWISE_CONV2D", columns, ones, none, **plain, input_zp=0, weight_zp=0), scale, out)
    flat = b.reshape(b.rescale(columns, 1.0, dtype="INT32"), (batch, math.prod(window), channels))
    return b.reshape(b.requantize(_summed(b, flat, 1), scale, out), (batch, 1, 1, channels))


def mean_over(b: Builder, x: QTensor, dims: Sequence[int], out: QParams, factor: float = 1.0) -> QTensor:
    """out = factor * mean of x over ``dims`` (kept with extent 1).

    The sum is exact and takes any output scale. A mean of an int8 map is one of its columns' sums, where that is cheaper. One
    that keeps its input's scale is an AVG_POOL2D; so is, on a target that prefers it, one of a small map whose steps are finer
    than its own, with a RESCALE behind, which rounds twice.
    """
    step = x.qparams.step * factor
    same = (step, out.zero_point, out.dtype) == (out.step, x.qparams.zero_point, x.qparams.dtype) and factor == 1.0
    extents, int8 = x.shape[-2:], x.qparams.dtype == "INT8"
    of_map = 3 <= x.rank <= 4 and sorted(dims) == [x.rank - 2, x.rank - 1] and max(extents) <= _WINDOW
    pools = b.forms.get("mean") == "AVG_POOL2D" and int8
    if of_map and int8 and not same and (math.prod(extents) >= _LARGE_MAP or (pools and step > _COARSE * out.step)):
        return b.from_nhwc(_mean_of_sums(b, b.nhwc(x), step, x.qparams.zp, out), out, x.rank)
    if of_map and (same or pools):
        zp, value = x.qparams.zp, b.nhwc(x)
        value = b.emit("AVG_POOL2D", value, kernel=value.shape[1:3], stride=(1, 1), pad=(0, 0, 0, 0), input_zp=zp, output_zp=zp)
        if not same:
            value = b.rescale(value, step / out.step, input_zp=zp, output_zp=out.zp, dtype=out.dtype)
        return b.from_nhwc(b.clamp(value, out.qmin, out.qmax), out, x.rank)
    count = math.prod(x.shape[dim] for dim in dims)
    return sum_over(b, x, dims, out, factor / count)


def _dims(x: QTensor, dim: Any) -> list[int]:
    """PyTorch's dim argument (one, several, none for all) as non-negative dims."""
    dims = [dim] if isinstance(dim, int) else list(dim or range(x.rank))
    return [d % x.rank for d in dims]


@op(
    "aten.mean.dim", quant=EACH_INPUT, bound=2, also={"aten.mean.default": lambda x, **kwargs: ((x, None, False), kwargs)},
    samples=[
        Sample(I8(1, 8, 7, 7), [2, 3], True), Sample(I8(2, 6, 5, 4), [-1, -2]), Sample(I8(1, 8, 4, 4), [1], True),
        Sample(I8(3, 10), [1]), Sample(I8(2, 3, 4), None), Sample(I8(1, 2, 256, 400), [2, 3]), Sample(I8(2, 1, 3, 2, 5), [0, 3]),
        Sample(I8(1, 2, 3, 2, 3, 4), [-2], True),
        Sample(I8(2, 3, 70, 90), [2, 3]), Sample(I8(1, 4, 1, 130), [2, 3], True), Sample(I8(1, 5, 12, 9), [2, 3]),
    ],
)  # fmt: skip
def mean(b: Builder, x: QTensor, dim: Any = None, keepdim: bool = False, *, out: QParams, dtype: Any = None) -> QTensor:
    """out = mean of x over ``dim``, int8 or int16: the sum is exact, rounded once; a large map's to an eighth of a step before.
    The bound: on a target that prefers AVG_POOL2D a small map's may be rounded to its input's step first, if that is no coarser."""
    return b.view(mean_over(b, x, _dims(x, dim), out), b.result_shape)


@op(
    "aten.sum.dim_IntList", quant=EACH_INPUT, also={"aten.sum.default": lambda x, **kwargs: ((x, None, False), kwargs)},
    samples=[Sample(I8(1, 8, 5, 5), [2, 3]), Sample(I8(2, 6, 5), [-1], True), Sample(I8(1, 4, 6, 6), [1], True),
             Sample(I8(3, 2, 1), [1]), Sample(Ints(30, 4, 2), [1, 2]), Sample(Truth(25, 9), [1])],
)  # fmt: skip
def sum_(b: Builder, x: QTensor, dim: Any = None, keepdim: bool = False, *, out: QParams | None, dtype: Any = None) -> QTensor:
    """out = sum of x over ``dim``: int8 -> int8, exact in int32, rounded once; plain integers -> int32."""
    if out is None:
        axes = [axis for d in _dims(x, dim) for axis in x.dims[d]]
        total = sum_axes(b, widened(b, x.value), axes)
        return b.view(QTensor(total, x.dims, None), b.result_shape)
    return b.view(sum_over(b, x, _dims(x, dim), out, 1.0), b.result_shape)


def _index_of_extreme(b: Builder, x: QTensor, dim: int | None, least: bool) -> QTensor:
    """int32 index along ``dim`` (all dims of None) of the largest or least code; the first of several. TOSA 1.0 ARGMAX."""
    dims = list(range(x.rank)) if dim is None else [dim % x.rank]
    rest = [d for d in range(x.rank) if d not in dims]
    value = b.stored_as(x, [(), (), rest, dims])  # along the channels of one picture, the only way U55 has
    if least:
        ones = b.const(np.full((1, 1, 1, 1), -1, np.int32))
        reversed_ = b.emit("SUB", ones, b.rescale(value, 1.0, dtype="INT32"))  # -1 - code is a code
        value = b.rescale(reversed_, 1.0, dtype=value.dtype)
    result = b.reshape(b.emit("ARGMAX", value, axis=3), [x.shape[d] for d in rest])
    return b.view(QTensor(result, contiguous(result.shape), None), b.result_shape)


_INDICES = [
    Sample(I8(1, 5, 4, 10), -1), Sample(I8(2, 7, 3), 1, True), Sample(I8(3, 5), None), Sample(I8(1, 8, 4, 5), 1),
]  # fmt: skip


@op("aten.argmax.default", quant=QuantRule(output="none"), samples=_INDICES)
def argmax(b: Builder, x: QTensor, dim: int | None = None, keepdim: bool = False, *, out: None) -> QTensor:
    """out = index of x's maximum along ``dim``, the first of several: int8 or int16 -> int32, to be read as int32."""
    return _index_of_extreme(b, x, dim, False)


@op("aten.argmin.default", quant=QuantRule(output="none"), samples=_INDICES)
def argmin(b: Builder, x: QTensor, dim: int | None = None, keepdim: bool = False, *, out: None) -> QTensor:
    """out = index of x's minimum along ``dim``, the first of several: int8 or int16 -> int32, to be read as int32."""
    return _index_of_extreme(b, x, dim, True)


def _cast_twice(s: Sketch, x: Node, dim: int | None = None, keepdim: bool = False) -> Node | None:
    """The index as int32, which the NPU has, and that as int64: only the second cast is left to the CPU."""
    if all(isinstance(user.target, OpOverload) and user.meta["val"].dtype == torch.int32 for user in s.node.users):
        return None
    index = s(s.node.target, x, dim, keepdim)
    return s(torch.ops.aten._to_copy.default, s(torch.ops.aten._to_copy.default, index, dtype=torch.int32), dtype=torch.int64)


argmax.integer_decomposition(_cast_twice)
argmin.integer_decomposition(_cast_twice)


@sum_.floats
def _(b: Builder, x: QTensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Real:
    return Real.of(b, x).sum(_dims(x, dim)).view(b.result_shape)


@argmin.floats
def _(b: Builder, x: QTensor, dim: int | None = None, keepdim: bool = False) -> QTensor:
    opposite = b.emit("NEGATE", x.value, input_zp=0, output_zp=0)
    return _index_of_extreme(b, QTensor(opposite, x.dims, x.q), dim, False)
