"""Nearest and linear resizing in one and two dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.ops.gather import rows_of
from ethorch.lower.ops.quant_rules import AVERAGED, SAME_AS_INPUT
from ethorch.lower.ops.samples import I8, Sample
from ethorch.lower.ops.spec import op
from ethorch.support.errors import Reason, Unsupported
from ethorch.tosa.ir import Value

#: Maximum denominator of a scale factor, e.g. 5 for 1.6 = 8 / 5.
_FINEST = 256


def _resize(b: Builder, x: QTensor, sizes: Sequence[int], numbers: Sequence[tuple[int, int, int]], mode: str) -> QTensor:
    value = b.nhwc(x)
    border = [
        (size - 1) * den + offset - (extent - 1) * num
        for size, extent, (num, den, offset) in zip(sizes, value.shape[1:3], numbers, strict=True)
    ]
    scale = tuple(part for num, den, _ in numbers for part in (num, den))
    result = b.emit("RESIZE", value, scale=scale, offset=tuple(n[2] for n in numbers), border=tuple(border), mode=mode)
    if mode == "BILINEAR" and not x.is_float:  # weights add up to the product of the numerators
        result = b.rescale(result, 1 / (numbers[0][0] * numbers[1][0]), dtype=value.dtype)
    return b.from_nhwc(result, x.q, x.rank)


def _resizable(extents: Sequence[int], sizes: Sequence[int], numbers: Sequence[tuple[int, int, int]]) -> bool:
    return max(*extents, *sizes) < 16384 and all(num <= 2048 and den < 16 * num for num, den, _ in numbers)


def _repeat(b: Builder, x: QTensor, dim: int, factor: int) -> QTensor:
    if factor == 1:
        return x
    value, axis, dims = b.axis_of(x, dim)
    shape = value.shape
    flat = b.reshape(value, (math.prod(shape[: axis + 1]), 1, math.prod(shape[axis + 1 :])))
    tiled = b.emit("TILE", flat, multiples=(1, factor, 1))
    return QTensor(b.reshape(tiled, (*shape[:axis], shape[axis] * factor, *shape[axis + 1 :])), dims, x.q)


def uneven(extent: int, size: int, scale: float | None) -> float | None:
    """Return ``scale`` if PyTorch's source positions depend on it, or None if they follow from ``extent`` and ``size``."""
    return scale if scale and size != extent and Fraction(scale) * extent != size else None


def nearest(b: Builder, x: QTensor, size: tuple[int, int], scales: Sequence[float | None] = (None, None)) -> QTensor:
    """Return x[..., floor(i * H / size[0]), floor(j * W / size[1])].

    Integer factors use a RESIZE or TILEs. Otherwise, rows and then columns are selected.
    """
    uneven_scales = [uneven(extent, count, scale) for extent, count, scale in zip(x.shape[-2:], size, scales, strict=True)]
    ratios = [Fraction(wide, have) for wide, have in zip(size, x.shape[-2:], strict=True)]
    places = [nearest_rows(*parts) for parts in zip(x.shape[-2:], size, uneven_scales, strict=True)]
    exact = [np.arange(count) * extent // count for extent, count in zip(x.shape[-2:], size, strict=True)]
    is_integer = all(map(np.array_equal, places, exact)) and all(ratio.denominator == 1 for ratio in ratios)
    easy = ratios[0] == ratios[1] and ratios[0] in (2, 4, 8)
    if is_integer and ratios == [1, 1]:
        return x
    numbers = [(int(2 * r), 2, 1 - int(r)) for r in ratios]
    if is_integer and (easy or b.tuning.resize == "any") and _resizable(x.shape[-2:], size, numbers):
        if x.rank == 4 and x.shape[0] > 1 and b.tuning.resize == "doubling":
            images = [_resize(b, b.narrow(x, 0, n, 1), size, numbers, "NEAREST") for n in range(x.shape[0])]
            return b.concat(images, 0)
        return _resize(b, x, size, numbers, "NEAREST")
    if is_integer:
        return _repeat(b, _repeat(b, x, -2, int(ratios[0])), -1, int(ratios[1]))
    for dim, rows in zip((-2, -1), places, strict=True):
        x = rows_of(b, x, dim, rows)
    return x


def nearest_rows(extent: int, count: int, scale: float | None) -> npt.NDArray[np.int64]:
    """Return the source row of each of ``count`` rows, computed in FP32 as in PyTorch."""
    step = np.float32(1 / scale) if scale else np.float32(extent) / np.float32(count)
    rows: npt.NDArray[np.int64] = np.floor(np.arange(count, dtype=np.float32) * step).astype(np.int64)
    return np.minimum(rows, extent - 1)


def _vec(x: Any, size: Any, *rest: Any) -> Any:
    factors = rest[-1]
    return (x, size, *rest[:-1], *(factors if factors else (None,) * (len(x.shape) - 2))), {}


_UPSAMPLE = [
    Sample(I8(1, 8, 5, 6), [10, 12]), Sample(I8(2, 4, 5, 3), [10, 6]), Sample(I8(1, 5, 4, 6), [12, 12]),
    Sample(I8(1, 3, 5, 7), [7, 9]), Sample(I8(1, 4, 4, 4), [16, 16]), Sample(I8(1, 4, 8, 8), [5, 4]),
]  # fmt: skip


@op(
    "aten.upsample_nearest2d.default",
    quant=SAME_AS_INPUT,
    also={"aten.upsample_nearest2d.vec": _vec},
    samples=[*_UPSAMPLE, Sample(I8(1, 3, 4, 9), [6, 6], 1.6, 0.75)],
)
def upsample_nearest2d(b: Builder, x: QTensor, size: Any, scales_h: Any = None, scales_w: Any = None, *, out: Result) -> QTensor:
    """Compute out[n,c,i,j] = x[n,c, floor(i * H / OH), floor(j * W / OW)]: int8[N,C,H,W] -> int8[N,C,OH,OW]."""
    height, width = out.shape[-2:]
    return b.to_qparams(nearest(b, x, (height, width), (scales_h, scales_w)), out.q)


@op(
    "aten.upsample_nearest1d.default",
    quant=SAME_AS_INPUT,
    also={"aten.upsample_nearest1d.vec": _vec},
    samples=[Sample(I8(1, 4, 9), [18]), Sample(I8(2, 3, 6), [18]), Sample(I8(2, 3, 9), [15], 1.7)],
)
def upsample_nearest1d(b: Builder, x: QTensor, size: Any, scales: Any = None, *, out: Result) -> QTensor:
    """Compute out[n,c,i] = x[n,c, floor(i * L / OL)]: int8[N,C,L] -> int8[N,C,OL]."""
    flat = b.view(x, (*x.shape[:2], 1, x.shape[2]))
    return b.to_qparams(b.view(nearest(b, flat, (1, out.shape[-1]), (None, scales)), out.shape), out.q)


def _positions(extent: int, size: int, align: bool, scale: float | None) -> npt.NDArray[np.float64]:
    i = np.arange(size)
    step = 1 / scale if scale else extent / size
    where = i * ((extent - 1) / max(size - 1, 1)) if align else (i + 0.5) * step - 0.5
    return np.clip(where, 0, extent - 1)


def _bilinear_numbers(extent: int, size: int, align: bool, scale: float | None) -> tuple[int, int, int]:
    if align:
        ratio = Fraction(max(size - 1, 1), max(extent - 1, 1))
        return ratio.numerator, ratio.denominator, 0
    ratio = Fraction(scale).limit_denominator(_FINEST) if scale else Fraction(size, extent)
    num, den = 2 * ratio.numerator, 2 * ratio.denominator
    return num, den, (den - num) // 2


def _by_boxes(b: Builder, x: QTensor, factors: tuple[int, int]) -> QTensor:
    # Repeats elements, averages f (odd f) or f + 1 (even f) neighbors for integer factors f, and rounds once.
    # If f is even, the first and the last neighbor have half the weight.
    kernels, margins = [], []
    for dim, factor in zip((-2, -1), factors, strict=True):
        kernel = np.full(factor, 1) if factor % 2 else np.array([1, *[2] * (factor - 1), 1])
        kernels.append(kernel)
        if factor > 1:
            last = x.shape[dim] - 1
            x = b.concat([b.narrow(x, dim, 0, 1), x, b.narrow(x, dim, last, 1)], dim)
        margins.append(factor - (len(kernel) - 1) // 2 if factor > 1 else 0)
    grown = nearest(b, x, (x.shape[-2] * factors[0], x.shape[-1] * factors[1]))
    for dim, margin in zip((-2, -1), margins, strict=True):
        grown = b.narrow(grown, dim, margin, grown.shape[dim] - 2 * margin)
    value, channels = b.nhwc(grown), grown.shape[-3]
    area = np.outer(*kernels)
    weight = np.broadcast_to(area[:, :, None, None], (*area.shape, channels, 1)).astype(np.int8)
    acc = b.depthwise_conv2d(value, b.const(np.ascontiguousarray(weight), name="weight"), input_zp=x.qparams.zp)
    result = b.rescale(acc, 1 / float(area.sum()), output_zp=x.qparams.zp, dtype=value.dtype)
    return b.from_nhwc(result, x.q, x.rank)


def _common_denominator(extent: int, size: int, align: bool, scale: float | None) -> int:
    if scale:
        step = 1 / Fraction(scale).limit_denominator(_FINEST)
        return math.lcm(*(((2 * i + 1) * step / 2 - Fraction(1, 2)).denominator for i in range(size)))
    if align:
        return Fraction(extent - 1, max(size - 1, 1)).denominator
    return math.lcm(*(Fraction((2 * i + 1) * extent - size, 2 * size).denominator for i in range(size)))


#: Maximum number of elements of an interpolation matrix (64 MiB of flash).
_MOST_WEIGHTS = 2**26


def _by_matrix(b: Builder, x: QTensor, dim: int, size: int, align: bool, scale: float | None = None) -> QTensor:
    # The step of the matrix is 1 / the common denominator of the positions if int8 represents that step, and 1/127 otherwise. For
    # int16 with a step of 1/127, a second product adds the remainders.
    extent = x.shape[dim]
    if extent == size and not scale:
        return x
    if size * extent > _MOST_WEIGHTS:
        raise Unsupported(
            Reason(
                "upsample.matrix",
                f"interpolating {extent:,} elements to {size:,} requires a matrix of {size * extent:,} weights; "
                f"expected at most {_MOST_WEIGHTS:,}",
                "Upsample by an integer factor with align_corners=False.",
            )
        )
    where, common = _positions(extent, size, align, scale), _common_denominator(extent, size, align, scale)
    steps = common if common <= 127 else 127
    low = np.minimum(where.astype(int), max(extent - 2, 0))
    upper = np.rint((where - low) * steps).astype(int)
    weight = np.zeros((size, extent), np.int8)
    weight[np.arange(size), low] = steps - upper
    if extent > 1:
        weight[np.arange(size), low + 1] += upper.astype(np.int8)
    others = [d for d in range(x.rank) if d != dim % x.rank]
    value = b.store_as(x, [(), tuple(others), (), (dim % x.rank,)])
    result = _product(b, value, weight, 1 / steps, x.qparams.zp)
    if steps != common and value.dtype == "INT16" and extent > 1:
        rest = np.zeros((size, extent), np.int8)
        rest[np.arange(size), low + 1] = np.rint((where - low - upper / steps) * steps * 127)
        rest[np.arange(size), low] -= rest[np.arange(size), low + 1]
        parts = [b.rescale(part, 1.0, dtype="INT32") for part in (result, _product(b, value, rest, 1 / steps / 127, 0))]
        result = b.rescale(b.emit("ADD", *parts), 1.0, dtype="INT16")
    return b.from_order(b.reshape(result, (*(x.shape[d] for d in others), size)), [*others, dim % x.rank], x.q)


def _product(b: Builder, value: Value, weight: npt.NDArray[Any], unit: float, zp: int) -> Value:
    size, extent = weight.shape
    acc = b.conv2d(value, b.const(weight.reshape(size, 1, 1, extent), name="weight"), input_zp=zp)
    return b.rescale(acc, unit, output_zp=zp, dtype=value.dtype)


def bilinear(b: Builder, x: QTensor, size: tuple[int, int], align: bool, scales: Sequence[float | None] = (None, None)) -> QTensor:
    """Resize x[..., H, W] bilinearly to ``size``, using the first method that applies.

    - A single row or column is repeated, because Vela does not support a RESIZE of it.
    - Resize scales that TOSA and the target support use a RESIZE.
    - Integer factors without ``align`` use averages of repeated elements.
    - Other factors use a matrix product along each dim.
    """
    for dim, wide in zip((-2, -1), size, strict=True):
        if x.shape[dim] == 1 < wide:
            return _repeat(b, bilinear(b, x, (1, size[1]) if dim == -2 else (size[0], 1), align, scales), dim, wide)
    uneven_scales = [None if align else uneven(*axis) for axis in zip(x.shape[-2:], size, scales, strict=True)]
    if tuple(x.shape[-2:]) == tuple(size) and not any(uneven_scales):
        return x
    if b.tuning.resize == "any":
        axes = zip(x.shape[-2:], size, uneven_scales, strict=True)
        numbers = [_bilinear_numbers(extent, wide, align, scale) for extent, wide, scale in axes]
        if _resizable(x.shape[-2:], size, numbers):
            return _resize(b, x, size, numbers, "BILINEAR")
    factors = [Fraction(wide, have) for wide, have in zip(size, x.shape[-2:], strict=True)]
    if not align and not any(uneven_scales) and all(factor.denominator == 1 for factor in factors):
        return _by_boxes(b, x, (int(factors[0]), int(factors[1])))
    return _by_matrix(b, _by_matrix(b, x, -2, size[0], align, uneven_scales[0]), -1, size[1], align, uneven_scales[1])


_UNEVEN = (Sample(I8(1, 2, 5, 7), [64, 90]), Sample(I8(2, 4, 1, 1), [3, 5]), Sample(I8(1, 3, 1, 6), [4, 9]))


@op(
    "aten.upsample_bilinear2d.default",
    quant=AVERAGED,
    also={"aten.upsample_bilinear2d.vec": _vec},
    bound=2,
    bound16=3,
    samples=[Sample(*sample.args, align) for align in (False, True) for sample in (*_UPSAMPLE, *_UNEVEN)]
    + [Sample(I8(1, 3, 4, 9), [6, 6], False, 1.6, 0.75)],
)
def upsample_bilinear2d(
    b: Builder, x: QTensor, size: Any, align_corners: bool, scales_h: Any = None, scales_w: Any = None, *, out: Result
) -> QTensor:
    """Resize x by bilinear interpolation: int8[N,C,H,W] -> int8[N,C,OH,OW]. TOSA RESIZE, CONV2D, DEPTHWISE_CONV2D.

    The result is rounded once, or several times if computed by matrix products.
    """
    height, width = out.shape[-2:]
    return b.to_qparams(bilinear(b, x, (height, width), align_corners, (scales_h, scales_w)), out.q)


def upsample_linear1d_of_floats(
    b: Builder, x: QTensor, size: Any, align_corners: bool, scales: Any = None, *, out: Result
) -> QTensor:
    flat = b.view(x, (*x.shape[:2], 1, x.shape[2]))
    return b.view(bilinear(b, flat, (1, out.shape[-1]), align_corners, (None, scales)), out.shape)


@op(
    "aten.upsample_linear1d.default",
    quant=AVERAGED,
    also={"aten.upsample_linear1d.vec": _vec},
    floats=upsample_linear1d_of_floats,
    samples=[Sample(I8(1, 4, 9), [18], False), Sample(I8(2, 3, 6), [9], True), Sample(I8(2, 3, 9), [15], False, 1.7)],
)
def upsample_linear1d(b: Builder, x: QTensor, size: Any, align_corners: bool, scales: Any = None, *, out: Result) -> QTensor:
    """Resize x by linear interpolation: int8[N,C,L] -> int8[N,C,OL]. TOSA CONV2D, DEPTHWISE_CONV2D.

    The result is rounded once, or twice for some sizes in int16.
    """
    flat = b.view(x, (*x.shape[:2], 1, x.shape[2]))
    target = (1, out.shape[-1])
    return b.to_qparams(b.view(_linear(b, flat, target, align_corners, scales), out.shape), out.q)


def _linear(b: Builder, x: QTensor, size: tuple[int, int], align: bool, scale: float | None) -> QTensor:
    factor = Fraction(size[1], x.shape[-1])
    scale = None if align else uneven(x.shape[-1], size[1], scale)
    if not align and not scale and factor.denominator == 1:
        return _by_boxes(b, x, (1, int(factor)))
    return _by_matrix(b, x, -1, size[1], align, scale)
