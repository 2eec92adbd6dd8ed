"""Numbers per row (a sum, a variance) inside an operator: exact sums, and functions of them in interpolated tables.

A row has one such number where the data have hundreds, so 16-bit tables, wherever they are slow, cost little here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor
from ethorch.tosa.ir import Value
from ethorch.tosa.layout import around, joined_axes

#: A table's code for the lower and upper end of its piece; above it the table is flat. TOSA 1.0 TABLE, int16: 513 entries.
_FIRST, _LAST = -32768, -32768 + 511 * 128
#: How many bits of a mean of int16 are kept below its codes.
REST_BITS = 6
#: A row of more elements is summed in parts, and of how many elements at most: of 128 squares of 31 bits each keeps 24. So many
#: sums are added at once, each without bits for which 32 have no room.
_LONG_ROW, _LARGEST_PART, _FEW_SUMS = 1024, 128, 32
#: A longer axis would be moved in pieces, and what reads them together costs more than the sums.
_LONGEST_MOVED = 65536
#: No INT32 is above it but for the few that a sum of squares stays away from.
_HIGHEST = 2.0**31 - 4096


def sum_axes(b: Builder, acc: Value, axes: Collection[int]) -> Value:
    """Exact INT32 sums over the stored ``axes``, which keep extent 1. Axes that lie side by side are summed as one."""
    shape = acc.shape
    joined, places = joined_axes(shape, axes)
    acc = b.reshape(acc, joined)
    for place in places:
        acc = sum_axis(b, acc, place)
    return b.reshape(acc, [1 if axis in axes else extent for axis, extent in enumerate(shape)])


def sum_axis(b: Builder, value: Value, axis: int) -> Value:
    """Exact sum over one stored axis of INT32, by as many REDUCE_SUMs as the target's limits ask for."""
    shape = value.shape
    folded = around(shape, axis)
    ranges = b.limits["REDUCE_SUM"].ranges if "REDUCE_SUM" in b.limits else {}
    ranges = ranges if folded[2] > 1 else {name: ranges[name] for name in ranges if name == "extent"}
    for place, feature in enumerate(("outer", "extent", "inner")):
        most = ranges[feature].high if feature in ranges else folded[place]
        if folded[place] <= most:
            continue
        flat, parts = b.reshape(value, folded), []
        whole = next((k for k in range(most, folded[place] // most, -1) if folded[place] % k == 0), 0)
        if feature == "extent" and whole and folded[2] == 1:  # sums of sums: no SLICE of INT32
            rows = b.emit("REDUCE_SUM", b.reshape(flat, (folded[0], folded[1] // whole, whole)), axis=2)
            return b.reshape(b.emit("REDUCE_SUM", rows, axis=1), (*shape[:axis], 1, *shape[axis + 1 :]))
        for start in range(0, folded[place], most):
            parts.append(sum_axis(b, b.sliced(flat, place, start, min(most, folded[place] - start)), 1))
        if feature != "extent":
            total = b.emit("CONCAT", *parts, axis=place)
        else:
            total = functools.reduce(lambda x, y: b.emit("ADD", x, y), parts)
        return b.reshape(total, (*shape[:axis], 1, *shape[axis + 1 :]))
    if folded[2] == 1 and axis < len(shape) - 1:  # by one behind it Vela makes an operation of each place in front
        total = b.emit("REDUCE_SUM", b.reshape(value, folded[:2]), axis=1)
        return b.reshape(total, (*shape[:axis], 1, *shape[axis + 1 :]))
    return b.emit("REDUCE_SUM", value, axis=axis)


def led_by(b: Builder, x: QTensor, dims: Sequence[int]) -> QTensor:
    """``x`` as it can be summed over ``dims`` at once: their stored axes in front where the target's tuning asks for that.

    Of an axis with others in front of it and behind it, an NPU may sum what belongs to one place in front at a time.
    """
    most, shape = b.tuning.most_places_before_sum, x.value.shape
    summed = [axis for dim in dims for axis in x.dims[dim] if shape[axis] > 1]
    joined, places = joined_axes(shape, summed)
    folded = [around(joined, place) for place in places]
    in_front = max((before for before, _, behind in folded if behind > 1), default=0)
    if most is None or in_front <= most or max(joined) > _LONGEST_MOVED:
        return x
    order = [*summed, *(axis for axis in range(len(shape)) if axis not in summed)]
    value = b.ordered(x.value, order, [shape[axis] for axis in order])
    return QTensor(value, tuple(tuple(order.index(axis) for axis in axes) for axes in x.dims), x.q)


def cut_before(b: Builder, x: QTensor, dims: Sequence[int]) -> tuple[int, int] | None:
    """A stored axis of ``x``, and into pieces of how many places it is cut so that ``led_by`` can move the pieces' axes.

    None where nothing is to be cut: few places are in front of what is summed over ``dims``, or they can be moved as they are.
    """
    most, shape = b.tuning.most_places_before_sum, x.value.shape
    summed = {axis for dim in dims for axis in x.dims[dim] if shape[axis] > 1}
    joined, places = joined_axes(shape, summed)
    folded = [around(joined, place) for place in places]
    in_front = [before for before, _, behind in folded if behind > 1]
    if most is None or max(joined, default=1) <= _LONGEST_MOVED or max(in_front, default=0) < max(joined):
        return None
    axis = max(range(min(summed)), key=lambda axis: shape[axis], default=None)
    pieces = -(-max(joined) // _LONGEST_MOVED)
    return None if axis is None or shape[axis] < pieces else (axis, -(-shape[axis] // pieces))


def led_in_pieces(b: Builder, x: QTensor, dims: Sequence[int], compute: Callable[[QTensor], QTensor]) -> QTensor:
    """``compute`` of ``x`` as ``led_by`` gives it; joined, of pieces of ``x`` where ``cut_before`` says so.

    Args:
        compute: reduces ``dims``, or keeps every extent; where its operand's other dims are stored, its result's are.
    """
    if (cut := cut_before(b, x, dims)) is None:
        return compute(led_by(b, x, dims))
    axis, size = cut
    extent, pieces = x.value.shape[axis], []
    for start in range(0, extent, size):
        piece = b.sliced(x.value, axis, start, min(size, extent - start))
        pieces.append(led_in_pieces(b, QTensor(piece, x.dims, x.q), dims, compute))
    (dim,) = (d for d, axes in enumerate(x.dims) if axis in axes)
    there = pieces[0].dims[dim][x.dims[dim].index(axis)]
    return QTensor(b.emit("CONCAT", *(piece.value for piece in pieces), axis=there), pieces[0].dims, pieces[0].q)


def reduced_by(b: Builder, name: str, value: Value, axes: Collection[int]) -> Value:
    """TOSA operator ``name``, a reduction, over the stored ``axes``, which keep extent 1; side by side they are reduced as one."""
    shape = value.shape
    joined, places = joined_axes(shape, axes)
    value = b.reshape(value, joined)
    for place in places:
        value = b.emit(name, value, axis=place)
    return b.reshape(value, [1 if axis in axes else extent for axis, extent in enumerate(shape)])


def geometric_bounds(low: float, high: float, ratio: float) -> list[float]:
    """Bounds between low and high, each the same multiple of the last, at most ``ratio``; as few as possible."""
    count = max(1, math.ceil(math.log(high / low) / math.log(ratio))) if high > low else 1
    return [low * (high / low) ** (k / count) for k in range(count)] + [max(high, low * 2)]


def piece_before(bound: float, length: float) -> float:
    """Return the bound that begins a piece of ``tabulated`` of about ``length``, so that its last entry is at ``bound`` exactly."""
    centre, reach = min(round(bound - length / 2), math.ceil(bound) - 1), (_LAST - _FIRST) / -_FIRST
    return (reach * centre - bound) / (reach - 1) - 2.0**-30  # the centre is rounded upwards


def tabulated(
    b: Builder,
    v: Value,
    function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    bounds: Sequence[float],
    unit: float,
    *,
    dtype: str = "INT32",
    from_middle: bool = False,
    highest: float = 0.0,
) -> Value:
    """round(function(v) / unit) for INT32 v, clamped near the ends of ``bounds``; ``function`` is monotonic there.

    One TABLE of 511 intervals per piece between ``bounds``, linear in between. The piece from a to b gives
    f(min(max(v, a), b)) - f(b), which is exactly 0 above it; the last piece gives f itself. Entries lie at a and at b, since a line
    to an entry beyond is off where f is cut. For that a bound moves by a step or two.

    ``highest``: the highest v, where that is above the last of the bounds.
    ``from_middle``, of INT32 results: the last piece's entries count from the middle of what it gives, which is added at the end.
    So its 16 bits are for how far f goes there, not for f, whose largest value may well be the largest code of a 16-bit result.
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
        if max(bounds[-1], highest) * scale > 2.0**28:  # a RESCALE may saturate, but not beyond 32 bits (TOSA 1.0, apply_scale_32)
            inside = b.emit("MINIMUM", v, b.const(np.full([1] * v.rank, math.ceil(high) + 1, np.int32), name="end"))
        centred = b.emit("SUB", inside, b.const(np.full([1] * v.rank, centre, np.int32), name="centre")) if centre else inside
        looked_up = b.interpolated(b.rescale(centred, scale, dtype="INT16"), entries)
        if dtype == "INT16" and len(bounds) == 2:
            return b.rescale(looked_up, step / 128 / unit, dtype="INT16")
        part = b.rescale(b.rescale(looked_up, 1 / 128, dtype="INT16"), step / unit, dtype="INT32")
        total = part if total is None else b.emit("ADD", total, part)
    assert total is not None
    if from_middle:
        total = b.emit("ADD", total, b.const(np.full((1,) * total.rank, round(offset / unit), np.int32), name="middle"))
    return total if dtype == "INT32" else b.rescale(total, 1.0, dtype=dtype)


def maximum_of(b: Builder, value: Value, axis: int) -> Value:
    """Maximum over one stored axis, which keeps extent 1: MAX_POOL2D, 4 times cheaper than REDUCE_MAX (Vela's estimate).

    Pooling runs along a map's height and width, so an axis that is stored last is transposed to the front first. Of few rows,
    which would be few channels, maps of one channel are pooled where that is cheaper.
    """
    outer, extent, inner = around(value.shape, axis)
    kept = [1 if k == axis else e for k, e in enumerate(value.shape)]
    if extent == 1:
        return value
    if value.dtype == "INT32":  # plain integers, which no pooling takes
        return _halved(b, value, axis, "MAXIMUM")
    if inner == 1 and 1 < outer <= b.tuning.most_rows_pooled:
        return b.reshape(_of_rows(b, b.reshape(value, (outer, extent))), kept)
    if inner == 1:
        moved = b.ordered(value, [axis, *(k for k in range(value.rank) if k != axis)], (extent, outer))
        outer, inner = 1, outer
    else:
        moved = value
    height = extent if extent <= 256 else math.ceil(extent / 256)
    while extent > 256 and extent % height and height < 256:
        height += 1
    width = math.ceil(extent / height)
    if width > 256:
        return b.emit("REDUCE_MAX", value, axis=axis)
    if height * width != extent:
        padding = (0, 0, 0, height * width - extent, 0, 0)
        moved = b.emit("PAD", b.reshape(moved, (outer, extent, inner)), padding=padding, pad_const=_lowest(value))
    window = b.reshape(moved, (outer, height, width, inner))
    pooled = b.emit("MAX_POOL2D", window, kernel=(height, width), stride=(1, 1), pad=(0, 0, 0, 0))
    return b.reshape(pooled, kept)


def _of_rows(b: Builder, value: Value) -> Value:
    """Maxima of the rows of [N, E], as [N, 1]: pieces of up to 256 elements by MAX_POOL2D, until one is left."""
    rows, extent = value.shape
    while extent > 1:
        pieces = math.ceil(extent / 256)
        width = math.ceil(extent / pieces)
        if pieces * width != extent:
            value = b.emit("PAD", value, padding=(0, 0, 0, pieces * width - extent), pad_const=_lowest(value))
        window = b.reshape(value, (1, rows * pieces, width, 1))
        pooled = b.emit("MAX_POOL2D", window, kernel=(1, width), stride=(1, 1), pad=(0, 0, 0, 0))
        value, extent = b.reshape(pooled, (rows, pieces)), pieces
    return value


def _lowest(value: Value) -> int:
    """The least code of INT8 or INT16."""
    return int(np.iinfo(np.int8 if value.dtype == "INT8" else np.int16).min)


def minimum_of(b: Builder, value: Value, axis: int) -> Value:
    """Minimum over one stored axis, which keeps extent 1.

    Half the price of REDUCE_MIN by Vela's estimate.
    """
    return _halved(b, value, axis, "MINIMUM")


def _halved(b: Builder, value: Value, axis: int, name: str) -> Value:
    """MINIMUM or MAXIMUM over one stored axis: halves compared with each other."""
    shape, dtype = value.shape, value.dtype
    value = b.reshape(value, around(shape, axis))

    def better(one: Value, other: Value) -> Value:
        found = b.emit(name, *[b.widened(v) for v in (one, other)])
        return found if dtype == "INT32" else b.rescale(found, 1.0, dtype=dtype)

    while (extent := value.shape[1]) > 1:
        half = extent // 2
        pairs = better(b.sliced(value, 1, 0, half), b.sliced(value, 1, half, half))
        value = pairs if extent % 2 == 0 else b.emit("CONCAT", pairs, b.sliced(value, 1, extent - 1, 1), axis=1)
    return b.reshape(value, [1 if k == axis else e for k, e in enumerate(shape)])


def steps_per_code(codes: int, count: int) -> float:
    """How many steps of an INT16 deviation a code of x may be: x has ``codes`` codes, and ``count`` deviations are summed."""
    return min(32640 / codes, 127.0) / (4 if count > 4096 else 1)


def int32_product(b: Builder, one: Value, other: Value) -> Value:
    """INT32 product of INT16 values. TOSA 1.0 MUL."""
    return b.emit("MUL", b.rescale(one, 1.0, dtype="INT32"), b.rescale(other, 1.0, dtype="INT32"), shift=0)


def in_finer_steps(b: Builder, value: Value, zp: int, fine: float) -> Value:
    """INT16 (value - zp) * fine of INT8 codes, ``fine`` at most 127. TOSA 1.0 MUL.

    A RESCALE that changes the width is a pass of its own; in front of MUL or behind it, with scale 1 in front, it is free.
    """
    factor = b.const(np.full((1,) * value.rank, 127, np.int8), name="factor")
    wide = b.emit("MUL", b.rescale(value, 1.0, input_zp=zp, dtype="INT32"), b.rescale(factor, 1.0, dtype="INT32"), shift=0)
    return b.rescale(wide, fine / 127, dtype="INT16")


def deviations(b: Builder, x: QTensor, axes: Collection[int], fine: float) -> Value:
    """INT16 (x - mean) * fine, the mean over the stored ``axes`` of the exact sum."""
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
    """(INT32 x - m of int16 x, for m the mean over the stored ``axes`` as a whole code; what the mean has beyond m, in 1/64).

    Of a row whose deviations are small, the codes of the result are so many to one of x that half a code shows.
    """
    count = math.prod(x.value.shape[axis] for axis in axes)
    total = sum_axes(b, b.rescale(x.value, 1.0, input_zp=x.qparams.zp, dtype="INT32"), axes)
    mean = b.rescale(total, 2.0**REST_BITS / count, dtype="INT32")
    whole = b.rescale(mean, 2.0**-REST_BITS, dtype="INT32")
    rest = b.emit("SUB", mean, b.rescale(whole, 2.0**REST_BITS, dtype="INT32"))
    return b.emit("SUB", b.rescale(x.value, 1.0, input_zp=x.qparams.zp, dtype="INT32"), whole), rest


def sum_of_exact_squares(b: Builder, deviation: Value, axes: Sequence[int], codes: int) -> tuple[Value, float]:
    """(INT32 sum of squares of exact deviations of x, which has so many codes; value of one of its steps in squared codes)."""
    half = b.rescale(deviation, 0.5, dtype="INT32")  # times the other half it is d * d / 4, or a quarter less
    square, unit = sum_of_products(b, half, b.emit("SUB", deviation, half), axes, (codes - 1) / 2, (codes - 1) / 4)
    return square, 4 * unit


def sum_of_squares(b: Builder, deviation: Value, zp: int, axes: Sequence[int], largest: float) -> tuple[Value, float]:
    """(INT32 sum of squares, value of one of its steps in squared units of ``deviation``), see ``sum_of_products``."""
    one, two = (b.rescale(deviation, 1.0, input_zp=zp, dtype="INT32") for _ in range(2))
    return sum_of_products(b, one, two, axes, largest)


def sum_of_products(
    b: Builder, one: Value, two: Value, axes: Sequence[int], largest: float, mean: float | None = None
) -> tuple[Value, float]:
    """(INT32 sum of products that are not negative, value of one of its steps in products): as fine as 32 bits allow.

    ``largest`` is the largest root of a product, ``mean`` that of a row's mean product. The sum of a short row is made at once: its
    products have the bits that fit. A long row is summed in parts, with a rescale in front of each sum that needs one: so a row of
    small products beside a row of large ones keeps its bits.
    """
    extents, mean = [one.shape[axis] for axis in axes], largest if mean is None else mean
    count = math.prod(extents)
    # Sums of parts with other elements in between are what Vela transposes, or refuses to.
    behind = [math.prod(e for k, e in enumerate(one.shape) if k > axis and k not in axes) for axis in axes]
    parts = [_parts(e) if count > _LONG_ROW and inner == 1 else [e] for e, inner in zip(extents, behind, strict=True)]
    first = parts[-1][0] if count > _LONG_ROW else count
    # A power of 2, since U55 has other shifts of INT32 as a pass; each product may be rounded up.
    highest = first * min(largest**2, mean**2 * count / first)
    scale = min(1.0, 2.0 ** math.floor(math.log2((2.0**31 - first) / highest)))
    square, unit = b.emit("MUL", one, two, shift=0), 1 / scale
    if scale < 1:
        square = b.rescale(square, scale, dtype="INT32")
    if count <= _LONG_ROW:
        return sum_axes(b, square, axes), unit
    summed, highest = 1, scale * largest**2 + 1
    for axis, sizes in reversed(list(zip(axes, parts, strict=True))):
        for size in sizes:
            # A part of a row is at most the row. What a RESCALE halves it rounds up at each half: one, and no second one.
            above = min(highest * size, count * mean**2 / unit + summed * size)
            if summed > 1 and (needed := 2.0 ** math.floor(math.log2(2.0**31 / above * 0.999))) < 1:
                square, unit, above = b.rescale(square, needed, dtype="INT32"), unit / needed, above * needed + size
            square, summed, highest = _sum_of_parts(b, square, axis, size), summed * size, above
    return square, unit


def _parts(extent: int) -> list[int]:
    """How many elements are summed at a time: of a long axis a part, then so many sums, and so on. The last may be incomplete."""
    if extent <= _LONG_ROW:
        return [extent]
    sizes = []
    while extent > _FEW_SUMS:
        size = max(size for size in range(1, _LARGEST_PART + 1) if extent % size == 0)
        sizes.append(size if size >= _LARGEST_PART // 16 else min(_LARGEST_PART, extent))
        extent = -(-extent // sizes[-1])
    return [*sizes, extent]


def _sum_of_parts(b: Builder, value: Value, axis: int, size: int) -> Value:
    """INT32 sums of each ``size`` elements along a stored axis; the last part is filled up with zeros."""
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
    """PyTorch's dim argument (one, several, none for all) as non-negative dims."""
    dims = [dim] if isinstance(dim, int) else list(dim) if dim is not None and len(dim) else range(x.rank)
    return [d % x.rank for d in dims]


def reduced_tensor(x: QTensor, value: Value, dims: Sequence[int], q: QParams | None) -> QTensor:
    """``value`` as ``x`` reduced over the logical ``dims``, which have extent 1."""
    return QTensor(value, tuple(() if d in dims else axes for d, axes in enumerate(x.dims)), q)
