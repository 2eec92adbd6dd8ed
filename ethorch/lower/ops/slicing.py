"""Operators that select or overwrite a slice of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.gather import gather_along
from ethorch.lower.ops.indices import MOST_PIECES, evenly_spaced, runs, slice_strided
from ethorch.lower.ops.quant_rules import OVERWRITTEN, SAME_AS_INPUT
from ethorch.lower.ops.samples import I8, Ints, Sample
from ethorch.lower.ops.spec import composite, op
from ethorch.tosa.layout import around

aten = torch.ops.aten

#: Maximum number of slices for a write on a target without GATHER. Vela takes a minute for this number.
_MOST_WITHOUT_GATHER = 4096


@op(
    "aten.flip.default",
    quant=SAME_AS_INPUT,
    samples=[Sample(I8(1, 3, 5, 4), [2]), Sample(I8(1, 3, 5, 4), [-1, 1]), Sample(I8(4, 6), [0]), Sample(I8(9), [0])],
)
def flip(b: Builder, x: QTensor, dims: Sequence[int], *, out: Result) -> QTensor:
    """Return x in reverse order along ``dims``. TOSA REVERSE."""
    for dim in dims:
        if x.shape[dim] > 1:
            x = _reverse(b, x, dim % x.rank)
    return b.to_qparams(x, out.q)


def _reverse(b: Builder, x: QTensor, dim: int) -> QTensor:
    value, axis, dims = b.axis_of(x, dim)
    shape = value.shape
    outer, _, inner = around(shape, axis)
    turned = b.emit("REVERSE", b.reshape(value, (1, outer, shape[axis], inner)), axis=2)
    return QTensor(b.reshape(turned, shape), dims, x.q)


@op(
    "aten.roll.default",
    quant=SAME_AS_INPUT,
    samples=[Sample(I8(1, 3, 5, 4), [2, -1], [2, 3]), Sample(I8(3, 4), [5]), Sample(I8(2, 6), [3], [-1])],
)
def roll(b: Builder, x: QTensor, shifts: Sequence[int], dims: Sequence[int] = (), *, out: Result) -> QTensor:
    """Return x shifted cyclically by ``shifts`` along ``dims``. TOSA SLICE, CONCAT."""
    full = x.shape
    if not dims:
        x, dims = b.view(x, (math.prod(full),)), [0]
    for shift, dim in zip(shifts, dims, strict=True):
        extent = x.shape[dim]
        cut = -shift % extent
        if cut:
            x = b.concat([b.narrow(x, dim, cut, extent - cut), b.narrow(x, dim, 0, cut)], dim)
    return b.to_qparams(b.view(x, full), out.q)


def _sizes(extent: int, size: int) -> list[int]:
    return [min(size, extent - start) for start in range(0, extent, size)]


@composite(
    "aten.split.Tensor",
    "aten.split_copy.Tensor",
    also={
        "aten.split_with_sizes.default": lambda x, sizes, dim=0: ((x, list(sizes), dim), {}),
        "aten.split_with_sizes_copy.default": lambda x, sizes, dim=0: ((x, list(sizes), dim), {}),
        "aten.split.sizes": lambda x, sizes, dim=0: ((x, list(sizes), dim), {}),
        "aten.chunk.default": lambda x, chunks, dim=0: ((x, -(-x.meta["val"].shape[dim] // chunks), dim), {}),
        "aten.tensor_split.sections": lambda x, n, dim=0: ((x, _even(x.meta["val"].shape[dim], n), dim), {}),
    },
    samples=[Sample(I8(1, 7, 4, 3), 3, 1), Sample(I8(4, 6), 2, -1)],
)
def split(s: AtenBuilder, x: Node, sizes: int | Sequence[int], dim: int = 0) -> Any:
    """Return slices of x along ``dim``, each with its own scale."""
    extent = shape_of(x)[dim]
    slices, start = [], 0
    for size in _sizes(extent, sizes) if isinstance(sizes, int) else sizes:
        slices.append(s(aten.slice.Tensor, x, dim, start, start + size))
        start += size
    return slices


def _even(extent: int, sections: int) -> list[int]:
    return [extent // sections + (index < extent % sections) for index in range(sections)]


@composite("aten.unbind.int", "aten.unbind_copy.int", samples=[Sample(I8(3, 4, 5), 1), Sample(I8(2, 6), -1)])
def unbind(s: AtenBuilder, x: Node, dim: int = 0) -> Any:
    """Return x[0], x[1], ... along ``dim``."""
    return [s(aten.select.int, x, dim, index) for index in range(shape_of(x)[dim])]


@composite(
    "aten.as_strided.default",
    "aten.as_strided_copy.default",
    samples=[Sample(I8(4, 6), [3, 8], [8, 1]), Sample(I8(4, 4), [3, 3], [1, 4], 1), Sample(I8(9), [4, 3], [2, 1])],
)
def as_strided(s: AtenBuilder, x: Node, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """Compute out[i, j, ...] = flat[offset + i * stride[0] + j * stride[1] + ...], where flat is the flattened, contiguous x."""
    if any(not isinstance(extent, int) for extent in (*size, *stride)) or 0 in size:
        return None
    flat = s(aten.reshape.default, x, [-1])
    first = storage_offset or 0
    last = first + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    if not x.meta["val"].is_contiguous() or first < 0 or last >= shape_of(flat)[0]:
        return None
    steps = [step for step, extent in zip(stride, size, strict=True) if extent > 1]
    if steps == [math.prod([e for e in size if e > 1][k + 1 :]) for k in range(len(steps))]:
        return s(aten.reshape.default, s(aten.slice.Tensor, flat, 0, first, last + 1), list(size))
    numbers = torch.arange(first, last + 1, dtype=torch.int32)
    places = torch.as_strided(numbers, size, stride).contiguous()
    elements = s(aten.index_select.default, flat, 0, s.constant(places.flatten()))
    return s(aten.reshape.default, elements, list(size))


@composite("aten.narrow.default", samples=[Sample(I8(2, 8, 3), 1, 2, 4), Sample(I8(2, 8, 3), 1, -3, 3)])
def narrow(s: AtenBuilder, x: Node, dim: int, start: int, length: int) -> Any:
    """Return x[start : start + length] along ``dim``. A negative ``start`` counts from the end."""
    start += shape_of(x)[dim] if start < 0 else 0
    return s(aten.slice.Tensor, x, dim, start, start + length)


@op(
    "aten.unfold.default",
    "aten.unfold_copy.default",
    quant=SAME_AS_INPUT,
    samples=[Sample(I8(2, 9), 1, 3, 2), Sample(I8(1, 4, 6), -1, 2, 2), Sample(I8(7, 3), 0, 4, 1)],
)
def unfold(b: Builder, x: QTensor, dim: int, size: int, step: int, *, out: Result) -> QTensor:
    """Compute out[..., i, ..., k] = x[..., i * step + k, ...], using slices and a CONCAT, or a view if windows are adjacent."""
    dim %= x.rank
    count = (x.shape[dim] - size) // step + 1
    order = [*range(dim + 1), *range(dim + 2, x.rank + 1), dim + 1]
    if size == step:
        tiles = b.view(b.narrow(x, dim, 0, count * step), (*x.shape[:dim], count, step, *x.shape[dim + 1 :]))
        return b.to_qparams(b.permute(tiles, order), out.q)
    taps = []
    for k in range(size):
        tap = slice_strided(b, x, dim, k, k + (count - 1) * step + 1, step)
        taps.append(b.view(tap, (*x.shape[:dim], count, 1, *x.shape[dim + 1 :])))
    return b.to_qparams(b.permute(b.concat(taps, dim + 1), order), out.q)


def decompose_slice_scatter(
    s: AtenBuilder, x: Node, source: Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    if 0 in shape_of(source):
        return s(aten.clone.default, x)
    return s(aten.clone.default, source) if shape_of(source) == shape_of(x) and step == 1 else None


@op(
    "aten.slice_scatter.default",
    quant=OVERWRITTEN,
    decompose=decompose_slice_scatter,
    samples=[
        Sample(I8(2, 8), I8(2, 3, low=-1.0), 1, 2, 5),
        Sample(I8(1, 4, 6), I8(1, 2, 6), 1, 0, 4, 2),
        Sample(Ints(2, 30), Ints(2, 6), 1, 2, 8),
    ],
)
def slice_scatter(
    b: Builder,
    x: QTensor,
    source: QTensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
    *,
    out: Result,
) -> QTensor:
    """Return x with ``source`` at x[start:end:step] along ``dim``. TOSA SLICE, CONCAT."""
    places = list(range(x.shape[dim]))[slice(start, end, step)]
    x, source = b.convert_operand(x, out), b.convert_operand(source, out)
    return overwrite_rows(b, x, dim, places, source)


def overwrite_rows(b: Builder, x: QTensor, dim: int, places: Sequence[int], source: QTensor) -> QTensor:
    """Return x with source[k] at places[k] along ``dim``. For repeated positions, the last row is used.

    Emit slices and a CONCAT. If too many slices are required, use a CONCAT along a separate axis for evenly spaced positions, or
    a GATHER for other positions.
    """
    holder = {place: k for k, place in enumerate(places)}
    count = source.shape[dim]
    wide = [holder.get(k, count + k) for k in range(x.shape[dim])]  # rows of source, then of x
    pieces = [piece for run in runs(wide) for piece in _cut_at(run, count)]
    even = evenly_spaced(places) if len(pieces) > MOST_PIECES else None
    row = b.limits.get("GATHER")
    most = MOST_PIECES if row is None or row.present else _MOST_WITHOUT_GATHER
    if even is None and len(pieces) <= most:
        parts = [b.narrow(source, dim, k, size) if k < count else b.narrow(x, dim, k - count, size) for k, size in pieces]
        return b.concat(parts, dim)
    if even is not None:
        return _overwrite_evenly(b, x, dim, *even, source)
    return gather_along(b, b.concat([source, x], dim), dim, b.const(np.asarray(wide, np.int32), name="index"), (len(wide),))


def _cut_at(run: tuple[int, int], count: int) -> list[tuple[int, int]]:
    first, size = run
    return [(first, count - first), (count, first + size - count)] if first < count < first + size else [run]


def _overwrite_evenly(b: Builder, x: QTensor, dim: int, start: int, step: int, source: QTensor) -> QTensor:
    groups, extent = source.shape[dim] - 1, x.shape[dim]
    last = start + groups * step
    folded = [*x.shape[:dim], groups, step, *x.shape[dim + 1 :]]
    rows = b.view(b.narrow(source, dim, 0, groups), (*folded[: dim + 1], 1, *folded[dim + 2 :]))
    others = b.narrow(b.view(b.narrow(x, dim, start, groups * step), folded), dim + 1, 1, step - 1)
    region = b.view(b.concat([rows, others], dim + 1), (*x.shape[:dim], groups * step, *x.shape[dim + 1 :]))
    before = [b.narrow(x, dim, 0, start)] if start else []
    after = [b.narrow(x, dim, last + 1, extent - last - 1)] if last + 1 < extent else []
    return b.concat([*before, region, b.narrow(source, dim, groups, 1), *after], dim)


@composite("aten.select_scatter.default", samples=[Sample(I8(2, 4, 3), I8(2, 3, low=-1.0), 1, -2)])
def select_scatter(s: AtenBuilder, x: Node, source: Node, dim: int, index: int) -> Any:
    """Return x with ``source`` at x[index] along ``dim``."""
    index %= shape_of(x)[dim]
    return s(aten.slice_scatter.default, x, s(aten.unsqueeze.default, source, dim), dim, index, index + 1)


@op(
    "aten.slice.Tensor",
    "aten.slice_copy.Tensor",
    quant=SAME_AS_INPUT,
    samples=[Sample(I8(1, 8, 5, 5), 1, 2, 6), Sample(I8(4, 9), -1, -5, 9223372036854775807), Sample(I8(2, 10), 1, 1, 10, 3)],
)
def slice_(
    b: Builder,
    x: QTensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
    *,
    out: Result,
) -> QTensor:
    """Return x[start:end:step] along ``dim``. TOSA SLICE. For steps above 1, see ``slice_strided``."""
    return b.to_qparams(slice_strided(b, x, dim, start, end, step), out.q)


@op(
    "aten.select.int",
    "aten.select_copy.int",
    quant=SAME_AS_INPUT,
    samples=[Sample(I8(2, 6, 5), 1, -2), Sample(I8(4, 3), 0, 1)],
)
def select(b: Builder, x: QTensor, dim: int, index: int, *, out: Result) -> QTensor:
    """Return x[index] along ``dim``, which is removed. TOSA SLICE."""
    index %= x.shape[dim]
    return b.view(b.to_qparams(slice_strided(b, x, dim, index, index + 1, 1), out.q), out.shape)
