"""Copies in other places: expand, repeat, flip, roll, stack, split, unfold, pixel shuffles, triangles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ethorch.ops.logic import fitting
from ethorch.ops.quant_rules import EACH_INPUT, JOINED, SAME_AS_INPUT
from ethorch.ops.shape import cat, slice_
from ethorch.ops.spec import I8, Ints, Sample, composite, op
from ethorch.qparams import QParams, QTensor
from ethorch.sketch import Sketch, shape_of
from ethorch.tosa.builder import Builder

aten = torch.ops.aten


def wanted(b: Builder, x: QTensor, out: QParams | None) -> QTensor:
    """``x`` in the qparams ``out``; plain integers as they are."""
    return x if out is None else b.requantized(x, out)


def _tile(b: Builder, x: QTensor, multiples: Sequence[int]) -> QTensor:
    """x repeated ``multiples[d]`` times along each logical dim d."""
    (value,), dims = b.alike([x])
    stored = [1] * value.rank
    for dim, count in enumerate(multiples):
        stored[dims[dim][0]] = count
    return QTensor(b.emit("TILE", value, multiples=tuple(stored)) if max(stored, default=1) > 1 else value, dims, x.q)


@op(
    "aten.expand.default", "aten.expand_copy.default", quant=SAME_AS_INPUT,
    also={
        "aten.broadcast_to.default": lambda x, size: ((x, size), {}),
        "aten.expand_as.default": lambda x, y: ((x, list(y.shape)), {}),
    },
    samples=[Sample(I8(1, 8, 1, 5), [2, -1, 4, 5]), Sample(I8(12), [2, 12]), Sample(I8(4, 5), [4, 5])],
)  # fmt: skip
def expand(b: Builder, x: QTensor, size: Sequence[int], implicit: bool = False, *, out: QParams) -> QTensor:
    """out = x repeated along the dims of extent 1 that ``size`` makes larger. TOSA 1.0 TILE."""
    x = b.view(x, (1,) * (len(b.result_shape) - x.rank) + x.shape)
    return wanted(b, _tile(b, x, [want // have if have else 1 for want, have in zip(b.result_shape, x.shape, strict=True)]), out)


@op(
    "aten.repeat.default", "aten.repeat_copy.default", quant=SAME_AS_INPUT,
    also={"aten.tile.default": lambda x, dims: ((x, [1] * (len(x.shape) - len(dims)) + list(dims)), {})},
    samples=[Sample(I8(1, 4, 3, 2), [1, 2, 1, 3]), Sample(I8(12), [1, 3]), Sample(I8(2, 3), [1, 1])],
)  # fmt: skip
def repeat(b: Builder, x: QTensor, repeats: Sequence[int], *, out: QParams) -> QTensor:
    """out = x laid ``repeats[d]`` times along each dim. TOSA 1.0 TILE."""
    x = b.view(x, (1,) * (len(repeats) - x.rank) + x.shape)
    return wanted(b, _tile(b, x, list(repeats)), out)


def piece(b: Builder, x: QTensor, dim: int, start: int, size: int) -> QTensor:
    """x[start : start + size] along ``dim``. TOSA 1.0 SLICE."""
    value, axis, dims = b.axis_of(x, dim)
    if size == value.shape[axis]:
        return x
    starts = tuple(start if k == axis else 0 for k in range(value.rank))
    sizes = tuple(size if k == axis else extent for k, extent in enumerate(value.shape))
    return QTensor(b.emit("SLICE", value, start=starts, size=sizes), dims, x.q)


def joined(b: Builder, parts: Sequence[QTensor], dim: int) -> QTensor:
    """Parts of equal qparams side by side along ``dim``. TOSA 1.0 CONCAT."""
    if len(parts) == 1:
        return parts[0]
    values, dims = b.alike(parts)
    return QTensor(b.emit("CONCAT", *values, axis=dims[dim % parts[0].rank][0]), dims, parts[0].q)


@op(
    "aten.flip.default", quant=SAME_AS_INPUT,
    samples=[Sample(I8(1, 3, 5, 4), [2]), Sample(I8(1, 3, 5, 4), [-1, 1]), Sample(I8(4, 6), [0]), Sample(I8(9), [0])],
)  # fmt: skip
def flip(b: Builder, x: QTensor, dims: Sequence[int], *, out: QParams) -> QTensor:
    """out = x read backwards along ``dims``. TOSA 1.0 REVERSE."""
    for dim in dims:
        if x.shape[dim] > 1:
            x = _reversed(b, x, dim % x.rank)
    return wanted(b, x, out)


def _reversed(b: Builder, x: QTensor, dim: int) -> QTensor:
    """REVERSE along the width of a map, where every NPU has it (U55: height and width only)."""
    value, axis, dims = b.axis_of(x, dim)
    shape = value.shape
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    turned = b.emit("REVERSE", b.reshape(value, (1, outer, shape[axis], inner)), axis=2)
    return QTensor(b.reshape(turned, shape), dims, x.q)


@op(
    "aten.roll.default", quant=SAME_AS_INPUT,
    samples=[Sample(I8(1, 3, 5, 4), [2, -1], [2, 3]), Sample(I8(3, 4), [5]), Sample(I8(2, 6), [3], [-1])],
)  # fmt: skip
def roll(b: Builder, x: QTensor, shifts: Sequence[int], dims: Sequence[int] = (), *, out: QParams) -> QTensor:
    """out = x moved by ``shifts`` along ``dims``, what leaves at the end entering at the start: two slices and a CONCAT each."""
    full = x.shape
    if not dims:
        x, dims = b.view(x, (math.prod(full),)), [0]
    for shift, dim in zip(shifts, dims, strict=True):
        extent = x.shape[dim]
        cut = -shift % extent
        if cut:
            x = joined(b, [piece(b, x, dim, cut, extent - cut), piece(b, x, dim, 0, cut)], dim)
    return wanted(b, b.view(x, full), out)


@op(
    "aten.stack.default", quant=JOINED,
    samples=[Sample([I8(2, 3), I8(2, 3, low=-1.0)], 1), Sample([I8(1, 4, 5), I8(1, 4, 5)], -1)],
)  # fmt: skip
def stack(b: Builder, tensors: Sequence[QTensor], dim: int = 0, *, out: QParams) -> QTensor:
    """out = the tensors side by side along a new ``dim``. TOSA 1.0 CONCAT."""
    dim %= tensors[0].rank + 1
    assert cat.lower is not None
    parts = [b.view(x, (*x.shape[:dim], 1, *x.shape[dim:])) for x in tensors]
    return cat.lower(b, parts, dim, out=out)


def _sizes(extent: int, size: int) -> list[int]:
    return [min(size, extent - start) for start in range(0, extent, size)]


@composite(
    "aten.split.Tensor", "aten.split_copy.Tensor",
    also={
        "aten.split_with_sizes.default": lambda x, sizes, dim=0: ((x, list(sizes), dim), {}),
        "aten.split_with_sizes_copy.default": lambda x, sizes, dim=0: ((x, list(sizes), dim), {}),
        "aten.split.sizes": lambda x, sizes, dim=0: ((x, list(sizes), dim), {}),
        "aten.chunk.default": lambda x, chunks, dim=0: ((x, -(-x.meta["val"].shape[dim] // chunks), dim), {}),
        "aten.tensor_split.sections": lambda x, n, dim=0: ((x, _even(x.meta["val"].shape[dim], n), dim), {}),
    },
    samples=[Sample(I8(1, 7, 4, 3), 3, 1), Sample(I8(4, 6), 2, -1)],
)  # fmt: skip
def split(s: Sketch, x: Node, sizes: int | Sequence[int], dim: int = 0) -> Any:
    """out = slices of x along ``dim``: each its own, so that one with a scale of its own may have it."""
    extent = shape_of(x)[dim]
    made, start = [], 0
    for size in _sizes(extent, sizes) if isinstance(sizes, int) else sizes:
        made.append(s(aten.slice.Tensor, x, dim, start, start + size))
        start += size
    return made


def _even(extent: int, sections: int) -> list[int]:
    return [extent // sections + (index < extent % sections) for index in range(sections)]


@composite("aten.unbind.int", "aten.unbind_copy.int", samples=[Sample(I8(3, 4, 5), 1), Sample(I8(2, 6), -1)])
def unbind(s: Sketch, x: Node, dim: int = 0) -> Any:
    """out = x[0], x[1], ... along ``dim``."""
    return [s(aten.select.int, x, dim, index) for index in range(shape_of(x)[dim])]


@composite(
    "aten.as_strided.default", "aten.as_strided_copy.default",
    samples=[Sample(I8(4, 6), [3, 8], [8, 1]), Sample(I8(4, 4), [3, 3], [1, 4], 1), Sample(I8(9), [4, 3], [2, 1])],
)  # fmt: skip
def as_strided(s: Sketch, x: Node, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """out[i, j, ...] = x's element number offset + i * stride[0] + j * stride[1] + ...: slices of the flat x."""
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
    picked = s(aten.index_select.default, flat, 0, s.constant(places.flatten()))
    return s(aten.reshape.default, picked, list(size))


@composite("aten.narrow.default", samples=[Sample(I8(2, 8, 3), 1, 2, 4)])
def narrow(s: Sketch, x: Node, dim: int, start: int, length: int) -> Any:
    """out = x[start : start + length] along ``dim``."""
    return s(aten.slice.Tensor, x, dim, start, start + length)


@composite(
    "aten.movedim.intlist",
    also={
        "aten.movedim.int": lambda x, source, target: ((x, [source], [target]), {}),
        "aten.moveaxis.int": lambda x, source, target: ((x, [source], [target]), {}),
        "aten.moveaxis.intlist": lambda x, source, target: ((x, source, target), {}),
    },
    samples=[Sample(I8(2, 3, 4, 5), [1, 0], [-1, 2])],
)  # fmt: skip
def movedim(s: Sketch, x: Node, source: Sequence[int], destination: Sequence[int]) -> Any:
    """out = x with dims ``source`` at ``destination``, the others in order."""
    rank = len(shape_of(x))
    places = {d % rank: a % rank for a, d in zip(source, destination, strict=True)}
    rest = iter(d for d in range(rank) if d not in {a % rank for a in source})
    return s(aten.permute.default, x, [places[d] if d in places else next(rest) for d in range(rank)])


@composite(
    "aten.swapaxes.default", "aten.swapdims.default",
    also={"aten.adjoint.default": lambda x: ((x, -1, -2), {}), "aten.numpy_T.default": lambda x: ((x, 0, -1), {}),
          "aten.mT.default": lambda x: ((x, -1, -2), {})},
    samples=[Sample(I8(2, 3, 4), 0, -1)],
)  # fmt: skip
def swapaxes(s: Sketch, x: Node, first: int, second: int) -> Any:
    """out = x with two dims exchanged."""
    return s(aten.transpose.int, x, first, second)


@composite("aten.pixel_shuffle.default", samples=[Sample(I8(1, 8, 3, 4), 2), Sample(I8(2, 9, 2, 2), 3)])
def pixel_shuffle(s: Sketch, x: Node, factor: int) -> Any:
    """[N, C*r*r, H, W] -> [N, C, H*r, W*r]."""
    *lead, c, h, w = shape_of(x)
    r, k = factor, len(lead)
    parts = s(aten.reshape.default, x, [*lead, c // (r * r), r, r, h, w])
    moved = s(aten.permute.default, parts, [*range(k), k, k + 3, k + 1, k + 4, k + 2])
    return s(aten.reshape.default, moved, [*lead, c // (r * r), h * r, w * r])


@composite("aten.pixel_unshuffle.default", samples=[Sample(I8(1, 2, 6, 4), 2), Sample(I8(2, 1, 3, 6), 3)])
def pixel_unshuffle(s: Sketch, x: Node, factor: int) -> Any:
    """[N, C, H*r, W*r] -> [N, C*r*r, H, W]."""
    *lead, c, h, w = shape_of(x)
    r, k = factor, len(lead)
    parts = s(aten.reshape.default, x, [*lead, c, h // r, r, w // r, r])
    moved = s(aten.permute.default, parts, [*range(k), k, k + 2, k + 4, k + 1, k + 3])
    return s(aten.reshape.default, moved, [*lead, c * r * r, h // r, w // r])


@composite(
    "aten.channel_shuffle.default", also={"aten.native_channel_shuffle.default": lambda x, g: ((x, g), {})},
    samples=[Sample(I8(1, 6, 4, 4), 2)],
)  # fmt: skip
def channel_shuffle(s: Sketch, x: Node, groups: int) -> Any:
    """[N, G*K, ...] -> channels in the order of K, then G."""
    n, c, *rest = shape_of(x)
    parts = s(aten.reshape.default, x, [n, groups, c // groups, *rest])
    return s(aten.reshape.default, s(aten.transpose.int, parts, 1, 2), [n, c, *rest])


@composite("aten.repeat_interleave.self_int", samples=[Sample(I8(2, 3, 4), 2, 1), Sample(I8(2, 3), 3, -1), Sample(I8(2, 3), 2)])
def repeat_interleave(s: Sketch, x: Node, repeats: int, dim: int | None = None, *, output_size: int | None = None) -> Any:
    """out = each element along ``dim`` ``repeats`` times in a row."""
    if dim is None:
        x, dim = s(aten.reshape.default, x, [-1]), 0
    shape = list(shape_of(x))
    dim %= len(shape)
    x = s(aten.unsqueeze.default, x, dim + 1)
    x = s(aten.expand.default, x, [*shape[: dim + 1], repeats, *shape[dim + 1 :]])
    return s(aten.reshape.default, x, [*shape[:dim], shape[dim] * repeats, *shape[dim + 1 :]])


@op(
    "aten.unfold.default", "aten.unfold_copy.default", quant=SAME_AS_INPUT,
    samples=[Sample(I8(2, 9), 1, 3, 2), Sample(I8(1, 4, 6), -1, 2, 2), Sample(I8(7, 3), 0, 4, 1)],
)  # fmt: skip
def unfold(b: Builder, x: QTensor, dim: int, size: int, step: int, *, out: QParams) -> QTensor:
    """out[..., i, ..., k] = x[..., i * step + k, ...]: one slice per window, or none where windows only tile."""
    dim %= x.rank
    count = (x.shape[dim] - size) // step + 1
    order = [*range(dim + 1), *range(dim + 2, x.rank + 1), dim + 1]
    if size == step:
        tiles = b.view(piece(b, x, dim, 0, count * step), (*x.shape[:dim], count, step, *x.shape[dim + 1 :]))
        return wanted(b, b.permute(tiles, order), out)
    assert slice_.lower is not None
    taps = []
    for k in range(size):
        tap = slice_.lower(b, x, dim, k, k + (count - 1) * step + 1, step, out=x.q)
        taps.append(b.view(tap, (*x.shape[:dim], count, 1, *x.shape[dim + 1 :])))
    return wanted(b, b.permute(joined(b, taps, dim + 1), order), out)


def _triangle(s: Sketch, x: Node, diagonal: int, lower: bool) -> Any:
    rows, columns = shape_of(x)[-2:]
    ones = torch.ones(rows, columns)
    return s(aten.mul.Tensor, x, s.constant(ones.tril(diagonal) if lower else ones.triu(diagonal)))


@composite("aten.tril.default", samples=[Sample(I8(2, 5, 5)), Sample(I8(4, 6), 1)])
def tril(s: Sketch, x: Node, diagonal: int = 0) -> Any:
    """out = x below the diagonal and on it, 0 above: a mul by a constant of ones and zeros."""
    return _triangle(s, x, diagonal, True)


@composite("aten.triu.default", samples=[Sample(I8(2, 5, 5)), Sample(I8(4, 6), -1)])
def triu(s: Sketch, x: Node, diagonal: int = 0) -> Any:
    """out = x above the diagonal and on it, 0 below: a mul by a constant of ones and zeros."""
    return _triangle(s, x, diagonal, False)


@op(
    "aten.slice_scatter.default", quant=EACH_INPUT,
    samples=[Sample(I8(2, 8), I8(2, 3, low=-1.0), 1, 2, 5), Sample(I8(1, 4, 6), I8(1, 2, 6), 1, 0, 4, 2),
             Sample(Ints(2, 30), Ints(2, 6), 1, 2, 8)],
)  # fmt: skip
def slice_scatter(
    b: Builder, x: QTensor, source: QTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1, *,
    out: QParams,
) -> QTensor:  # fmt: skip
    """out = x with ``source`` at [start:end:step] along ``dim``: slices and a CONCAT."""
    places = list(range(x.shape[dim]))[slice(start, end, step)]
    x, source = fitting(b, x, out), fitting(b, source, out)
    return joined(b, woven(b, x, source, dim, places), dim)


@slice_scatter.decomposition
def _(s: Sketch, x: Node, source: Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """Where all of x is overwritten it is not read."""
    return s(aten.clone.default, source) if shape_of(source) == shape_of(x) and step == 1 else None


def woven(b: Builder, x: QTensor, source: QTensor, dim: int, places: Sequence[int]) -> list[QTensor]:
    """Pieces of x and of ``source`` in order, so that source[i] is at ``places[i]`` (increasing) along ``dim``."""
    parts: list[QTensor] = []
    taken, index = 0, 0
    while index < len(places):
        run = 1
        while index + run < len(places) and places[index + run] == places[index] + run:
            run += 1
        if places[index] > taken:
            parts.append(piece(b, x, dim, taken, places[index] - taken))
        parts.append(piece(b, source, dim, index, run))
        taken, index = places[index] + run, index + run
    if taken < x.shape[dim]:
        parts.append(piece(b, x, dim, taken, x.shape[dim] - taken))
    return parts


@composite("aten.select_scatter.default", samples=[Sample(I8(2, 4, 3), I8(2, 3, low=-1.0), 1, -2)])
def select_scatter(s: Sketch, x: Node, source: Node, dim: int, index: int) -> Any:
    """out = x with ``source`` as x[index] along ``dim``."""
    index %= shape_of(x)[dim]
    return s(aten.slice_scatter.default, x, s(aten.unsqueeze.default, source, dim), dim, index, index + 1)


@composite("aten.copy.default", samples=[Sample(I8(2, 3), I8(2, 3)), Sample(I8(2, 3), I8(3))])
def copy(s: Sketch, x: Node, source: Node, non_blocking: bool = False) -> Any:
    """out = source in the shape of x."""
    return s(aten.clone.default, source) if shape_of(source) == shape_of(x) else s(aten.expand.default, source, list(shape_of(x)))


