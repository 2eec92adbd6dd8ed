"""Pools over one or three dims, and adaptive maximum pools, decomposed into pools over two dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.pool2d import adaptive_windows
from ethorch.lower.ops.samples import I8, Sample
from ethorch.lower.ops.spec import composite

aten = torch.ops.aten


def _each(value: int | Sequence[int], count: int, default: Sequence[int] = ()) -> list[int]:
    values = [value] if isinstance(value, int) else list(value) or list(default)
    return values * count if len(values) == 1 else values


def _uses_indices(node: Node) -> bool:
    return any(user.args[1] == 1 and user.users for user in node.users)


@composite(
    "aten.max_pool1d.default",
    also={"aten.max_pool1d_with_indices.default": lambda *args: (args, {})},
    samples=[Sample(I8(1, 6, 12), [3]), Sample(I8(2, 4, 11), [3], [2], [1], [1], True), Sample(I8(1, 3, 12), [2], [1], [0], [3])],
)
def max_pool1d(
    s: AtenBuilder, x: Node, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    """Return the maximum over each window of [N,C,L], pooled as a feature map of height 1.

    Calls whose indices are used are not decomposed.
    """
    has_indices = s.node.target is not aten.max_pool1d.default
    if has_indices and _uses_indices(s.node):
        return None
    (k,), (p,), (d,) = _each(kernel, 1), _each(padding, 1), _each(dilation, 1)
    (t,) = _each(stride, 1, [k])
    y = s(aten.max_pool2d.default, s(aten.unsqueeze.default, x, -2), [1, k], [1, t], [0, p], [1, d], ceil_mode)
    y = s(aten.squeeze.dim, y, -2)
    return [y, None] if has_indices else y


@composite("aten.avg_pool1d.default", samples=[Sample(I8(1, 6, 12), [3]), Sample(I8(2, 4, 11), [3], [2], [1], True, False)])
def avg_pool1d(
    s: AtenBuilder,
    x: Node,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """Return the mean over each window of [N,C,L], pooled as a feature map of height 1."""
    (k,), (p,) = _each(kernel, 1), _each(padding, 1)
    (t,) = _each(stride, 1, [k])
    flat = s(aten.unsqueeze.default, x, -2)
    return s(aten.squeeze.dim, s(aten.avg_pool2d.default, flat, [1, k], [1, t], [0, p], ceil_mode, count_include_pad), -2)


@composite(
    "aten.adaptive_avg_pool1d.default",
    samples=[Sample(I8(1, 6, 12), [4]), Sample(I8(2, 4, 7), [3]), Sample(I8(2, 4, 7), [1])],
)
def adaptive_avg_pool1d(s: AtenBuilder, x: Node, size: Any) -> Any:
    """Return the mean over each adaptive window of [N,C,L], pooled as a feature map of height 1."""
    (count,) = _each(size, 1)
    return s(aten.squeeze.dim, s(aten.adaptive_avg_pool2d.default, s(aten.unsqueeze.default, x, -2), [1, count]), -2)


@composite(
    "aten.adaptive_max_pool2d.default",
    samples=[Sample(I8(1, 8, 6, 8), [3, 4]), Sample(I8(2, 5, 7, 7), [3, 2]), Sample(I8(1, 30, 5, 5), [1, 1])],
)
def adaptive_max_pool2d(s: AtenBuilder, x: Node, size: Any) -> Any:
    """Return the maximum over each adaptive window of [N,C,H,W]. Calls whose indices are used are not decomposed.

    Uniform windows become one pool. Other windows are pooled over height, then over width.
    """
    if _uses_indices(s.node):
        return None
    extents, sizes = shape_of(x)[-2:], [e if n is None else n for n, e in zip(_each(size, 2), shape_of(x)[-2:], strict=True)]
    alike = [adaptive_windows(extent, count) for extent, count in zip(extents, sizes, strict=True)]
    if alike[0] and alike[1]:
        return [s(aten.max_pool2d.default, x, [alike[0][0], alike[1][0]], [alike[0][1], alike[1][1]]), None]
    for dim, extent, count in ((-2, extents[0], sizes[0]), (-1, extents[1], sizes[1])):
        parts = []
        for k in range(count):
            part = s(aten.slice.Tensor, x, dim, k * extent // count, -(-(k + 1) * extent // count))
            parts.append(s(aten.amax.default, part, [dim], True))
        x = s(aten.cat.default, parts, dim)
    return [x, None]


@composite("aten.adaptive_max_pool1d.default", samples=[Sample(I8(1, 6, 12), [4]), Sample(I8(2, 4, 7), [3])])
def adaptive_max_pool1d(s: AtenBuilder, x: Node, size: Any) -> Any:
    """Return the maximum over each adaptive window of [N,C,L]. Calls whose indices are used are not decomposed."""
    if _uses_indices(s.node):
        return None
    y, _ = s.results(aten.adaptive_max_pool2d.default, s(aten.unsqueeze.default, x, -2), [1, *_each(size, 1)])
    return [s(aten.squeeze.dim, y, -2), None]


@composite(
    "aten.max_pool3d.default",
    also={"aten.max_pool3d_with_indices.default": lambda *args: (args, {})},
    samples=[Sample(I8(1, 3, 4, 6, 6), [2, 2, 2]), Sample(I8(2, 2, 5, 5, 6), [3, 2, 3], [2, 1, 2], [1, 0, 1])],
)
def max_pool3d(
    s: AtenBuilder, x: Node, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    """Return the maximum over each window of [N,C,D,H,W], pooled over height and width, then over depth.

    Calls whose indices are used are not decomposed.
    """
    has_indices = s.node.target is not aten.max_pool3d.default
    if has_indices and _uses_indices(s.node):
        return None
    k, p, d = (_each(value, 3) for value in (kernel, padding, dilation))
    t = _each(stride, 3, k)
    planes, shape = _planes(s, x)
    flat = s(aten.max_pool2d.default, planes, k[1:], t[1:], p[1:], d[1:], ceil_mode)
    columns, area = _columns(s, flat, shape)
    y = s(aten.max_pool2d.default, columns, [k[0], 1], [t[0], 1], [p[0], 0], [d[0], 1], ceil_mode)
    y = s(aten.reshape.default, y, [*shape[:-3], shape_of(y)[-2], *area])
    return [y, None] if has_indices else y


@composite(
    "aten.avg_pool3d.default",
    bound=2,
    samples=[Sample(I8(1, 3, 4, 6, 6), [2, 2, 2]), Sample(I8(2, 2, 5, 5, 6), [3, 2, 3], [2, 1, 2], [1, 0, 1], False, False)],
)
def avg_pool3d(
    s: AtenBuilder,
    x: Node,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return the mean over each window of [N,C,D,H,W], pooled over height and width, then over depth.

    Calls with ``divisor_override`` are not decomposed.
    """
    if divisor_override is not None:
        return None
    k, p = _each(kernel, 3), _each(padding, 3)
    t = _each(stride, 3, k)
    planes, shape = _planes(s, x)
    flat = s(aten.avg_pool2d.default, planes, k[1:], t[1:], p[1:], ceil_mode, count_include_pad)
    columns, area = _columns(s, flat, shape)
    y = s(aten.avg_pool2d.default, columns, [k[0], 1], [t[0], 1], [p[0], 0], ceil_mode, count_include_pad)
    return s(aten.reshape.default, y, [*shape[:-3], shape_of(y)[-2], *area])


@composite(
    "aten.adaptive_avg_pool3d.default",
    "aten._adaptive_avg_pool3d.default",
    bound=2,
    samples=[Sample(I8(1, 3, 4, 6, 6), [2, 3, 2]), Sample(I8(2, 3, 5, 7, 6), [3, 2, 4]), Sample(I8(2, 3, 4, 5, 6), [1, 1, 1])],
)
def adaptive_avg_pool3d(s: AtenBuilder, x: Node, size: Any) -> Any:
    """Return the mean over each adaptive window of [N,C,D,H,W].

    Uniform windows become one pool. Other windows are pooled over depth, then over height and width.
    """
    sizes = [e if n is None else n for n, e in zip(_each(size, 3), shape_of(x)[-3:], strict=True)]
    if sizes == [1, 1, 1]:
        return s(aten.mean.dim, x, [-3, -2, -1], True)
    alike = _windows_alike(x, sizes)
    if alike:
        return s(aten.avg_pool3d.default, x, *alike)
    parts = []
    for slab in _slabs(s, x, sizes[0]):
        plane = s(aten.mean.dim, slab, [-3])
        parts.append(s(aten.unsqueeze.default, s(aten.adaptive_avg_pool2d.default, plane, sizes[1:]), -3))
    return s(aten.cat.default, parts, -3) if len(parts) > 1 else parts[0]


@composite(
    "aten.adaptive_max_pool3d.default",
    samples=[Sample(I8(1, 3, 4, 6, 6), [2, 3, 2]), Sample(I8(2, 3, 5, 7, 6), [3, 2, 4]), Sample(I8(2, 3, 4, 5, 6), [1, 1, 1])],
)
def adaptive_max_pool3d(s: AtenBuilder, x: Node, size: Any) -> Any:
    """Return the maximum over each adaptive window of [N,C,D,H,W]. Calls whose indices are used are not decomposed.

    Uniform windows become one pool. Other windows are pooled over depth, then height, then width.
    """
    if _uses_indices(s.node):
        return None
    sizes = [e if n is None else n for n, e in zip(_each(size, 3), shape_of(x)[-3:], strict=True)]
    if sizes == [1, 1, 1]:
        return [s(aten.amax.default, x, [-3, -2, -1], True), None]
    alike = _windows_alike(x, sizes)
    if alike:
        return [s(aten.max_pool3d.default, x, *alike), None]
    for dim, count in zip((-3, -2, -1), sizes, strict=True):
        parts = [s(aten.amax.default, slab, [dim], True) for slab in _slabs(s, x, count, dim)]
        x = s(aten.cat.default, parts, dim) if count > 1 else parts[0]
    return [x, None]


def _windows_alike(x: Node, sizes: Sequence[int]) -> tuple[list[int], list[int]] | None:
    alike = [adaptive_windows(extent, size) for extent, size in zip(shape_of(x)[-len(sizes) :], sizes, strict=True)]
    windows = [window for window in alike if window]
    return ([kernel for kernel, _ in windows], [stride for _, stride in windows]) if len(windows) == len(alike) else None


def _slabs(s: AtenBuilder, x: Node, count: int, dim: int = -3) -> list[Node]:
    extent = shape_of(x)[dim]
    return [s(aten.slice.Tensor, x, dim, k * extent // count, -(-(k + 1) * extent // count)) for k in range(count)]


def _planes(s: AtenBuilder, x: Node) -> tuple[Node, tuple[int, ...]]:
    shape = shape_of(x)
    lead = shape[:-4] or (1,)
    return s(aten.reshape.default, x, [*lead, shape[-4] * shape[-3], *shape[-2:]]), shape


def _columns(s: AtenBuilder, x: Node, shape: tuple[int, ...]) -> tuple[Node, tuple[int, ...]]:
    area = shape_of(x)[-2:]
    return s(aten.reshape.default, x, [*(shape[:-4] or (1,)), shape[-4], shape[-3], math.prod(area)]), area
