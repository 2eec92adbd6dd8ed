"""Maximum, average and adaptive average pools over two dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result, dtype_range
from ethorch.lower.builder.window import Window
from ethorch.lower.ops.quant_rules import AVERAGED, EACH_INPUT, SAME_AS_INPUT, QuantRule
from ethorch.lower.ops.samples import I8, Sample
from ethorch.lower.ops.spec import op
from ethorch.lower.ops.sums import mean_over
from ethorch.tosa.ir import FLOATS, Value


def _window(x: QTensor, kernel: Any, stride: Any, padding: Any, dilation: Any, out: Result) -> Window:
    window = Window.of(_two(kernel), stride or _two(kernel), padding, dilation)
    strides = tuple(stride if size > 1 else 1 for stride, size in zip(window.stride, out.shape[-2:], strict=True))
    return replace(window, stride=strides).ending(x.shape[-2:], out.shape[-2:])


def _two(value: int | Sequence[int]) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return (values[0], values[-1])


@op(
    "aten.max_pool2d.default",
    "aten.max_pool2d_with_indices.default",
    quant=SAME_AS_INPUT,
    homogeneous=2,
    samples=[
        Sample(I8(1, 8, 8, 8), [2, 2]),
        Sample(I8(1, 5, 9, 11), [3, 3], [2, 2], [1, 1]),
        Sample(I8(2, 4, 7, 7), [3, 2], [2, 1]),
        Sample(I8(1, 3, 10, 10), [3, 3], [2, 2], [1, 1], [1, 1], True),
        Sample(I8(1, 4, 6, 6), [6, 6]),
        Sample(I8(2, 3, 17, 18), [5, 5], [4, 4], [2, 2]),
        Sample(I8(1, 2, 12, 12), [4, 4], [5, 4]),
        Sample(I8(1, 4, 12, 13), [3, 3], [1, 1], [1, 1], [2, 2]),
        Sample(I8(2, 3, 11, 14), [3, 2], [2, 1], [1, 1], [2, 3]),
        Sample(I8(1, 5, 9, 9), [2, 2], [2, 2], [0, 0], [2, 2], True),
        Sample(I8(1, 4, 9, 9), [4, 4], [4, 4], [2, 2], [2, 1]),
        Sample(I8(1, 3, 13, 10), [5, 5], [1, 1], [2, 2]),
        Sample(I8(2, 5, 12, 12), [9, 7], [2, 1], [4, 3]),
        Sample(I8(3, 9, 9), [3, 3], [3, 3], [0, 0], [4, 4]),
    ],
)
def max_pool2d(
    b: Builder,
    x: QTensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    *,
    out: Result,
) -> Any:
    """Return the maximum over each window, excluding padding: int8[N,C,H,W] -> int8[N,C,OH,OW]. TOSA MAX_POOL2D."""
    value, window = _window(x, kernel, stride, padding, dilation, out).crop(b, b.nhwc(x))
    if max(window.stride) > 3 and window.is_padded and not x.is_float:  # NPUs cannot pad with a stride above 3
        value, window = _pad_with_lowest(b, value, window), window.without_padding()
    if max(window.dilation) > 1 or _by_axes(b, value, window):
        for axis in (1, 0):
            value = _pool_along(b, value, axis, window.axes(axis))
    else:
        value = b.emit("MAX_POOL2D", value, kernel=window.kernel, stride=window.stride, pad=window.pad)
    return b.to_qparams(b.from_nhwc(value, x.q, x.rank), out.qparams)


def _by_axes(b: Builder, value: Value, window: Window) -> bool:
    if (largest := b.tuning.largest_max_pool_in_turn_bytes) is None or value.dtype not in ("INT8", "INT16"):
        return False
    (kh, kw), sy = window.kernel, window.stride[0]
    size = math.prod(value.shape) * (2 if value.dtype == "INT16" else 1)
    in_turn = (max(kw, 4) * sy + max(kh, 4)) * 1.1
    return kh * kw > in_turn and min(kh, kw) > 1 and (size <= largest or kh * kw >= 49)


def _pool_along(b: Builder, value: Value, axis: int, window: Window) -> Value:

    def over_map(along: Window) -> Window:
        return along + Window.of((1,)) if axis == 0 else Window.of((1,)) + along

    def pool(value: Value, along: Window) -> Value:
        both = over_map(along)
        return b.emit("MAX_POOL2D", value, kernel=both.kernel, stride=both.stride, pad=both.pad)

    (kernel,), (stride,), (dilation,) = window.kernel, window.stride, window.dilation
    if dilation == 1 or kernel == 1:
        return pool(value, window)
    shape = list(value.shape)
    total = shape[1 + axis] + window.before[0] + window.after[0]
    results = total - window.span[0] + 1
    value = _pad_with_lowest(b, value, over_map(replace(window, after=(window.after[0] + -total % dilation,))))
    folded = list(value.shape)
    folded[1 + axis] //= dilation
    folded[2 + axis] *= dilation
    value = pool(b.reshape(value, folded), Window.of((kernel,)))
    shape[1 + axis] = value.shape[1 + axis] * dilation
    value = b.reshape(value, shape)
    shape[1 + axis] = (results - 1) // stride * stride + 1
    value = b.crop(value, shape)
    return pool(value, Window.of((1,), stride)) if stride > 1 else value


def _pad_with_lowest(b: Builder, value: Value, window: Window) -> Value:
    if not window.is_padded:
        return value
    lowest = -math.inf if value.dtype in FLOATS else dtype_range(value.dtype)[0]
    return b.emit("PAD", value, padding=(0, 0, *window.pad, 0, 0), pad_const=lowest)


def _average_rule(node: Any) -> QuantRule:
    if len(node.args) > 6 and node.args[6]:
        return EACH_INPUT
    whole_map = tuple(node.meta["val"].shape[-2:]) == (1, 1)
    return EACH_INPUT if whole_map else AVERAGED


@op(
    "aten.avg_pool2d.default",
    quant=_average_rule,
    homogeneous=2,
    bound=2,
    samples=[
        Sample(I8(1, 8, 8, 8), [2, 2]),
        Sample(I8(1, 8, 9, 7), [3, 3], [2, 2], [1, 1]),
        Sample(I8(1, 16, 25, 5), [25, 5]),
        Sample(I8(1, 8, 9, 9), [3, 3], [2, 2], [1, 1], False, False),
        Sample(I8(1, 6, 8, 8), [8, 8]),
        Sample(I8(1, 4, 10, 10), [3, 3], [2, 2], [0, 0], True),
        Sample(I8(1, 4, 8, 8), [2, 2], [2, 2], [0, 0], False, True, 3),
        Sample(I8(3, 4, 17, 17), [5, 5], [4, 4], [2, 2]),
        Sample(I8(1, 2, 20, 21), [9, 10], [5, 3]),
        Sample(I8(1, 2, 14, 13), [3, 3], [2, 2], [1, 1], True, False, 2),
        Sample(I8(1, 2, 9, 9), [3, 4], [2, 2], [1, 0], False, True, 7),
        Sample(I8(1, 3, 5, 5), [7, 7], [1, 1], [1, 1], False, False, 2),
        Sample(I8(1, 2, 20, 20), [12, 12], [4, 4], [0, 0], False, True, 144),
    ],
)
def avg_pool2d(
    b: Builder,
    x: QTensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    out: Result,
) -> QTensor:
    """Return the mean over each window: int8[N,C,H,W] -> int8[N,C,OH,OW]. TOSA AVG_POOL2D.

    - A single window that covers the feature map uses ``mean_over``.
    - Padding that the mean includes becomes a PAD with the zero point.
    - If ``divisor_override`` is set, padding is included, and a RESCALE changes the divisor. Before this RESCALE, int8 averages
      have 7 fractional bits.
    """
    explicit = Window.of(_two(kernel), stride or _two(kernel), padding)
    factor = math.prod(explicit.kernel) / divisor_override if divisor_override else 1.0
    if explicit.kernel == x.shape[-2:] and not explicit.is_padded:
        return mean_over(b, x, (x.rank - 2, x.rank - 1), out.qparams, factor=factor)
    value, window = _window(x, kernel, stride, padding, 1, out).crop(b, b.nhwc(x))
    if (count_include_pad and any(window.before)) or (divisor_override and window.is_padded):
        # Padding for ceil_mode is included only if the divisor is explicit.
        most = window.after if divisor_override else explicit.after
        counted = replace(window, after=tuple(min(pair) for pair in zip(window.after, most, strict=True)))
        value = b.emit("PAD", value, padding=(0, 0, *counted.pad, 0, 0), pad_const=x.qparams.zp)
        rest = tuple(pad - included for pad, included in zip(window.after, counted.after, strict=True))
        window = replace(window, before=(0, 0), after=rest)
    zp, fine = x.qparams.zp, 1.0
    if divisor_override and value.dtype == "INT8":  # a step of x can span several steps of the result
        zp, fine = 0, 128.0
        value = b.rescale(value, fine, input_zp=x.qparams.zp, dtype="INT16")
    value = b.emit("AVG_POOL2D", value, kernel=window.kernel, stride=window.stride, pad=window.pad, input_zp=zp, output_zp=zp)
    if divisor_override:
        value = b.requantize(b.rescale(value, 1.0, input_zp=zp, dtype="INT32"), x.qparams.step * factor / fine, out.qparams)
        return b.from_nhwc(value, out.qparams, x.rank)
    return b.to_qparams(b.from_nhwc(value, x.q, x.rank), out.qparams)


def adaptive_windows(extent: int, size: int) -> tuple[int, int] | None:
    """Return (kernel, stride) of adaptive windows, or None if they are not uniform.

    Window i starts at floor(i * extent / size) and ends before ceil((i + 1) * extent / size).
    """
    starts = [i * extent // size for i in range(size)]
    ends = [-(-(i + 1) * extent // size) for i in range(size)]
    kernels = {end - start for start, end in zip(starts, ends, strict=True)}
    strides = {b - a for a, b in pairwise(starts)} or {1}
    return (kernels.pop(), strides.pop()) if len(kernels) == len(strides) == 1 and 0 not in strides else None


@op(
    "aten.adaptive_avg_pool2d.default",
    "aten._adaptive_avg_pool2d.default",
    quant=_average_rule,
    homogeneous=2,
    bound=2,
    samples=[
        Sample(I8(1, 8, 7, 7), [1, 1]),
        Sample(I8(1, 4, 8, 6), [4, 3]),
        Sample(I8(2, 5, 6, 6), [1, 1]),
        Sample(I8(1, 4, 7, 7), [3, 3]),
        Sample(I8(1, 3, 4, 4), [6, 5]),
        Sample(I8(1, 12, 1, 1), [3, 3]),
    ],
)
def adaptive_avg_pool2d(b: Builder, x: QTensor, size: Sequence[int], *, out: Result) -> QTensor:
    """Return the mean over each adaptive window: int8[N,C,H,W] -> int8[N,C,*size]. TOSA AVG_POOL2D.

    - A single window uses ``mean_over``.
    - Uniform windows use one AVG_POOL2D.
    - Windows of different sizes, e.g. 4 windows over 7 elements, use one AVG_POOL2D each, and CONCATs join the results.
    """
    height, width = out.shape[-2:]
    if (height, width) == (1, 1):
        return mean_over(b, x, (x.rank - 2, x.rank - 1), out.qparams)
    rows_alike, columns_alike = adaptive_windows(x.shape[-2], height), adaptive_windows(x.shape[-1], width)
    if rows_alike and columns_alike:
        (kh, sh), (kw, sw) = rows_alike, columns_alike
        pooled: QTensor = avg_pool2d(b, x, [kh, kw], [sh, sw], out=out)
        return pooled
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
    return b.to_qparams(b.from_nhwc(result, x.q, x.rank), out.qparams)
