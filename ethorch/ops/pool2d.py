"""Pooling: maximum, average, adaptive average."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ethorch.ops.quant_rules import EACH_INPUT, SAME_AS_INPUT, QuantRule
from ethorch.ops.reduce import mean_over
from ethorch.ops.spec import I8, Sample, op
from ethorch.qparams import QParams, QTensor, dtype_range
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import FLOATS, Value


def _two(value: int | Sequence[int], default: Sequence[int] = ()) -> list[int]:
    """PyTorch's "one number, two, or none for the default" as two."""
    values = [value] if isinstance(value, int) else list(value) or list(default)
    return values * 2 if len(values) == 1 else values


def _windows(
    x: QTensor, kernel: list[int], stride: list[int], padding: list[int], sizes: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Strides and far pads (bottom, right) that give exactly ``sizes`` outputs; a single window needs no stride."""
    strides = [s if size > 1 else 1 for s, size in zip(stride, sizes, strict=True)]
    far = [
        (size - 1) * s + k - before - extent
        for size, s, k, before, extent in zip(sizes, strides, kernel, padding, x.shape[-2:], strict=True)
    ]
    return strides, far


def _cropped(b: Builder, x: QTensor, far: list[int]) -> tuple[QTensor, list[int]]:
    """Without the far rows and columns that no window reads, and far pads that are not negative."""
    value = b.nhwc(x)
    if min(far) < 0:
        n, h, w, c = value.shape
        value = b.emit("SLICE", value, start=(0, 0, 0, 0), size=(n, h + min(far[0], 0), w + min(far[1], 0), c))
    return b.from_nhwc(value, x.q, x.rank), [max(pad, 0) for pad in far]


@op(
    "aten.max_pool2d.default", "aten.max_pool2d_with_indices.default", quant=SAME_AS_INPUT,
    samples=[
        Sample(I8(1, 8, 8, 8), [2, 2]), Sample(I8(1, 5, 9, 11), [3, 3], [2, 2], [1, 1]), Sample(I8(2, 4, 7, 7), [3, 2], [2, 1]),
        Sample(I8(1, 3, 10, 10), [3, 3], [2, 2], [1, 1], [1, 1], True), Sample(I8(1, 4, 6, 6), [6, 6]),
        Sample(I8(2, 3, 17, 18), [5, 5], [4, 4], [2, 2]), Sample(I8(1, 2, 12, 12), [4, 4], [5, 4]),
        Sample(I8(1, 4, 12, 13), [3, 3], [1, 1], [1, 1], [2, 2]), Sample(I8(2, 3, 11, 14), [3, 2], [2, 1], [1, 1], [2, 3]),
        Sample(I8(1, 5, 9, 9), [2, 2], [2, 2], [0, 0], [2, 2], True), Sample(I8(1, 4, 9, 9), [4, 4], [4, 4], [2, 2], [2, 1]),
        Sample(I8(1, 3, 13, 10), [5, 5], [1, 1], [2, 2]), Sample(I8(2, 5, 12, 12), [9, 7], [2, 1], [4, 3]),
        Sample(I8(3, 9, 9), [3, 3], [3, 3], [0, 0], [4, 4]),
    ],
)  # fmt: skip
def max_pool2d(
    b: Builder,
    x: QTensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    *,
    out: QParams,
) -> Any:
    """out = maximum over each window, padding excluded: int8[N,C,H,W] -> int8[N,C,OH,OW], exact. TOSA 1.0 MAX_POOL2D."""
    kernel, padding, dilation = _two(kernel), _two(padding), _two(dilation)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    strides, far = _windows(x, spans, _two(stride, kernel), padding, b.result_shape[-2:])
    x, far = _cropped(b, x, far)
    value = b.nhwc(x)
    if max(strides) > 3 and any((*padding, *far)) and not x.qparams.is_real:  # no NPU pads where it strides wide
        value = _padded(b, value, [(padding[0], far[0]), (padding[1], far[1])])
        padding, far = [0, 0], [0, 0]
    ways = list(zip(kernel, strides, padding, far, dilation, strict=True))
    if max(dilation) > 1 or _by_axes(b, value, ways):
        for axis in (1, 0):
            value = _maximum_along(b, value, axis, *ways[axis])
    else:
        pads = (padding[0], far[0], padding[1], far[1])
        value = b.emit("MAX_POOL2D", value, kernel=tuple(kernel), stride=tuple(strides), pad=pads)
    return b.requantized(b.from_nhwc(value, x.q, x.rank), out)


#: What ``forms["max_pool"]`` names: the most bytes of a map over whose height and width in turn a maximum is taken, kernels of
#: 7x7 and more aside. 5x5 over [61,61,64] takes U55 1,325,040 cycles at once, 567,647 in turn (u55-128). U85 runs it in 672,505
#: and 297,854, but moves it to DRAM and back if it is too large (u85-256).
_BY_AXES: Mapping[str, float] = {"u55": math.inf, "u85": 100_000}


def _by_axes(b: Builder, value: Value, ways: Sequence[tuple[int, ...]]) -> bool:
    """Is a maximum along the width, then the height, estimated to be faster? A tap takes as long as any other, from 4 on."""
    if (form := b.forms.get("max_pool")) is None or value.dtype not in ("INT8", "INT16"):
        return False
    (kh, sy, *_), (kw, *_) = ways
    size = math.prod(value.shape) * (2 if value.dtype == "INT16" else 1)
    in_turn = (max(kw, 4) * sy + max(kh, 4)) * 1.1
    return kh * kw > in_turn and min(kh, kw) > 1 and (size <= _BY_AXES[form] or kh * kw >= 49)


def _maximum_along(b: Builder, value: Value, axis: int, kernel: int, stride: int, before: int, after: int, dilation: int) -> Value:
    """Maximum over windows along the height (``axis`` 0) or width (1) of an NHWC value.

    With a dilation of d, d neighbours along the axis are d places of the axis behind it, which a RESHAPE makes them: then a
    window's elements are next to each other. The stride is a choice of every so many results.
    """

    def pooled(value: Value, kernel: int, stride: int, pads: tuple[int, int] = (0, 0)) -> Value:
        window, steps = ((kernel, 1), (stride, 1)) if axis == 0 else ((1, kernel), (1, stride))
        pad = (*pads, 0, 0) if axis == 0 else (0, 0, *pads)
        return b.emit("MAX_POOL2D", value, kernel=window, stride=steps, pad=pad)

    if dilation == 1 or kernel == 1:
        return pooled(value, kernel, stride, (before, after))
    shape = list(value.shape)
    total = shape[1 + axis] + before + after
    fill = -total % dilation
    results = total - (kernel - 1) * dilation
    value = _padded(b, value, [(before, after + fill), (0, 0)] if axis == 0 else [(0, 0), (before, after + fill)])
    folded = list(value.shape)
    folded[1 + axis] //= dilation
    folded[2 + axis] *= dilation
    value = pooled(b.reshape(value, folded), kernel, 1)
    shape[1 + axis] = value.shape[1 + axis] * dilation
    value = b.reshape(value, shape)
    shape[1 + axis] = (results - 1) // stride * stride + 1
    if tuple(shape) != value.shape:
        value = b.emit("SLICE", value, start=(0, 0, 0, 0), size=tuple(shape))
    return pooled(value, 1, stride) if stride > 1 else value


def _padded(b: Builder, value: Value, pads: Sequence[tuple[int, int]]) -> Value:
    """Height and width of an NHWC value extended by what no maximum chooses."""
    if not any(before or after for before, after in pads):
        return value
    lowest = -math.inf if value.dtype in FLOATS else dtype_range(value.dtype)[0]
    return b.emit("PAD", value, padding=(0, 0, *pads[0], *pads[1], 0, 0), pad_const=lowest)


def _average_rule(node: Any) -> QuantRule:
    """A window that covers the whole map is a mean; small windows keep their input's scale, unless divided by another number."""
    if len(node.args) > 6 and node.args[6]:
        return EACH_INPUT
    whole_map = tuple(node.meta["val"].shape[-2:]) == (1, 1)
    return EACH_INPUT if whole_map else SAME_AS_INPUT


@op(
    "aten.avg_pool2d.default", quant=_average_rule, bound=2,
    samples=[
        Sample(I8(1, 8, 8, 8), [2, 2]), Sample(I8(1, 8, 9, 7), [3, 3], [2, 2], [1, 1]), Sample(I8(1, 16, 25, 5), [25, 5]),
        Sample(I8(1, 8, 9, 9), [3, 3], [2, 2], [1, 1], False, False), Sample(I8(1, 6, 8, 8), [8, 8]),
        Sample(I8(1, 4, 10, 10), [3, 3], [2, 2], [0, 0], True), Sample(I8(1, 4, 8, 8), [2, 2], [2, 2], [0, 0], False, True, 3),
        Sample(I8(3, 4, 17, 17), [5, 5], [4, 4], [2, 2]), Sample(I8(1, 2, 20, 21), [9, 10], [5, 3]),
        Sample(I8(1, 2, 14, 13), [3, 3], [2, 2], [1, 1], True, False, 2),
        Sample(I8(1, 2, 9, 9), [3, 4], [2, 2], [1, 0], False, True, 7),
        Sample(I8(1, 3, 5, 5), [7, 7], [1, 1], [1, 1], False, False, 2),
        Sample(I8(1, 2, 20, 20), [12, 12], [4, 4], [0, 0], False, True, 144),
    ],
)  # fmt: skip
def avg_pool2d(
    b: Builder, x: QTensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None, *, out: QParams,
) -> QTensor:  # fmt: skip
    """out = mean over each window: int8[N,C,H,W] -> int8[N,C,OH,OW]. TOSA 1.0 AVG_POOL2D, or a sum when one window covers all.

    TOSA divides by the valid positions only; padding that counts is a PAD with the zero point before, and all of it counts
    where the divisor is given. The bound: a mean of the whole map may be rounded twice (see mean_over).
    """
    kernel, padding = _two(kernel), _two(padding)
    area = kernel[0] * kernel[1]
    factor = area / divisor_override if divisor_override else 1.0
    if tuple(kernel) == x.shape[-2:] and padding == [0, 0]:
        return mean_over(b, x, (x.rank - 2, x.rank - 1), out, factor=factor)
    strides, far = _windows(x, kernel, _two(stride, kernel), padding, b.result_shape[-2:])
    x, far = _cropped(b, x, far)
    value = b.nhwc(x)
    if (count_include_pad and any(padding)) or (divisor_override and any((*padding, *far))):
        counted = far if divisor_override else [min(pad, explicit) for pad, explicit in zip(far, padding, strict=True)]
        pads = (0, 0, padding[0], counted[0], padding[1], counted[1], 0, 0)
        value = b.emit("PAD", value, padding=pads, pad_const=x.qparams.zp)
        padding, far = [0, 0], [pad - done for pad, done in zip(far, counted, strict=True)]
    zp, fine = x.qparams.zp, 1.0
    if divisor_override and value.dtype == "INT8":  # a mean in whole codes of x may be off by several of the result's
        zp, fine = 0, 128.0
        value = b.rescale(value, fine, input_zp=x.qparams.zp, dtype="INT16")
    value = b.emit(
        "AVG_POOL2D", value, kernel=tuple(kernel), stride=tuple(strides), pad=(padding[0], far[0], padding[1], far[1]),
        input_zp=zp, output_zp=zp,
    )  # fmt: skip
    if divisor_override:
        value = b.requantize(b.rescale(value, 1.0, input_zp=zp, dtype="INT32"), x.qparams.step * factor / fine, out)
        return b.from_nhwc(value, out, x.rank)
    return b.requantized(b.from_nhwc(value, x.q, x.rank), out)


def adaptive_windows(extent: int, size: int) -> tuple[int, int] | None:
    """(kernel, stride) when the adaptive windows of ``size`` outputs over ``extent`` are all alike, else None.

    PyTorch: window i is floor(i * extent / size) .. ceil((i + 1) * extent / size).
    """
    starts = [i * extent // size for i in range(size)]
    ends = [-(-(i + 1) * extent // size) for i in range(size)]
    kernels = {end - start for start, end in zip(starts, ends, strict=True)}
    strides = {b - a for a, b in pairwise(starts)} or {1}
    return (kernels.pop(), strides.pop()) if len(kernels) == len(strides) == 1 and 0 not in strides else None


@op(
    "aten.adaptive_avg_pool2d.default", "aten._adaptive_avg_pool2d.default", quant=_average_rule, bound=2,
    samples=[
        Sample(I8(1, 8, 7, 7), [1, 1]), Sample(I8(1, 4, 8, 6), [4, 3]), Sample(I8(2, 5, 6, 6), [1, 1]),
        Sample(I8(1, 4, 7, 7), [3, 3]), Sample(I8(1, 3, 4, 4), [6, 5]), Sample(I8(1, 12, 1, 1), [3, 3]),
    ],
)  # fmt: skip
def adaptive_avg_pool2d(b: Builder, x: QTensor, size: Sequence[int], *, out: QParams) -> QTensor:
    """out = mean over windows that divide the map into ``size``: int8[N,C,H,W] -> int8[N,C,*size].

    Equal windows are one AVG_POOL2D; uneven ones (7 into 3, or more outputs than inputs) one per row and column of them.
    """
    height, width = b.result_shape[-2:]
    if (height, width) == (1, 1):
        return mean_over(b, x, (x.rank - 2, x.rank - 1), out)
    rows_alike, columns_alike = adaptive_windows(x.shape[-2], height), adaptive_windows(x.shape[-1], width)
    if rows_alike and columns_alike:
        (kh, sh), (kw, sw) = rows_alike, columns_alike
        return avg_pool2d.lower(b, x, [kh, kw], [sh, sw], out=out) if avg_pool2d.lower else x
    value, zp = b.nhwc(x), x.qparams.zp
    rows = []
    for i in range(height):
        columns = []
        for j in range(width):
            (top, bottom), (left, right) = (
                (k * extent // n, -(-(k + 1) * extent // n)) for k, extent, n in ((i, x.shape[-2], height), (j, x.shape[-1], width))
            )
            size_nhwc = (value.shape[0], bottom - top, right - left, value.shape[3])
            part = b.emit("SLICE", value, start=(0, top, left, 0), size=size_nhwc)
            kernel = (bottom - top, right - left)
            columns.append(b.emit("AVG_POOL2D", part, kernel=kernel, stride=(1, 1), pad=(0, 0, 0, 0), input_zp=zp, output_zp=zp))
        rows.append(b.emit("CONCAT", *columns, axis=2) if len(columns) > 1 else columns[0])
    result = b.emit("CONCAT", *rows, axis=1) if len(rows) > 1 else rows[0]
    return b.requantized(b.from_nhwc(result, x.q, x.rank), out)
