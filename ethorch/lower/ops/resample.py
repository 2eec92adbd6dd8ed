"""Resizing without RESIZE. Along each dim, x is multiplied by a resized identity matrix or, in nearest modes, indexed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.samples import I8, Sample
from ethorch.lower.ops.spec import composite

aten = torch.ops.aten

#: Function of (float32 [1, 1, *extents], new extents, scale factors) that returns the resized tensor.
Resize = Callable[[Tensor, list[int], list[float | None]], Tensor]

#: Maximum number of elements of a matrix (16 MiB of weights).
_LARGEST = 1 << 24


def _vec(x: Any, size: Any, *rest: Any) -> Any:
    factors, dims = rest[-1], len(x.meta["val"].shape if isinstance(x, Node) else x.shape) - 2
    return (x, size, *rest[:-1], *(factors if factors else (None,) * dims)), {}


def _sizes(x: Node, size: Sequence[int] | None, scales: Sequence[float | None]) -> list[int]:
    if size is not None:
        return [int(extent) for extent in size]
    return [int(extent * (scale or 1.0)) for extent, scale in zip(shape_of(x)[2:], scales, strict=True)]


def _resize_axis(resize: Resize, rows: Tensor, dims: int, axis: int, size: int, scale: float | None) -> Tensor:
    # Resizes float32[N, extent] to float32[N, size], as ``resize`` does along ``axis`` of ``dims`` spatial axes.
    # PyTorch 2.13's antialiased kernels require an extent of 2 along the other axes.
    shape = [rows.shape[1] if k == axis else 2 for k in range(dims)]
    spread = rows.reshape(len(rows), 1, *(rows.shape[1] if k == axis else 1 for k in range(dims))).expand(-1, 1, *shape)
    extents = [size if k == axis else 2 for k in range(dims)]
    resized = resize(spread.contiguous(), extents, [scale if k == axis else None for k in range(dims)])
    return resized.movedim(2 + axis, 1).reshape(len(rows), size, -1)[:, :, 0].contiguous()


def _matrix(resize: Resize, extent: int, dims: int, axis: int, size: int, scale: float | None) -> Tensor:
    if extent * extent <= _LARGEST:
        return _resize_axis(resize, torch.eye(extent), dims, axis, size, scale).T.contiguous()
    with torch.enable_grad():  # transposed, because an identity of the long axis requires gigabytes
        rows = torch.zeros(size, extent, requires_grad=True)
        (matrix,) = torch.autograd.grad(_resize_axis(resize, rows, dims, axis, size, scale), rows, torch.eye(size))
    return matrix


def _resize_by_matrices(
    s: AtenBuilder, x: Node, size: Sequence[int] | None, scales: Sequence[float | None], resize: Resize
) -> Node | None:
    shape = shape_of(x)
    sizes, dims = _sizes(x, size, scales), len(shape) - 2
    changed = [k for k in range(dims) if sizes[k] != shape[2 + k] or scales[k] not in (None, 1)]
    if any(sizes[k] * shape[2 + k] > _LARGEST for k in changed):
        return None
    for axis in sorted(changed, key=lambda axis: sizes[axis] / shape[2 + axis]):
        matrix = _matrix(resize, shape[2 + axis], dims, axis, sizes[axis], scales[axis])
        if matrix.shape[0] == matrix.shape[1] and torch.equal(matrix, torch.eye(len(matrix))):
            continue
        turned = [k for k in range(len(shape)) if k != 2 + axis] + [2 + axis]
        back = sorted(range(len(shape)), key=lambda k: turned[k])
        x = s(aten.linear.default, s(aten.permute.default, x, turned), s.constant(matrix))
        x = s(aten.permute.default, x, back)
    return x


def _select_along_dims(s: AtenBuilder, x: Node, size: Sequence[int] | None, scales: Sequence[float | None], resize: Resize) -> Node:
    shape = shape_of(x)
    sizes, dims = _sizes(x, size, scales), len(shape) - 2
    for axis in range(dims):
        extent = shape[2 + axis]
        places = torch.arange(extent, dtype=torch.float32)[None]
        sources = _resize_axis(resize, places, dims, axis, sizes[axis], scales[axis])[0].long()
        if not torch.equal(sources, torch.arange(extent)):
            x = s(aten.index_select.default, x, 2 + axis, s.constant(sources))
    return x


_PLANES = [
    Sample(I8(1, 4, 6, 5), [12, 10], False), Sample(I8(2, 3, 8, 9), [5, 12], True), Sample(I8(1, 3, 7, 7), [9, 7], False),
    Sample(I8(1, 2, 1, 6), [3, 4], False), Sample(I8(1, 3, 4, 9), [6, 6], False, 1.6, 0.75),
]  # fmt: skip


@composite("aten.upsample_bicubic2d.default", also={"aten.upsample_bicubic2d.vec": _vec}, samples=_PLANES, bound=2, bound16=2)
def upsample_bicubic2d(s: AtenBuilder, x: Node, size: Any, align: bool, scale_h: Any = None, scale_w: Any = None) -> Any:
    """Resize by cubic convolution over 4 x 4 neighbors (a = -0.75), using a matrix along each dim: [N,C,H,W] -> [N,C,OH,OW]."""
    return _resize_by_matrices(s, x, size, (scale_h, scale_w), lambda m, to, by: aten.upsample_bicubic2d(m, to, align, *by))


@composite(
    "aten._upsample_bicubic2d_aa.default", also={"aten._upsample_bicubic2d_aa.vec": _vec}, samples=_PLANES, bound=2, bound16=2
)
def upsample_bicubic2d_aa(s: AtenBuilder, x: Node, size: Any, align: bool, scale_h: Any = None, scale_w: Any = None) -> Any:
    """Resize by cubic convolution (a = -0.5), with a wider kernel if the feature map shrinks."""
    return _resize_by_matrices(s, x, size, (scale_h, scale_w), lambda m, to, by: aten._upsample_bicubic2d_aa(m, to, align, *by))


@composite(
    "aten._upsample_bilinear2d_aa.default", also={"aten._upsample_bilinear2d_aa.vec": _vec}, samples=_PLANES, bound=2, bound16=2
)
def upsample_bilinear2d_aa(s: AtenBuilder, x: Node, size: Any, align: bool, scale_h: Any = None, scale_w: Any = None) -> Any:
    """Resize by bilinear interpolation: [N,C,H,W] -> [N,C,OH,OW]. The triangular kernel is wider if the feature map shrinks."""
    return _resize_by_matrices(s, x, size, (scale_h, scale_w), lambda m, to, by: aten._upsample_bilinear2d_aa(m, to, align, *by))


_VOLUMES = [
    Sample(I8(1, 3, 4, 5, 3), [8, 10, 3]),
    Sample(I8(2, 2, 5, 4, 6), [3, 7, 9]),
    Sample(I8(1, 2, 3, 4, 4), [4, 6, 3], 1.4, 1.6, 0.75),
]


@composite(
    "aten.upsample_trilinear3d.default",
    also={"aten.upsample_trilinear3d.vec": _vec},
    samples=[Sample(v.args[0], v.args[1], align, *v.args[2:]) for v in _VOLUMES for align in (False, True)],
    bound=2,
    bound16=3,
)
def upsample_trilinear3d(
    s: AtenBuilder, x: Node, size: Any, align: bool, scale_d: Any = None, scale_h: Any = None, scale_w: Any = None
) -> Any:
    """Resize by linear interpolation along three dims: [N,C,D,H,W] -> [N,C,OD,OH,OW]."""
    return _resize_by_matrices(
        s, x, size, (scale_d, scale_h, scale_w), lambda m, to, by: aten.upsample_trilinear3d(m, to, align, *by)
    )


@composite("aten.upsample_nearest3d.default", also={"aten.upsample_nearest3d.vec": _vec}, samples=_VOLUMES)
def upsample_nearest3d(s: AtenBuilder, x: Node, size: Any, scale_d: Any = None, scale_h: Any = None, scale_w: Any = None) -> Node:
    """Compute out[n,c,d,i,j] = x[n,c, floor(d * D / OD), floor(i * H / OH), floor(j * W / OW)]."""
    return _select_along_dims(s, x, size, (scale_d, scale_h, scale_w), lambda m, to, by: aten.upsample_nearest3d(m, to, *by))


@composite(
    "aten._upsample_nearest_exact1d.default",
    also={"aten._upsample_nearest_exact1d.vec": _vec},
    samples=[Sample(I8(1, 4, 9), [14]), Sample(I8(2, 3, 9), [15], 1.7)],
)
def upsample_nearest_exact1d(s: AtenBuilder, x: Node, size: Any, scale: Any = None) -> Node:
    """Compute out[n,c,i] = x[n,c, floor((i + 1/2) * L / OL)]."""
    return _select_along_dims(s, x, size, (scale,), lambda m, to, by: aten._upsample_nearest_exact1d(m, to, *by))


@composite(
    "aten._upsample_nearest_exact2d.default",
    also={"aten._upsample_nearest_exact2d.vec": _vec},
    samples=[Sample(I8(1, 4, 6, 5), [12, 10]), Sample(I8(2, 3, 8, 9), [5, 12]), Sample(I8(1, 3, 4, 9), [6, 6], 1.6, 0.75)],
)
def upsample_nearest_exact2d(s: AtenBuilder, x: Node, size: Any, scale_h: Any = None, scale_w: Any = None) -> Node:
    """Compute out[n,c,i,j] = x[n,c, floor((i + 1/2) * H / OH), floor((j + 1/2) * W / OW)]."""
    return _select_along_dims(s, x, size, (scale_h, scale_w), lambda m, to, by: aten._upsample_nearest_exact2d(m, to, *by))


@composite("aten._upsample_nearest_exact3d.default", also={"aten._upsample_nearest_exact3d.vec": _vec}, samples=_VOLUMES)
def upsample_nearest_exact3d(
    s: AtenBuilder, x: Node, size: Any, scale_d: Any = None, scale_h: Any = None, scale_w: Any = None
) -> Node:
    """Resize like ``upsample_nearest3d``, but with floor((i + 1/2) * H / OH) instead of floor(i * H / OH) along each dim."""
    return _select_along_dims(s, x, size, (scale_d, scale_h, scale_w), lambda m, to, by: aten._upsample_nearest_exact3d(m, to, *by))
