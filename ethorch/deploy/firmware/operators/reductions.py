"""Reductions, argmax and argmin, top-k, cumulative sums, softmax and normalization.

Sums are computed in index order. ExecuTorch's host runtime computes some sums in parts, so the last digits of floats can differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ethorch.deploy.firmware.operators.dtypes import compute, computing, need_float32, scalar
from ethorch.deploy.firmware.operators.table import kernel
from ethorch.deploy.firmware.views import View
from ethorch.deploy.firmware.writer import SUFFIX, Refused, Writer, refuse_dtype

Dims = Sequence[int]


def _axes(x: View, dims: Dims | None) -> list[int]:
    """Return the reduced axes in ascending order. Empty or absent ``dims`` select all axes."""
    return sorted({x.axis(dim) for dim in dims}) if dims and x.rank else list(range(x.rank))


def _with_axes(out: View, x: View, axes: Sequence[int]) -> View:
    if out.rank != x.rank:
        for axis in axes:
            out = out.insert_axis(axis)
    strides = tuple(0 if axis in axes else stride for axis, stride in enumerate(out.strides))
    return replace(out, shape=x.shape, strides=strides)


def _accumulate(w: Writer, function: str, dtype: str, out: View, x: View, axes: Sequence[int]) -> None:
    """Compute out = function(x, out) for each element x in index order. Reduced axes have stride 0 in the output."""
    # The inner loop runs along either the kept or the reduced axes, whichever have more elements. If dtypes are converted, it
    # runs along the kept axes, because the elements of a converted row must have different outputs.
    if not x.numel:
        return
    target = _with_axes(out, x, axes)
    kept_axes = [axis for axis in range(x.rank) if axis not in axes]
    converted = not out.dtype == x.dtype == dtype
    order = [*axes, *kept_axes] if converted or out.numel * out.numel > x.numel else [*kept_axes, *axes]
    if not order:
        target, x, order = target.insert_axis(0), x.insert_axis(0), [0]
    compute(w, function, "elementwise.c", (dtype, dtype), dtype, (target, x, target), order=order)


def _sum(w: Writer, x: View, dims: Dims | None, out: View) -> None:
    need_float32(out.dtype)
    need_float32(x.dtype)
    w.fill(out, 0)
    wide = computing(out.dtype)
    _accumulate(w, f"etk_add_{SUFFIX[wide]}", wide, out, x, _axes(x, dims))


@kernel("aten::sum.IntList_out")
def sum(w: Writer, x: View, dims: Dims | None, keepdim: bool, dtype: int | None, out: View) -> None:
    _sum(w, x, dims, out)


@kernel("aten::mean.out")
def mean(w: Writer, x: View, dims: Dims | None, keepdim: bool, dtype: int | None, out: View) -> None:
    if out.dtype != "float32":
        raise refuse_dtype(out.dtype, "float32")
    _sum(w, x, dims, out)
    count = 1
    for axis in _axes(x, dims):
        count *= x.shape[axis]
    w.map("etk_div_f32", "elementwise.c", [out, out, scalar(w, count, "float32")])


@kernel("aten::mean.dtype_out")
def mean_of_all(w: Writer, x: View, dtype: int | None, out: View) -> None:
    mean(w, x, None, False, dtype, out)


def _product(w: Writer, x: View, dims: Dims | None, out: View) -> None:
    need_float32(out.dtype)
    need_float32(x.dtype)
    w.fill(out, 1)
    wide = computing(out.dtype)
    _accumulate(w, f"etk_mul_{SUFFIX[wide]}", wide, out, x, _axes(x, dims))


@kernel("aten::prod.int_out")
def prod(w: Writer, x: View, dim: int, keepdim: bool, dtype: int | None, out: View) -> None:
    _product(w, x, [dim], out)


@kernel("aten::prod.out")
def prod_of_all(w: Writer, x: View, dtype: int | None, out: View) -> None:
    _product(w, x, None, out)


def _extreme(w: Writer, name: str, x: View, dims: Dims | None, out: View) -> None:
    need_float32(x.dtype)
    axes = _axes(x, dims)
    if not x.numel and out.numel:
        text = f"expected at least one element along the reduced axes, got shape {list(x.shape)}"
        raise Refused("shape", text, "Pass an input that is not empty.")
    first = x
    for axis in axes:
        first = first.slice(axis, 0, 1)
    target = out
    if out.rank != x.rank:
        for axis in axes:
            target = target.insert_axis(axis)
    w.copy(target, first)  # start with the first element because not every dtype has a minimum
    wide = computing(x.dtype)
    _accumulate(w, f"etk_{name}_{SUFFIX[wide]}", wide, out, x, axes)


@kernel("aten::amax.out")
def amax(w: Writer, x: View, dims: Dims | None, keepdim: bool, out: View) -> None:
    """Compute the maximum over axes. NaN propagates."""
    _extreme(w, "maximum", x, dims, out)


@kernel("aten::amin.out")
def amin(w: Writer, x: View, dims: Dims | None, keepdim: bool, out: View) -> None:
    _extreme(w, "minimum", x, dims, out)


@kernel("aten::max.unary_out")
def max_of_all(w: Writer, x: View, out: View) -> None:
    _extreme(w, "maximum", x, None, out)


@kernel("aten::min.unary_out")
def min_of_all(w: Writer, x: View, out: View) -> None:
    _extreme(w, "minimum", x, None, out)


def _truth(w: Writer, name: str, start: bool, x: View, dims: Dims | None, out: View) -> None:
    if out.dtype != "bool":
        raise refuse_dtype(out.dtype, "bool")
    w.fill(out, start)
    _accumulate(w, f"etk_{name}_b8", "bool", out, x, _axes(x, dims))


@kernel("aten::any.out")
def any_along(w: Writer, x: View, dim: int, keepdim: bool, out: View) -> None:
    _truth(w, "logical_or", False, x, [dim], out)


@kernel("aten::any.dims_out")
def any_over(w: Writer, x: View, dims: Dims | None, keepdim: bool, out: View) -> None:
    _truth(w, "logical_or", False, x, dims, out)


@kernel("aten::any.all_out")
def any_of_all(w: Writer, x: View, out: View) -> None:
    _truth(w, "logical_or", False, x, None, out)


@kernel("aten::cumsum.out")
def cumsum(w: Writer, x: View, dim: int, dtype: int | None, out: View) -> None:
    need_float32(out.dtype)
    need_float32(x.dtype)
    if not out.rank:
        w.cast(out, x)
        return
    if not out.numel:
        return
    axis, size = x.axis(dim), x.shape[x.axis(dim)]
    w.cast(out.slice(axis, 0, 1), x.slice(axis, 0, 1))
    views = [out.slice(axis, 1, size), out.slice(axis, 0, size - 1), x.slice(axis, 1, size)]
    wide = computing(out.dtype)
    order = [axis, *(plain_axis for plain_axis in range(x.rank) if plain_axis != axis)]
    compute(w, f"etk_add_{SUFFIX[wide]}", "elementwise.c", (wide, wide), wide, tuple(views), order=order)


_PLACES = ("float32", "int8", "uint8", "int16", "int32", "int64", "bool")


def _place(w: Writer, name: str, x: View, dim: int | None, out: View) -> None:
    if x.dtype not in _PLACES:
        raise refuse_dtype(x.dtype, ", ".join(_PLACES))
    if dim is None:
        flat = x.reshape((x.numel,))
        if flat is None or not x.is_contiguous:
            text = "expected a contiguous input, got another dimension order"
            raise Refused("view", text, "Call .contiguous() on the input in the model.")
        x, dim = flat, 0
    if not x.rank:
        w.fill(out, 0)
        return
    axis = x.axis(dim)
    if not x.shape[axis] and out.numel:
        text = f"expected at least one element along the reduced axes, got shape {list(x.shape)}"
        raise Refused("shape", text, "Pass an input that is not empty.")
    parameters = w.integers([x.shape[axis], x.strides[axis] * x.item_bytes])
    first = x.select(axis, 0) if out.rank != x.rank else x.slice(axis, 0, 1)
    w.map(f"etk_{name}_{SUFFIX[x.dtype]}", "places.c", [out.reshape(first.shape) or out, first], parameters)


@kernel("aten::argmax.out")
def argmax(w: Writer, x: View, dim: int | None, keepdim: bool, out: View) -> None:
    _place(w, "argmax", x, dim, out)


@kernel("aten::argmin.out")
def argmin(w: Writer, x: View, dim: int | None, keepdim: bool, out: View) -> None:
    _place(w, "argmin", x, dim, out)


@kernel("aten::max.dim_max")
def max_along(w: Writer, x: View, dim: int, keepdim: bool, values: View, indices: View) -> None:
    _extreme(w, "maximum", x, [dim], values)
    _place(w, "argmax", x, dim, indices)


@kernel("aten::min.dim_min")
def min_along(w: Writer, x: View, dim: int, keepdim: bool, values: View, indices: View) -> None:
    _extreme(w, "minimum", x, [dim], values)
    _place(w, "argmin", x, dim, indices)


@kernel("aten::topk.values")
def topk(w: Writer, x: View, k: int, dim: int, largest: bool, sorted: bool, values: View, indices: View) -> None:
    """Compute the k largest or smallest elements along an axis, sorted, and their indices. Ties are in index order."""
    if x.dtype not in _PLACES or x.dtype == "bool":
        raise refuse_dtype(x.dtype, ", ".join(_PLACES[:-1]))
    if not values.numel:
        return
    if not x.rank:
        w.copy(values, x)
        w.fill(indices, 0)
        return
    axis = x.axis(dim)
    steps = [view.strides[axis] * view.item_bytes for view in (values, indices, x)]
    parameters = w.integers([k, x.shape[axis], int(largest), *steps])
    views = [view.select(axis, 0) for view in (values, indices, x)]
    w.map(f"etk_topk_{SUFFIX[x.dtype]}", "places.c", views, parameters)


def _along(w: Writer, name: str, x: View, dim: int, out: View) -> None:
    if x.dtype != "float32" or out.dtype != "float32":
        raise refuse_dtype(x.dtype if x.dtype != "float32" else out.dtype, "float32")
    if not x.rank:
        x, out, dim = x.insert_axis(0), out.insert_axis(0), 0
    axis = x.axis(dim)
    if not out.numel:
        return
    parameters = w.integers([x.shape[axis], out.strides[axis] * 4, x.strides[axis] * 4])
    w.map(f"etk_{name}_f32", "softmax.c", [out.select(axis, 0), x.select(axis, 0)], parameters)


@kernel("aten::_softmax.out")
def softmax(w: Writer, x: View, dim: int, half_to_float: bool, out: View) -> None:
    _along(w, "softmax", x, dim, out)


@kernel("aten::_log_softmax.out")
def log_softmax(w: Writer, x: View, dim: int, half_to_float: bool, out: View) -> None:
    _along(w, "log_softmax", x, dim, out)


@kernel("aten::native_layer_norm.out")
def native_layer_norm(
    w: Writer, x: View, shape: Dims, weight: View | None, bias: View | None, eps: float, out: View, mean: View, rstd: View
) -> None:
    """Compute (x - mean) / sqrt(variance + eps) * weight + bias over the last axes."""
    if x.dtype != "float32":
        raise refuse_dtype(x.dtype, "float32")
    if not x.numel:
        return
    if not (x.is_contiguous and out.is_contiguous):
        text = "expected contiguous tensors, got another dimension order"
        raise Refused("view", text, "Call .contiguous() on the input in the model.")
    inner = 1
    for size in shape:
        inner *= size
    outer = x.numel // inner
    rows, result = x.reshape((outer, inner)), out.reshape((outer, inner))
    means, factors = mean.reshape((outer,)), rstd.reshape((outer,))
    if rows is None or result is None or means is None or factors is None:
        text = "expected contiguous tensors, got another dimension order"
        raise Refused("view", text, "Call .contiguous() on the input in the model.")
    parameters = w.constant("etk_normalization {}", f"{{{inner}, {float(eps).hex()}F}}")
    w.map("etk_moments_f32", "softmax.c", [means, factors, rows.select(1, 0)], f"&{parameters}")
    w.map("etk_sub_f32", "elementwise.c", [result, rows, means.insert_axis(1)])
    w.map("etk_div_f32", "elementwise.c", [result, result, factors.insert_axis(1)])
    w.map("etk_reciprocal_f32", "elementwise.c", [factors, factors])
    for function, view in (("etk_mul_f32", weight), ("etk_add_f32", bias)):
        if view is not None:
            w.map(function, "elementwise.c", [result, result, view.reshape((inner,)) or view])


@kernel("aten::_native_batch_norm_legit_no_training.out")
def native_batch_norm(
    w: Writer,
    x: View,
    weight: View | None,
    bias: View | None,
    mean: View,
    variance: View,
    momentum: float,
    eps: float,
    out: View,
    saved_mean: View,
    saved_factor: View,
) -> None:
    """Compute (x - mean) / sqrt(variance + eps) * weight + bias per channel."""
    for view in (x, mean, variance, *(view for view in (weight, bias) if view is not None)):
        if view.dtype != "float32":
            raise refuse_dtype(view.dtype, "float32")
    shape = [x.shape[axis] if axis == 1 else 1 for axis in range(x.rank)]

    def of_channels(view: View) -> View:
        return view.reshape(shape) or view

    parameters = w.numbers([eps], "float32")
    w.map("etk_normalize_f32", "softmax.c", [out, x, of_channels(mean), of_channels(variance)], parameters)
    for function, factor in (("etk_mul_f32", weight), ("etk_add_f32", bias)):
        if factor is not None:
            w.map(function, "elementwise.c", [out, out, of_channels(factor)])
