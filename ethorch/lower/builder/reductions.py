"""Sums, sums of squares, extremes, and interpolated tables for functions of sums."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor
from ethorch.targets.tuning import BRICK
from ethorch.tosa.ir import Value
from ethorch.tosa.layout import around, join_axes

#: First and last input of a section's TABLE (TOSA 1.0: 513 entries for int16).
_FIRST, _LAST = -32768, -32768 + 511 * 128
#: Fractional bits of the mean of int16 values.
REST_BITS = 6
#: Longest row that is summed in one step, maximum number of elements per step in a longer row (128 squares of 31 bits retain 24
#: bits each), and maximum number of sums that the last step adds.
_LONG_ROW, _LARGEST_PART, _FEW_SUMS = 1024, 128, 32
#: Longest axis that is moved. Concatenating the sections of a longer axis costs more than the sums.
_LONGEST_MOVED = 65536
#: Upper bound for sums of squares.
_HIGHEST = 2.0**31 - 4096


def sum_axes(b: Builder, acc: Value, axes: Collection[int]) -> Value:
    """Return exact INT32 sums over ``axes``. Reduced axes have size 1. Adjacent axes are reduced together."""
    shape = acc.shape
    joined, places = join_axes(shape, axes)
    acc = b.reshape(acc, joined)
    for place in places:
        acc = sum_axis(b, acc, place)
    return b.reshape(acc, [1 if axis in axes else extent for axis, extent in enumerate(shape)])


def sum_axis(b: Builder, value: Value, axis: int) -> Value:
    """Return exact INT32 sums over ``axis``, split if the shape exceeds the limits of the target."""
    shape = value.shape
    folded = around(shape, axis)
    ranges = b.limits["REDUCE_SUM"].ranges if "REDUCE_SUM" in b.limits else {}
    ranges = ranges if folded[2] > 1 else {name: ranges[name] for name in ranges if name == "extent"}
    for place, feature in enumerate(("outer", "extent", "inner")):
        most = ranges[feature].high if feature in ranges else folded[place]
        if folded[place] <= most:
            continue
        flat, parts = b.reshape(value, folded), []
        divisor = next((k for k in range(most, folded[place] // most, -1) if folded[place] % k == 0), 0)
        if feature == "extent" and divisor and folded[2] == 1:  # two sums avoid a SLICE of INT32
            rows = b.emit("REDUCE_SUM", b.reshape(flat, (folded[0], folded[1] // divisor, divisor)), axis=2)
            return b.reshape(b.emit("REDUCE_SUM", rows, axis=1), (*shape[:axis], 1, *shape[axis + 1 :]))
        for start in range(0, folded[place], most):
            parts.append(sum_axis(b, b.slice_axis(flat, place, start, min(most, folded[place] - start)), 1))
        if feature != "extent":
            total = b.emit("CONCAT", *parts, axis=place)
        else:
            total = functools.reduce(lambda x, y: b.emit("ADD", x, y), parts)
        return b.reshape(total, (*shape[:axis], 1, *shape[axis + 1 :]))
    if folded[2] == 1 and axis < len(shape) - 1:  # if an inner axis exists, Vela emits one operation per outer index
        total = b.emit("REDUCE_SUM", b.reshape(value, folded[:2]), axis=1)
        return b.reshape(total, (*shape[:axis], 1, *shape[axis + 1 :]))
    return b.emit("REDUCE_SUM", value, axis=axis)


def lead_with(b: Builder, x: QTensor, dims: Sequence[int]) -> QTensor:
    """Move the axes of ``dims`` to the front if the target would otherwise compute separate sums for too many outer indices."""
    most, shape = b.tuning.most_places_before_sum, x.value.shape
    summed = [axis for dim in dims for axis in x.dims[dim] if shape[axis] > 1]
    joined, places = join_axes(shape, summed)
    folded = [around(joined, place) for place in places]
    elements_before = max((before for before, _, after in folded if after > 1), default=0)
    if most is None or elements_before <= most or max(joined) > _LONGEST_MOVED:
        return x
    order = [*summed, *(axis for axis in range(len(shape)) if axis not in summed)]
    value = b.reorder(x.value, order, [shape[axis] for axis in order])
    return QTensor(value, tuple(tuple(order.index(axis) for axis in axes) for axes in x.dims), x.q)


def cut_before(b: Builder, x: QTensor, dims: Sequence[int]) -> tuple[int, int] | None:
    """Return the axis and section size of a split after which ``lead_with`` applies, or None if no split is needed or possible."""
    most, shape = b.tuning.most_places_before_sum, x.value.shape
    summed = {axis for dim in dims for axis in x.dims[dim] if shape[axis] > 1}
    joined, places = join_axes(shape, summed)
    folded = [around(joined, place) for place in places]
    elements_before = [before for before, _, after in folded if after > 1]
    if most is None or max(joined, default=1) <= _LONGEST_MOVED or max(elements_before, default=0) < max(joined):
        return None
    axis = max(range(min(summed)), key=lambda axis: shape[axis], default=None)
    pieces = -(-max(joined) // _LONGEST_MOVED)
    return None if axis is None or shape[axis] < pieces else (axis, -(-shape[axis] // pieces))


def compute_in_pieces(b: Builder, x: QTensor, dims: Sequence[int], compute: Callable[[QTensor], QTensor]) -> QTensor:
    """Apply ``compute`` to ``lead_with(x)``, separately for each section if ``cut_before`` returns a split.

    Args:
        compute: Function that either reduces ``dims`` or preserves every size. It must preserve the order of the other dimensions.
    """
    if (cut := cut_before(b, x, dims)) is None:
        return compute(lead_with(b, x, dims))
    axis, size = cut
    extent, pieces = x.value.shape[axis], []
    for start in range(0, extent, size):
        piece = b.slice_axis(x.value, axis, start, min(size, extent - start))
        pieces.append(compute_in_pieces(b, QTensor(piece, x.dims, x.q), dims, compute))
    (dim,) = (d for d, axes in enumerate(x.dims) if axis in axes)
    concat_axis = pieces[0].dims[dim][x.dims[dim].index(axis)]
    return QTensor(b.emit("CONCAT", *(piece.value for piece in pieces), axis=concat_axis), pieces[0].dims, pieces[0].q)


def reduce_axes(b: Builder, name: str, value: Value, axes: Collection[int]) -> Value:
    """Apply the TOSA reduction ``name`` over ``axes``. Reduced axes have size 1."""
    shape = value.shape
    joined, places = join_axes(shape, axes)
    value = b.reshape(value, joined)
    for place in places:
        value = b.emit(name, value, axis=place)
    return b.reshape(value, [1 if axis in axes else extent for axis, extent in enumerate(shape)])


def piece_before(bound: float, length: float) -> float:
    """Return the start of a ``tabulate`` section that spans about ``length`` values and has its last entry exactly at ``bound``."""
    centre, reach = min(round(bound - length / 2), math.ceil(bound) - 1), (_LAST - _FIRST) / -_FIRST
    return (reach * centre - bound) / (reach - 1) - 2.0**-30  # the center is rounded up


def tabulate(
    b: Builder,
    v: Value,
    function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    bounds: Sequence[float],
    unit: float,
    *,
    dtype: str = "INT32",
    from_middle: bool = False,
) -> Value:
    """Return round(function(v) / unit) for INT32 ``v``, with ``v`` clamped approximately to the first and last of ``bounds``.

    Each section between adjacent bounds has a TABLE with 511 linear intervals. The TABLE from a to b returns
    f(min(max(v, a), b)) - f(b), and the last TABLE returns f. Bounds are moved slightly so that a and b have entries.

    Args:
        function: The function f, monotonic between the bounds.
        from_middle: Whether the entries of the last TABLE are relative to the middle of their range, for more precision.
    """
    total: Value | None = None
    offset = 0.0
    bounds = [*(bound for bound in bounds[:-1] if bound < _HIGHEST), min(bounds[-1], _HIGHEST)]
    high = bounds[0]
    for index, bound in enumerate(bounds[1:]):
        low, last = high, index == len(bounds) - 2
        middle = low + max(bound - low, 0.0) * (_FIRST / (_FIRST - _LAST))
        centre = max(math.ceil(middle) if last else round(middle), math.floor(low) + 1)
        scale = _FIRST / (low - centre)
        high = low + (_LAST - _FIRST) / scale
        grid = np.minimum(low + 128 * np.arange(513) / scale, high)
        if last and from_middle:
            offset = float(function(np.asarray([low, high])).mean())
        real = function(grid) - (offset if last else function(np.asarray([high])))
        step = max(float(np.abs(real).max()), 1e-30) / 32767
        entries = np.rint(real / step).astype(np.int16)
        inside = v
        if bounds[-1] * scale > 2.0**28:  # the RESCALE must fit 32 bits (TOSA 1.0, apply_scale_32)
            inside = b.emit("MINIMUM", v, b.const_like(v, math.ceil(high) + 1, name="end"))
        centred = b.emit("SUB", inside, b.const_like(v, centre, name="centre")) if centre else inside
        looked_up = b.interpolate(b.rescale(centred, scale, dtype="INT16"), entries)
        if dtype == "INT16" and len(bounds) == 2:
            return b.rescale(looked_up, step / 128 / unit, dtype="INT16")
        part = b.rescale(b.rescale(looked_up, 1 / 128, dtype="INT16"), step / unit, dtype="INT32")
        total = part if total is None else b.emit("ADD", total, part)
    assert total is not None
    if from_middle:
        total = b.emit("ADD", total, b.const_like(total, round(offset / unit), name="middle"))
    return total if dtype == "INT32" else b.rescale(total, 1.0, dtype=dtype)


def maximum_of(b: Builder, value: Value, axis: int) -> Value:
    """Return the maximum over ``axis``. Prefer halving and MAX_POOL2D, which need fewer cycles than REDUCE_MAX."""
    outer, extent, inner = around(value.shape, axis)
    shape = [1 if k == axis else e for k, e in enumerate(value.shape)]
    if extent == 1:
        return value
    if value.dtype == "INT32":  # pools do not support INT32
        return _halve(b, value, axis, "MAXIMUM")
    if inner == 1 and outer > 1:  # pools reduce only height and width
        value = _halve(b, value, axis, "MAXIMUM", 2 * BRICK - 1)
        extent = value.shape[axis]
        if extent <= BRICK:
            return _halve(b, value, axis, "MAXIMUM")
        value = b.reorder(value, [axis, *(k for k in range(value.rank) if k != axis)], (extent, outer))
        outer, inner = 1, outer
    if extent <= 256 and 1 < outer <= 65535:  # Vela emits one operation per batch
        window = b.reshape(value, (1, outer, extent, inner))
        return b.reshape(b.emit("MAX_POOL2D", window, kernel=(1, extent), stride=(1, 1), pad=(0, 0, 0, 0)), shape)
    height = extent if extent <= 256 else math.ceil(extent / 256)
    while extent > 256 and extent % height and height < 256:
        height += 1
    width = math.ceil(extent / height)
    if width > 256:
        return b.emit("REDUCE_MAX", value, axis=axis)
    if height * width != extent:
        padding = (0, 0, 0, height * width - extent, 0, 0)
        value = b.emit("PAD", b.reshape(value, (outer, extent, inner)), padding=padding, pad_const=_lowest(value))
    window = b.reshape(value, (outer, height, width, inner))
    pooled = b.emit("MAX_POOL2D", window, kernel=(height, width), stride=(1, 1), pad=(0, 0, 0, 0))
    return b.reshape(pooled, shape)


def _lowest(value: Value) -> int:
    return int(np.iinfo(np.int8 if value.dtype == "INT8" else np.int16).min)


def minimum_of(b: Builder, value: Value, axis: int) -> Value:
    return _halve(b, value, axis, "MINIMUM")


def _halve(b: Builder, value: Value, axis: int, name: str, most: int = 1) -> Value:
    # Combines the two halves of an axis, which may overlap, until at most ``most`` elements remain.
    shape, dtype = value.shape, value.dtype
    outer, extent, inner = around(shape, axis)
    is_innermost = inner == 1
    place = 1
    if not is_innermost:
        value = b.reshape(value, (outer, extent, inner))
    elif value.rank <= 4 and axis == value.rank - 1:
        place = axis
    else:
        value = b.reshape(value, (outer, extent))
    while (extent := value.shape[place]) > most:
        start = extent // 2
        if is_innermost and start > BRICK:
            start -= start % BRICK  # other offsets require NHWC
        halves = (b.widen(b.slice_axis(value, place, first, extent - start)) for first in (0, start))
        value = b.emit(name, *halves)
        if dtype != "INT32":
            value = b.rescale(value, 1.0, dtype=dtype)
    return b.reshape(value, [extent if k == axis else e for k, e in enumerate(shape)])


def steps_per_code(codes: int, count: int) -> float:
    """Return the largest valid ``fine`` of ``deviations`` for rows of ``count`` inputs, each with ``codes`` possible values."""
    return min(32640 / codes, 127.0) / (4 if count > 4096 else 1)


def int32_product(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("MUL", b.rescale(x, 1.0, dtype="INT32"), b.rescale(y, 1.0, dtype="INT32"), shift=0)


def in_finer_steps(b: Builder, value: Value, zp: int, fine: float) -> Value:
    """Return INT16 (value - zp) * fine for INT8 values and ``fine`` up to 127.

    Emit a MUL, because Vela fuses the RESCALEs before and after it. Alone, a RESCALE that changes the width is a separate NPU
    operation.
    """
    factor = b.const_like(value, 127, dtype="INT8", name="factor")
    wide = b.emit("MUL", b.rescale(value, 1.0, input_zp=zp, dtype="INT32"), b.rescale(factor, 1.0, dtype="INT32"), shift=0)
    return b.rescale(wide, fine / 127, dtype="INT16")


def deviations(b: Builder, x: QTensor, axes: Collection[int], fine: float) -> Value:
    """Return INT16 (x - mean) * fine, where mean is the mean over ``axes``."""
    zp, count = x.qparams.zp, math.prod(x.value.shape[axis] for axis in axes)
    total = sum_axes(b, b.rescale(x.value, 1.0, input_zp=zp, dtype="INT32"), axes)
    if x.value.dtype == "INT8":
        mean = b.rescale(total, fine / count, dtype="INT16")
        pair = [b.rescale(part, 1.0, dtype="INT32") for part in (in_finer_steps(b, x.value, zp, fine), mean)]
        return b.rescale(b.emit("SUB", *pair), 1.0, dtype="INT16")
    mean = b.rescale(total, fine * 64 / count, dtype="INT32")
    wide = b.emit("SUB", b.rescale(x.value, fine * 64, input_zp=zp, dtype="INT32"), mean)
    return b.rescale(wide, 1 / 64, dtype="INT16")


def exact_deviations(b: Builder, x: QTensor, axes: Sequence[int]) -> tuple[Value, Value]:
    """Return INT32 x - m and (mean - m) * 64 for int16 ``x``, where m is the rounded mean over ``axes``."""
    count = math.prod(x.value.shape[axis] for axis in axes)
    total = sum_axes(b, b.rescale(x.value, 1.0, input_zp=x.qparams.zp, dtype="INT32"), axes)
    mean = b.rescale(total, 2.0**REST_BITS / count, dtype="INT32")
    rounded_mean = b.rescale(mean, 2.0**-REST_BITS, dtype="INT32")
    fraction = b.emit("SUB", mean, b.rescale(rounded_mean, 2.0**REST_BITS, dtype="INT32"))
    return b.emit("SUB", b.rescale(x.value, 1.0, input_zp=x.qparams.zp, dtype="INT32"), rounded_mean), fraction


def sum_of_exact_squares(b: Builder, deviation: Value, axes: Sequence[int], codes: int) -> tuple[Value, float]:
    """Return the INT32 sum of the squares of ``exact_deviations``, and the value of its unit."""
    half = b.rescale(deviation, 0.5, dtype="INT32")  # the product of the halves is d * d / 4, or 1/4 less for odd d
    square, unit = sum_of_products(b, half, b.emit("SUB", deviation, half), axes, (codes - 1) / 2, (codes - 1) / 4)
    return square, 4 * unit


def sum_of_squares(b: Builder, deviation: Value, zp: int, axes: Sequence[int], largest: float) -> tuple[Value, float]:
    """Return the INT32 sum of (deviation - zp)**2, and the value of its unit. See ``sum_of_products``."""
    factor, second_factor = (b.rescale(deviation, 1.0, input_zp=zp, dtype="INT32") for _ in range(2))
    return sum_of_products(b, factor, second_factor, axes, largest)


def sum_of_products(
    b: Builder, x: Value, y: Value, axes: Sequence[int], largest: float, mean: float | None = None
) -> tuple[Value, float]:
    """Return the INT32 sum over ``axes`` of non-negative products x * y, and the value of its unit.

    A short row is summed in one step, after scaling. A long row is summed in several steps and scaled only if needed, to
    retain small products.

    Args:
        largest: Square root of the largest product.
        mean: Square root of the largest mean product of a row. Default: ``largest``.
    """
    extents, mean = [x.shape[axis] for axis in axes], largest if mean is None else mean
    count = math.prod(extents)
    # Vela transposes or refuses sums of elements that are not adjacent.
    inner_extents = [math.prod(e for k, e in enumerate(x.shape) if k > axis and k not in axes) for axis in axes]
    parts = [_parts(e) if count > _LONG_ROW and inner == 1 else [e] for e, inner in zip(extents, inner_extents, strict=True)]
    first = parts[-1][0] if count > _LONG_ROW else count
    # Scales other than powers of 2 require a separate operation on the U55. Rounding can increase each product by 1.
    highest = first * min(largest**2, mean**2 * count / first)
    scale = min(1.0, 2.0 ** math.floor(math.log2((2.0**31 - first) / highest)))
    square, unit = b.emit("MUL", x, y, shift=0), 1 / scale
    if scale < 1:
        square = b.rescale(square, scale, dtype="INT32")
    if count <= _LONG_ROW:
        return sum_axes(b, square, axes), unit
    summed, highest = 1, scale * largest**2 + 1
    for axis, sizes in reversed(list(zip(axes, parts, strict=True))):
        for size in sizes:
            # A partial sum is at most the sum of the row. Each RESCALE rounds up by at most 1.
            above = min(highest * size, count * mean**2 / unit + summed * size)
            if summed > 1 and (needed := 2.0 ** math.floor(math.log2(2.0**31 / above * 0.999))) < 1:
                square, unit, above = b.rescale(square, needed, dtype="INT32"), unit / needed, above * needed + size
            square, summed, highest = _sum_of_parts(b, square, axis, size), summed * size, above
    return square, unit


def _parts(extent: int) -> list[int]:
    if extent <= _LONG_ROW:
        return [extent]
    sizes = []
    while extent > _FEW_SUMS:
        size = max(size for size in range(1, _LARGEST_PART + 1) if extent % size == 0)
        sizes.append(size if size >= _LARGEST_PART // 16 else min(_LARGEST_PART, extent))
        extent = -(-extent // sizes[-1])
    return [*sizes, extent]


def _sum_of_parts(b: Builder, value: Value, axis: int, size: int) -> Value:
    shape = value.shape
    if size == shape[axis]:
        return sum_axes(b, value, [axis])
    count = -(-shape[axis] // size)
    outer, extent, inner = around(shape, axis)
    value = b.reshape(value, (outer, extent, inner))
    if count * size != extent:
        value = b.emit("PAD", value, padding=(0, 0, 0, count * size - extent, 0, 0), pad_const=0)
    value = b.emit("REDUCE_SUM", b.reshape(value, (outer * count, size, inner)), axis=1)
    return b.reshape(value, [count if k == axis else e for k, e in enumerate(shape)])


def all_dims(x: QTensor, dim: Any) -> list[int]:
    """Convert a PyTorch dim argument to non-negative dims. None and () mean all dims."""
    dims = [dim] if isinstance(dim, int) else list(dim) if dim is not None and len(dim) else range(x.rank)
    return [d % x.rank for d in dims]


def with_reduced_dims(x: QTensor, value: Value, dims: Sequence[int], q: QParams | None) -> QTensor:
    """Return ``value``, the reduction of ``x`` over ``dims``, as a tensor."""
    return QTensor(value, tuple(() if d in dims else axes for d, axes in enumerate(x.dims)), q)
