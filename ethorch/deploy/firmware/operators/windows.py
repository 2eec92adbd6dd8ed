"""Pooling, convolution and padding of images.

Sums are computed in window order and rounded after each addition. ExecuTorch's optimized host kernels may add in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ethorch.deploy.firmware.operators.dtypes import scalar
from ethorch.deploy.firmware.operators.table import kernel
from ethorch.deploy.firmware.views import View
from ethorch.deploy.firmware.writer import SUFFIX, Refused, Writer, braces, refuse_dtype

Dims = Sequence[int]


def _pair(numbers: Dims, default: Dims = ()) -> tuple[int, int]:
    numbers = numbers or default
    return (numbers[0], numbers[-1])


def _steps(view: View) -> tuple[int, int]:
    return (view.strides[-2] * view.item_bytes, view.strides[-1] * view.item_bytes)


def _window(
    w: Writer,
    x: View,
    out: View,
    kernel: Dims,
    stride: Dims,
    padding: Dims,
    dilation: Dims = (1, 1),
    divisor: int = 0,
    counts_padding: bool = False,
    places: tuple[int, int] = (0, 0),
    channels: tuple[int, int] = (0, 0),
    weights: Dims = (0, 0, 0),
    has_bias: bool = False,
) -> str:
    pairs = [x.shape[-2:], out.shape[-2:], _steps(x), _steps(out), kernel, stride, padding, dilation]
    fields = [
        *(braces([str(n) for n in pair]) for pair in pairs),
        str(divisor),
        str(int(counts_padding)),
        braces([str(n) for n in places]),
        *map(str, channels),
        braces([str(n) for n in weights]),
        str(int(has_bias)),
    ]
    return "&" + w.constant("etk_window {}", braces(fields))


def _planes(view: View) -> View:
    return view.select(-1, 0).select(-1, 0)


@kernel("aten::avg_pool2d.out")
def avg_pool2d(
    w: Writer,
    x: View,
    kernel: Dims,
    stride: Dims,
    padding: Dims,
    ceil_mode: bool,
    counts_padding: bool,
    divisor: int | None,
    out: View,
) -> None:
    if x.dtype != "float32":
        raise refuse_dtype(x.dtype, "float32")
    if not out.numel:
        return
    kernel = _pair(kernel)
    parameters = _window(
        w, x, out, kernel, _pair(stride, kernel), _pair(padding), divisor=divisor or 0, counts_padding=counts_padding
    )
    w.map("etk_avg_pool_f32", "pool.c", [_planes(out), _planes(x)], parameters)


@kernel("aten::_adaptive_avg_pool2d.out")
def adaptive_avg_pool2d(w: Writer, x: View, size: Dims, out: View) -> None:
    """Average one window for each output element. All windows have the same size."""
    rest = [x.shape[axis] % out.shape[axis] for axis in (-2, -1)]
    if any(rest):
        text = f"expected an output size that divides the input size {list(x.shape[-2:])}, got {list(out.shape[-2:])}"
        raise Refused("shape", text, "Use an output size that divides the input size.")
    kernel = [x.shape[axis] // out.shape[axis] for axis in (-2, -1)]
    avg_pool2d(w, x, kernel, kernel, (0, 0), False, True, None, out)


@kernel("aten::max_pool2d_with_indices.out")
def max_pool2d_with_indices(
    w: Writer, x: View, kernel: Dims, stride: Dims, padding: Dims, dilation: Dims, ceil_mode: bool, out: View, places: View
) -> None:
    """Compute the maximum of each window, and the index of the maximum in its plane."""
    if x.dtype not in ("float32", "int8", "uint8", "int16", "int32"):
        raise refuse_dtype(x.dtype, "float32, int8, uint8, int16, int32")
    if not out.numel:
        return
    kernel = _pair(kernel)
    window = _window(w, x, out, kernel, _pair(stride, kernel), _pair(padding), _pair(dilation), places=_steps(places))
    w.map(f"etk_max_pool_{SUFFIX[x.dtype]}", "pool.c", [_planes(out), _planes(places), _planes(x)], window)


@kernel("aten::convolution.out")
def convolution(
    w: Writer,
    x: View,
    weight: View,
    bias: View | None,
    stride: Dims,
    padding: Dims,
    dilation: Dims,
    transposed: bool,
    output_padding: Dims,
    groups: int,
    out: View,
) -> None:
    """Convolve an image or a sequence in float32. Transposed convolutions are not supported."""
    if x.dtype != "float32" or weight.dtype != "float32":
        raise refuse_dtype(x.dtype if x.dtype != "float32" else weight.dtype, "float32")
    if transposed or x.rank not in (3, 4):
        raise Refused(
            "argument",
            "transposed convolutions have no C kernel"
            if transposed
            else f"expected a convolution over 1 or 2 dimensions, got {x.rank - 2}",
            "Quantize the convolution, so that it runs on the NPU.",
        )
    if not out.numel:
        return
    if x.rank == 3:
        x, weight, out = x.insert_axis(2), weight.insert_axis(2), out.insert_axis(2)
        stride, padding, dilation = (1, stride[0]), (0, padding[0]), (1, dilation[0])
    channels = weight.shape[1]
    parameters = _window(
        w, x, out, weight.shape[2:], _pair(stride), _pair(padding), _pair(dilation),
        channels=(channels, x.strides[1] * 4), weights=[weight.strides[axis] * 4 for axis in (1, 2, 3)], has_bias=bias is not None,
    )  # fmt: skip
    step = weight.shape[0] // groups
    none = scalar(w, 0, "float32") if bias is None else None
    for group in range(groups):
        part = _planes(out).slice(1, group * step, (group + 1) * step)
        image = _planes(x).slice(1, group * channels, group * channels + 1)
        rows = _planes(weight).select(1, 0).slice(0, group * step, (group + 1) * step)
        added = none or (bias.slice(0, group * step, (group + 1) * step) if bias is not None else rows)
        w.map("etk_convolution_f32", "pool.c", [part, image, rows, added], parameters)


def _copy_padded(w: Writer, x: View, pad: Dims, out: View) -> list[tuple[int, int, int]]:
    """Copy the input to the interior of the output. Return tuples (axis, padding before, padding after), last axis first."""
    if any(size < 0 for size in pad):
        text = f"expected nonnegative padding, got {list(pad)}"
        raise Refused("argument", text, "Slice the input instead of padding it with negative sizes (x[..., 1:]).")
    sides = [(x.rank - 1 - number, pad[2 * number], pad[2 * number + 1]) for number in range(len(pad) // 2)]
    inner = out
    for axis, before, after in sides:
        inner = inner.slice(axis, before, out.shape[axis] - after)
    w.copy(inner, x)
    return sides


def _borders(w: Writer, x: View, pad: Dims, out: View) -> Iterator[tuple[View, int, int, int, int]]:
    """Copy ``x`` into ``out``. For each axis, yield (view of ``out``, axis, axis size, padding before, padding after)."""
    # The view includes the borders of earlier axes.
    sides = _copy_padded(w, x, pad, out)
    left_over = {axis: (before, after) for axis, before, after in sides}
    for axis, before, after in sides:
        part = out
        for unfilled_axis, (left, right) in left_over.items():  # exclude borders that are not filled yet
            part = part.slice(unfilled_axis, left, out.shape[unfilled_axis] - right) if unfilled_axis != axis else part
        yield part, axis, out.shape[axis], before, after
        left_over.pop(axis)


@kernel("aten::reflection_pad1d.out", "aten::reflection_pad2d.out", "aten::reflection_pad3d.out")
def reflection_pad(w: Writer, x: View, pad: Dims, out: View) -> None:
    """Pad x by reflection, axis by axis."""
    for part, axis, size, before, after in _borders(w, x, pad, out):
        w.copy(part.slice(axis, 0, before), part.slice(axis, before + 1, 2 * before + 1).flip([axis]))
        w.copy(part.slice(axis, size - after, size), part.slice(axis, size - 2 * after - 1, size - after - 1).flip([axis]))


@kernel("aten::replication_pad1d.out", "aten::replication_pad2d.out", "aten::replication_pad3d.out")
def replication_pad(w: Writer, x: View, pad: Dims, out: View) -> None:
    for part, axis, size, before, after in _borders(w, x, pad, out):
        for border, edge in ((part.slice(axis, 0, before), before), (part.slice(axis, size - after, size), size - after - 1)):
            edge_view = part.slice(axis, edge, edge + 1)
            w.copy(border, edge_view.expand(border.shape) or edge_view)
