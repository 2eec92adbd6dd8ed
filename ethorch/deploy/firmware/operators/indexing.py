"""Embeddings, gathers, scatters, and indexing with tensors.

A call with an out-of-range index fails, as in ExecuTorch's runtime. The outputs of failed calls can differ from the runtime's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ethorch.deploy.firmware.operators.dtypes import computing, scalar, wrap
from ethorch.deploy.firmware.operators.table import kernel
from ethorch.deploy.firmware.views import View, order_axes
from ethorch.deploy.firmware.writer import SUFFIX, Refused, Writer, braces, pointer, refuse_dtype, source

Number = float | int | bool


def _write_walk(
    w: Writer,
    function: str,
    places: View,
    plain: View,
    written_view: View,
    indices: Sequence[View],
    axes: Sequence[tuple[int, int]],
) -> None:
    # Gathers or scatters in a loop over the common shape of all views.
    # places: Indexed tensor, with stride 0 along the indexed axes.
    # plain: Tensor that is not indexed.
    # written_view: The output: ``places`` or ``plain``.
    # indices: Index tensors that broadcast to the loop's shape.
    # axes: Size and stride in bytes of each indexed axis.
    if not 1 <= len(indices) <= 2:
        raise Refused("index", f"expected one or two index tensors, got {len(indices)}", "Index in several steps in the model.")
    for index in indices:
        if index.dtype not in ("int32", "int64") or index.dtype != indices[0].dtype:
            raise refuse_dtype(index.dtype, "int64 or int32 indices, all of one dtype")
    if not plain.numel:
        return
    out, x = (plain, places) if written_view is plain else (places, plain)
    wide = [index.expand(plain.shape) or index for index in indices]
    walk = order_axes([plain, out, x, *wide])  # in the memory order of the tensor that is not indexed
    steps = [(size, all_steps[1:] if all_steps else ()) for size, all_steps in walk]
    run = plain.item_bytes
    if steps and "sum" not in function and steps[-1][1] == (run, run, *(0,) * len(wide)):
        run *= steps.pop()[0]
    name, rank = w.axes(steps)
    sizes, strides = ([pair[k] for pair in axes] + [0] * (2 - len(axes)) for k in (0, 1))
    fields = [len(wide), wide[0].item_bytes, braces([str(n) for n in sizes]), braces([str(n) for n in strides]), run]
    parameters = w.constant("etk_indexing {}", braces([str(field) for field in fields]))
    first, second = source(wide[0]), source(wide[-1])
    w.call_checked("index.c", function, f"&{parameters}", name, rank, pointer(out), source(x), first, second)


def _still(view: View, axis: int, size: int) -> View:
    shape = view.shape[:axis] + (size,) + view.shape[axis + 1 :]
    return replace(view, shape=shape, strides=view.strides[:axis] + (0,) + view.strides[axis + 1 :])


def _along(index: View, rank: int, axis: int) -> View:
    view = index if index.rank else index.insert_axis(0)
    for at in range(rank):
        if at != axis:
            view = view.insert_axis(at)
    return view


@kernel("aten::index_select.out")
def index_select(w: Writer, x: View, dim: int, index: View, out: View) -> None:
    if not x.rank:
        w.copy(out, x)
        return
    axis = x.axis(dim)
    places = _still(x, axis, out.shape[axis])
    step = x.strides[axis] * x.item_bytes
    _write_walk(w, "etk_take", places, out, out, [_along(index, x.rank, axis)], [(x.shape[axis], step)])


@kernel("aten::embedding.out")
def embedding(w: Writer, weight: View, indices: View, padding: int, scale: bool, sparse: bool, out: View) -> None:
    places = replace(weight, shape=(*indices.shape, weight.shape[1]), strides=(*(0 for _ in indices.shape), weight.strides[1]))
    step = weight.strides[0] * weight.item_bytes
    _write_walk(w, "etk_take", places, out, out, [indices.insert_axis(indices.rank)], [(weight.shape[0], step)])


@kernel("aten::gather.out")
def gather(w: Writer, x: View, dim: int, index: View, sparse: bool, out: View) -> None:
    """Compute out[i, j] = x[index[i, j], j] (for dim 0)."""
    if not x.rank:
        w.copy(out, x)
        return
    if not index.rank:
        index, out = (view.insert_axis(0) for view in (index, out))
    axis = x.axis(dim)
    places = replace(_still(x, axis, index.shape[axis]), shape=index.shape)
    step = x.strides[axis] * x.item_bytes
    _write_walk(w, "etk_take", places, out, out, [index], [(x.shape[axis], step)])


def _scatter(w: Writer, function: str, x: View, dim: int, index: View, values: View, out: View) -> None:
    w.copy(out, x)
    if not x.rank:
        x, index, out = (view.insert_axis(0) for view in (x, index, out))
    axis = x.axis(dim)
    places = replace(_still(out, axis, index.shape[axis]), shape=index.shape)
    part = values.expand(index.shape) if not values.rank else replace(values, shape=index.shape)
    if part is None:
        raise Refused(
            "shape",
            f"expected a source of shape {list(index.shape)}, got {list(values.shape)}",
            "Pass a source with the shape of the index.",
        )
    step = out.strides[axis] * out.item_bytes
    _write_walk(w, function, places, part, places, [index], [(out.shape[axis], step)])


@kernel("aten::scatter.src_out")
def scatter(w: Writer, x: View, dim: int, index: View, values: View, out: View) -> None:
    """Copy x to out, then set out[index[i, j], j] to values[i, j] (for dim 0)."""
    _scatter(w, "etk_put", x, dim, index, values, out)


@kernel("aten::scatter.value_out")
def scatter_value(w: Writer, x: View, dim: int, index: View, value: Number, out: View) -> None:
    _scatter(w, "etk_put", x, dim, index, scalar(w, wrap(value, x.dtype), x.dtype), out)


def _sum_of(dtype: str) -> str:
    if dtype not in ("float32", "int32", "int64"):
        raise refuse_dtype(dtype, "float32, int32 or int64 for accumulation")
    return f"etk_put_sum_{SUFFIX[computing(dtype)]}"


@kernel("aten::scatter_add.out")
def scatter_add(w: Writer, x: View, dim: int, index: View, values: View, out: View) -> None:
    """Copy x to out, then add values[i, j] to out[index[i, j], j] (for dim 0)."""
    _scatter(w, _sum_of(x.dtype), x, dim, index, values, out)


def _plan_walk(
    indexed_view: View, indices: Sequence[View | None], walk: Sequence[int]
) -> tuple[View, list[View], list[tuple[int, int]]]:
    """Return the arguments ``places``, ``indices`` and ``axes`` with which ``_write_walk`` accesses x[indices]."""
    # The axes of the indices replace the first indexed axis, or come first if the indexed axes are not adjacent.
    at = [axis for axis, index in enumerate(indices) if index is not None]
    index_views = [index for index in indices if index is not None]
    if any(index.dtype in ("bool", "uint8") for index in index_views):
        raise Refused("index", "expected integer indices, got a mask", "Use torch.where in place of the mask in the model.")
    rank = max((index.rank for index in index_views), default=0)
    front = at[0] if at == list(range(at[0], at[0] + len(at))) else 0
    plain = [axis for axis in range(indexed_view.rank) if axis not in at]
    before, after = [axis for axis in plain if axis < front] if front else [], []
    after = [axis for axis in plain if axis not in before]
    index_shape = tuple(walk[len(before) : len(before) + rank])
    places = replace(
        indexed_view,
        shape=tuple(walk),
        strides=(*(indexed_view.strides[a] for a in before), *(0 for _ in index_shape), *(indexed_view.strides[a] for a in after)),
    )
    views = []
    for index in index_views:
        view = index
        for _ in range(rank - index.rank):
            view = view.insert_axis(0)
        for _ in after:
            view = view.insert_axis(view.rank)
        views.append(view)
    return places, views, [(indexed_view.shape[axis], indexed_view.strides[axis] * indexed_view.item_bytes) for axis in at]


@kernel("aten::index.Tensor_out")
def index(w: Writer, x: View, indices: Sequence[View | None], out: View) -> None:
    places, views, axes = _plan_walk(x, indices, out.shape)
    _write_walk(w, "etk_take", places, out, out, views, axes)


def _index_put(w: Writer, indices: Sequence[View | None], values: View, accumulate: bool, out: View) -> None:
    at = [axis for axis, index_view in enumerate(indices) if index_view is not None]
    index_views = [index_view for index_view in indices if index_view is not None]
    index_shape: tuple[int, ...] = ()
    for index_view in index_views:
        longer, shorter = (
            (index_shape, index_view.shape) if len(index_shape) >= len(index_view.shape) else (index_view.shape, index_shape)
        )
        padded = (1,) * (len(longer) - len(shorter)) + tuple(shorter)
        index_shape = tuple(b if a == 1 else a for a, b in zip(longer, padded, strict=True))
    adjacent = at == list(range(at[0], at[0] + len(at)))
    plain = [out.shape[axis] for axis in range(out.rank) if axis not in at]
    before = at[0] if adjacent else 0
    walk = (*plain[:before], *index_shape, *plain[before:])
    places, views, axes = _plan_walk(out, indices, walk)
    part = values.expand(walk)
    if part is None:
        text = f"expected values that broadcast to {list(walk)}, got shape {list(values.shape)}"
        raise Refused("shape", text, "Pass values that broadcast to the indexed shape.")
    _write_walk(w, _sum_of(out.dtype) if accumulate else "etk_put", places, part, places, views, axes)


@kernel("aten::index_put.out")
def index_put(w: Writer, x: View, indices: Sequence[View | None], values: View, accumulate: bool, out: View) -> None:
    w.copy(out, x)
    _index_put(w, indices, values, accumulate, out)


@kernel("aten::index_put_")
def index_put_(w: Writer, out: View, indices: Sequence[View | None], values: View, accumulate: bool) -> None:
    """Write values to out[indices] in a mutable buffer, or add them if ``accumulate`` is True."""
    _index_put(w, indices, values, accumulate, out)
