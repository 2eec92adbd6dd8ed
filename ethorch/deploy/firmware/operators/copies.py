"""Operators that move elements without changing them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ethorch.deploy.firmware.operators.table import kernel
from ethorch.deploy.firmware.views import View
from ethorch.deploy.firmware.writer import Refused, Writer

Dims = Sequence[int]


@kernel(
    "aten::alias_copy.out",
    "aten::detach_copy.out",
    "aten::lift_fresh_copy.out",
)
def same(w: Writer, x: View, out: View) -> None:
    w.copy(out, x)


@kernel("aten::clone.out")
def clone(w: Writer, x: View, memory_format: int | None, out: View) -> None:
    """Copy x to out. Their dimension orders can differ."""
    w.copy(out, x)


@kernel("dim_order_ops::_clone_dim_order.out")
def clone_dim_order(w: Writer, x: View, non_blocking: bool, dim_order: Dims | None, out: View) -> None:
    w.copy(out, x)


@kernel("dim_order_ops::_to_dim_order_copy.out")
def to_dim_order_copy(w: Writer, x: View, non_blocking: bool, dim_order: Dims | None, out: View) -> None:
    """Copy x to out, converting the dtype and the dimension order. Conversions from floats to integers truncate.

    Floats outside the integer range become 0 or the minimum of the dtype, as on x86-64.
    """
    w.cast(out, x)


@kernel("aten::_to_copy.out")
def to_copy(w: Writer, x: View, non_blocking: bool, memory_format: int | None, out: View) -> None:
    w.cast(out, x)


@kernel("aten::copy.out")
def copy(w: Writer, x: View, source: View, non_blocking: bool, out: View) -> None:
    """Copy source to out, broadcasting the shape and converting the dtype."""
    w.cast(out, source.expand(out.shape) or source)


@kernel("aten::copy_")
def copy_(w: Writer, out: View, source: View, non_blocking: bool) -> None:
    """Copy source to the mutable buffer out."""
    w.cast(out, source.expand(out.shape) or source)


def _copy_reshaped(w: Writer, x: View, out: View) -> None:
    if x.is_contiguous and out.is_contiguous:
        flat = (x.numel,)
        w.copy(out.reshape(flat) or out, x.reshape(flat) or x)
        return
    view = x.reshape(out.shape)
    if view is None:
        raise Refused(
            "view",
            f"expected a contiguous input to reshape {list(x.shape)} to {list(out.shape)}, got another dimension order",
            "Call .contiguous() on the input in the model.",
        )
    w.copy(out, view)


@kernel("aten::view_copy.out", "aten::_unsafe_view.out", "aten::_reshape_copy.out", "executorch_prim::et_view.default")
def view_copy(w: Writer, x: View, size: Dims, out: View) -> None:
    if x.address == out.address and x.is_contiguous and out.is_contiguous:
        return
    _copy_reshaped(w, x, out)


@kernel("aten::unsqueeze_copy.out", "aten::squeeze_copy.dim_out", "aten::squeeze_copy.dims_out")
def squeeze_copy(w: Writer, x: View, dim: object, out: View) -> None:
    _copy_reshaped(w, x, out)


@kernel("aten::permute_copy.out")
def permute_copy(w: Writer, x: View, dims: Dims, out: View) -> None:
    w.copy(out, x.permute(dims))


@kernel("aten::transpose_copy.int_out")
def transpose_copy(w: Writer, x: View, dim0: int, dim1: int, out: View) -> None:
    w.copy(out, x.swap(dim0, dim1))


@kernel("aten::t_copy.out")
def t_copy(w: Writer, x: View, out: View) -> None:
    w.copy(out, x.swap(0, 1) if x.rank == 2 else x)


@kernel("aten::slice_copy.Tensor_out")
def slice_copy(w: Writer, x: View, dim: int, start: int | None, end: int | None, step: int, out: View) -> None:
    w.copy(out, x.slice(dim, start, end, step))


@kernel("aten::narrow_copy.out")
def narrow_copy(w: Writer, x: View, dim: int, start: int, length: int, out: View) -> None:
    first = start + x.shape[x.axis(dim)] if start < 0 else start
    w.copy(out, x.slice(dim, first, first + length))


@kernel("aten::select_copy.int_out")
def select_copy(w: Writer, x: View, dim: int, index: int, out: View) -> None:
    w.copy(out, x.select(dim, index))


@kernel("aten::slice_scatter.out")
def slice_scatter(w: Writer, x: View, source: View, dim: int, start: int | None, end: int | None, step: int, out: View) -> None:
    w.copy(out, x)
    w.copy(out.slice(dim, start, end, step), source)


@kernel("aten::select_scatter.out")
def select_scatter(w: Writer, x: View, source: View, dim: int, index: int, out: View) -> None:
    w.copy(out, x)
    w.copy(out.select(dim, index), source)


@kernel("aten::expand_copy.out")
def expand_copy(w: Writer, x: View, size: Dims, implicit: bool, out: View) -> None:
    w.copy(out, x.expand(out.shape) or x)


@kernel("aten::repeat.out")
def repeat(w: Writer, x: View, repeats: Dims, out: View) -> None:
    lead = len(repeats) - x.rank
    shape = (1,) * lead + x.shape
    wide = tuple(n for pair in zip(repeats, shape, strict=True) for n in pair)
    cells = x
    for axis in range(len(repeats)):
        cells = cells.insert_axis(2 * axis)
        if axis < lead:
            cells = cells.insert_axis(2 * axis)
    tiles, target = cells.expand(wide), out.reshape(wide)
    if tiles is None or target is None:
        text = f"expected contiguous tensors to repeat {list(x.shape)} to {list(out.shape)}, got another dimension order"
        raise Refused("shape", text, "Call .contiguous() on the input in the model.")
    w.copy(target, tiles)


@kernel("aten::flip.out")
def flip(w: Writer, x: View, dims: Dims, out: View) -> None:
    w.copy(out, x.flip(dims))


@kernel("aten::roll.out")
def roll(w: Writer, x: View, shifts: Dims, dims: Dims, out: View) -> None:
    """Compute out = x.roll(shifts, dims) with 2^n copies, where n is the number of rolled axes."""
    if not dims:
        raise Refused(
            "roll", "expected dims for roll, got none", "Flatten the tensor in the model, roll dim 0, and reshape the result."
        )
    parts = [(x, out)]
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[x.axis(dim)]
        cut = -shift % size if size else 0
        parts = [
            part
            for a, b in parts
            for part in (
                (a.slice(dim, cut, size), b.slice(dim, 0, size - cut)),
                (a.slice(dim, 0, cut), b.slice(dim, size - cut, size)),
            )
        ]
    for a, b in parts:
        w.copy(b, a)


@kernel("aten::cat.out")
def cat(w: Writer, tensors: Sequence[View], dim: int, out: View) -> None:
    """Concatenate tensors along an axis. Tensors of shape [0] are skipped."""
    joined_views = [x for x in tensors if x.shape != (0,) or out.rank == 1]
    if any(x.dtype != out.dtype for x in joined_views):
        raise Refused(
            "dtype",
            f"expected inputs of {out.dtype}, got {' and '.join(sorted({x.dtype for x in joined_views}))}",
            "Convert all inputs to one dtype in the model (x.to(...)).",
        )
    at = out.axis(dim)
    sizes = [x.shape[at] for x in joined_views]
    for x, start, size in zip(joined_views, accumulate([0, *sizes[:-1]]), sizes, strict=True):
        w.copy(out.slice(dim, start, start + size), x)


@kernel("aten::stack.out")
def stack(w: Writer, tensors: Sequence[View], dim: int, out: View) -> None:
    for index, x in enumerate(tensors):
        w.copy(out.select(dim, index), x)


def _split(w: Writer, x: View, sizes: Sequence[int], dim: int, out: Sequence[View]) -> None:
    for part, start, size in zip(out, accumulate([0, *sizes[:-1]]), sizes, strict=True):
        w.copy(part, x.slice(dim, start, start + size))


@kernel("aten::split_copy.Tensor_out")
def split_copy(w: Writer, x: View, size: int, dim: int, out: Sequence[View]) -> None:
    _split(w, x, [part.shape[x.axis(dim)] for part in out], dim, out)


@kernel("aten::split_with_sizes_copy.out")
def split_with_sizes_copy(w: Writer, x: View, sizes: Dims, dim: int, out: Sequence[View]) -> None:
    _split(w, x, sizes, dim, out)


@kernel("aten::unbind_copy.int_out")
def unbind_copy(w: Writer, x: View, dim: int, out: Sequence[View]) -> None:
    for index, part in enumerate(out):
        w.copy(part, x.select(dim, index))


@kernel("aten::unfold_copy.out")
def unfold_copy(w: Writer, x: View, dim: int, size: int, step: int, out: View) -> None:
    w.copy(out, x.windows(dim, size, step))


@kernel("aten::diagonal_copy.out")
def diagonal_copy(w: Writer, x: View, offset: int, dim1: int, dim2: int, out: View) -> None:
    w.copy(out, x.diagonal(offset, dim1, dim2))


@kernel("aten::pixel_shuffle.out")
def pixel_shuffle(w: Writer, x: View, factor: int, out: View) -> None:
    lead, (channels, high, wide) = x.shape[:-3], x.shape[-3:]
    cells = x.reshape((*lead, channels // factor**2, factor, factor, high, wide))
    target = out.reshape((*lead, channels // factor**2, high, factor, wide, factor))
    if cells is None or target is None:
        text = "expected contiguous tensors, got another dimension order"
        raise Refused("view", text, "Call .contiguous() on the input in the model.")
    n = len(lead)
    w.copy(target, cells.permute((*range(n), n, n + 3, n + 1, n + 4, n + 2)))


@kernel("aten::pixel_unshuffle.out")
def pixel_unshuffle(w: Writer, x: View, factor: int, out: View) -> None:
    lead, (channels, high, wide) = x.shape[:-3], x.shape[-3:]
    cells = x.reshape((*lead, channels, high // factor, factor, wide // factor, factor))
    target = out.reshape((*lead, channels, factor, factor, high // factor, wide // factor))
    if cells is None or target is None:
        text = "expected contiguous tensors, got another dimension order"
        raise Refused("view", text, "Call .contiguous() on the input in the model.")
    n = len(lead)
    w.copy(target, cells.permute((*range(n), n, n + 2, n + 4, n + 1, n + 3)))


@kernel("aten::constant_pad_nd.out")
def constant_pad_nd(w: Writer, x: View, pad: Dims, value: float, out: View) -> None:
    """Pad x with a constant. As in ExecuTorch's runtime, negative padding is not supported."""
    if any(size < 0 for size in pad):
        text = f"expected nonnegative padding, got {list(pad)}"
        raise Refused("argument", text, "Slice the input instead of padding it with negative sizes (x[..., 1:]).")
    inner = out
    for number in range(len(pad) // 2):
        dim = x.rank - 1 - number
        inner = inner.slice(dim, pad[2 * number], out.shape[dim] - pad[2 * number + 1])
    if inner.numel != out.numel:
        w.fill(out, value)
    w.copy(inner, x)


@kernel("aten::full.out")
def full(w: Writer, size: Dims, value: float, out: View) -> None:
    w.fill(out, value)


@kernel("aten::fill.Scalar_out")
def fill(w: Writer, like: View, value: float, out: View) -> None:
    w.fill(out, value)


@kernel("aten::fill.Tensor_out")
def fill_with_tensor(w: Writer, like: View, value: View, out: View) -> None:
    w.cast(out, value.expand(out.shape) or value)


@kernel("aten::full_like.out")
def full_like(w: Writer, like: View, value: float, memory_format: int | None, out: View) -> None:
    w.fill(out, value)


@kernel("aten::zeros.out")
def zeros(w: Writer, size: Dims, out: View) -> None:
    w.fill(out, 0)


@kernel("aten::ones.out")
def ones(w: Writer, size: Dims, out: View) -> None:
    w.fill(out, 1)


@kernel("aten::scalar_tensor.out")
def scalar_tensor(w: Writer, value: float, out: View) -> None:
    w.fill(out, value)


@kernel("aten::arange.start_out")
def arange(w: Writer, start: float, end: float, step: float, out: View) -> None:
    """Copy [start, start + step, ...] from a constant array."""
    if out.numel:
        values = [start + index * step for index in range(out.numel)]
        w.copy(out, View(w.numbers(values, out.dtype), out.dtype, out.shape, out.strides))


@kernel("aten::arange.out")
def arange_from_0(w: Writer, end: float, out: View) -> None:
    arange(w, 0, end, 1, out)


@kernel("aten::empty.out", "dim_order_ops::_empty_dim_order.out")
def empty(w: Writer, size: Dims, order: object, out: View) -> None: ...
