"""Patches of a feature map as matrix columns (unfold), and sums of patches (fold)."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.samples import I8, Sample
from ethorch.lower.ops.spec import composite

aten = torch.ops.aten


def _counts(extents: Sequence[int], kernel: Sequence[int], dilation: Sequence[int], stride: Sequence[int]) -> list[int]:
    axes = zip(extents, kernel, dilation, stride, strict=True)
    return [(extent - (taps - 1) * apart - 1) // step + 1 for extent, taps, apart, step in axes]


def _abut(kernel: Sequence[int], dilation: Sequence[int], stride: Sequence[int]) -> bool:
    return all(taps == step and (apart == 1 or taps == 1) for taps, apart, step in zip(kernel, dilation, stride, strict=True))


def _stack(s: AtenBuilder, parts: Sequence[Node], dim: int) -> Node:
    parts = [s(aten.unsqueeze.default, part, dim) for part in parts]
    return s(aten.cat.default, parts, dim) if len(parts) > 1 else parts[0]


def _cut(s: AtenBuilder, x: Node, dim: int, start: int, size: int, step: int = 1) -> Node:
    if (start, size, step) == (0, shape_of(x)[dim], 1):
        return x
    return s(aten.slice.Tensor, x, dim, start, start + (size - 1) * step + 1, step)


@composite(
    "aten.im2col.default",
    samples=[
        Sample(I8(1, 3, 6, 7), [3, 3], [1, 1], [0, 0], [1, 1]),
        Sample(I8(2, 3, 8, 9), [3, 2], [1, 1], [1, 1], [2, 3]),
        Sample(I8(2, 2, 9, 8), [3, 2], [2, 3], [2, 1], [1, 2]),
        Sample(I8(1, 3, 9, 8), [4, 2], [1, 1], [0, 0], [4, 2]),
        Sample(I8(4, 7, 7), [2, 2], [1, 1], [1, 0], [2, 2]),
    ],
)
def im2col(s: AtenBuilder, x: Node, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Node:
    """Return the patches of a padded feature map as columns: [N,C,H,W] -> [N, C * KH * KW, OH * OW]."""
    # Adjacent patches are a permutation. Otherwise, a slice is selected for each row, then for each column of the kernel.
    if any(padding):
        x = s(aten.constant_pad_nd.default, x, [padding[1], padding[1], padding[0], padding[0]], 0.0)
    *lead, channels, height, width = shape_of(x)
    (kh, kw), (rows, columns) = kernel, _counts((height, width), kernel, dilation, stride)
    if _abut(kernel, dilation, stride):
        x = _cut(s, _cut(s, x, -2, 0, rows * kh), -1, 0, columns * kw)
        x = s(aten.reshape.default, x, [math.prod(lead) * channels, rows, kh, columns, kw])
        x = s(aten.permute.default, x, [0, 2, 4, 1, 3])
    else:
        x = s(aten.reshape.default, x, [math.prod(lead) * channels, height, width])
        x = _stack(s, [_cut(s, x, 1, i * dilation[0], rows, stride[0]) for i in range(kh)], 1)
        x = _stack(s, [_cut(s, x, 3, j * dilation[1], columns, stride[1]) for j in range(kw)], 2)
    return s(aten.reshape.default, x, [*lead, channels * kh * kw, rows * columns])


def _insert_zeros(s: AtenBuilder, x: Node, dim: int, step: int) -> Node:
    if step == 1:
        return x
    shape = list(shape_of(x))
    apart = _pad(s, s(aten.unsqueeze.default, x, dim + 1), dim + 1, 0, step - 1)
    count, shape[dim] = shape[dim], shape[dim] * step
    return _cut(s, s(aten.reshape.default, apart, shape), dim, 0, (count - 1) * step + 1)


def _pad(s: AtenBuilder, x: Node, dim: int, before: int, after: int) -> Node:
    inner = len(shape_of(x)) - 1 - dim
    return s(aten.constant_pad_nd.default, x, [0, 0] * inner + [before, after], 0.0) if before or after else x


def _place(s: AtenBuilder, x: Node, dim: int, start: int, extent: int) -> Node | None:
    size = shape_of(x)[dim]
    first, end = max(-start, 0), min(size, extent - start)
    if first >= end:
        return None
    return _pad(s, _cut(s, x, dim, first, end - first), dim, start + first, extent - start - end)


@composite(
    "aten.col2im.default",
    samples=[
        Sample(I8(1, 27, 20), [6, 7], [3, 3], [1, 1], [0, 0], [1, 1]),
        Sample(I8(2, 18, 16), [8, 9], [3, 2], [1, 1], [1, 1], [2, 3]),
        Sample(I8(2, 12, 36), [9, 8], [3, 2], [2, 3], [2, 1], [1, 2]),
        Sample(I8(1, 24, 8), [9, 8], [4, 2], [1, 1], [0, 0], [4, 2]),
        Sample(I8(16, 12), [7, 7], [2, 2], [1, 1], [1, 0], [2, 2]),
    ],
)
def col2im(s: AtenBuilder, x: Node, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Node:
    """Add each column to its patch in a zero-initialized feature map: [N, C * KH * KW, OH * OW] -> [N,C,H,W]."""
    # A block of the taps within one stride (one tap if dilated) covers each position at most once. One sum adds all blocks.
    *lead, patches, _ = shape_of(x)
    extents = [extent + 2 * pad for extent, pad in zip(size, padding, strict=True)]
    counts = _counts(extents, kernel, dilation, stride)
    channels = patches // math.prod(kernel)
    outer = math.prod(lead) * channels
    x = s(aten.reshape.default, x, [outer, *kernel, *counts])
    block = [step if apart == 1 else 1 for step, apart in zip(stride, dilation, strict=True)]
    blocks = [-(-taps // wide) for taps, wide in zip(kernel, block, strict=True)]
    for axis in range(2):
        x = _pad(s, x, 1 + axis, 0, blocks[axis] * block[axis] - kernel[axis])
    layers = []
    for places in itertools.product(*map(range, blocks)):
        taps = x
        for axis, place in enumerate(places):
            taps = _cut(s, taps, 1 + axis, place * block[axis], block[axis])
        abutting = s(aten.permute.default, taps, [0, 3, 1, 4, 2])
        part: Node | None = s(aten.reshape.default, abutting, [outer, *map(operator.mul, counts, block)])
        for axis, place in enumerate(places):
            if part is not None:
                part = _insert_zeros(s, part, 1 + axis, stride[axis] // block[axis])
                part = _place(s, part, 1 + axis, place * block[axis] * dilation[axis] - padding[axis], size[axis])
        if part is not None:
            layers.append(part)
    total = s(aten.sum.dim_IntList, _stack(s, layers, 1), [1]) if len(layers) > 1 else layers[0]
    return s(aten.reshape.default, total, [*lead, channels, *size])
