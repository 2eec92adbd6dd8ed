"""Views, permutes, shuffles and identities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.quant_rules import SAME_AS_INPUT
from ethorch.lower.ops.samples import I8, Sample
from ethorch.lower.ops.spec import composite, op

aten = torch.ops.aten


@composite(
    "aten.movedim.intlist",
    also={
        "aten.movedim.int": lambda x, source, target: ((x, [source], [target]), {}),
        "aten.moveaxis.int": lambda x, source, target: ((x, [source], [target]), {}),
        "aten.moveaxis.intlist": lambda x, source, target: ((x, source, target), {}),
    },
    samples=[Sample(I8(2, 3, 4, 5), [1, 0], [-1, 2])],
)
def movedim(s: AtenBuilder, x: Node, source: Sequence[int], destination: Sequence[int]) -> Any:
    """Return x with dims ``source`` moved to ``destination``. The other dims remain in order."""
    rank = len(shape_of(x))
    places = {d % rank: a % rank for a, d in zip(source, destination, strict=True)}
    rest = iter(d for d in range(rank) if d not in {a % rank for a in source})
    return s(aten.permute.default, x, [places[d] if d in places else next(rest) for d in range(rank)])


@composite(
    "aten.swapaxes.default",
    "aten.swapdims.default",
    also={
        "aten.adjoint.default": lambda x: ((x, -1, -2), {}),
        "aten.numpy_T.default": lambda x: ((x, 0, -1), {}),
        "aten.mT.default": lambda x: ((x, -1, -2), {}),
    },
    samples=[Sample(I8(2, 3, 4), 0, -1)],
)
def swapaxes(s: AtenBuilder, x: Node, first: int, second: int) -> Any:
    """Return x with two dims exchanged."""
    return s(aten.transpose.int, x, first, second)


@composite("aten.pixel_shuffle.default", samples=[Sample(I8(1, 8, 3, 4), 2), Sample(I8(2, 9, 2, 2), 3)])
def pixel_shuffle(s: AtenBuilder, x: Node, factor: int) -> Any:
    """Compute out[n,c,h*r+i,w*r+j] = x[n,c*r*r+i*r+j,h,w]: [N,C*r*r,H,W] -> [N,C,H*r,W*r]."""
    *lead, c, h, w = shape_of(x)
    r, k = factor, len(lead)
    parts = s(aten.reshape.default, x, [*lead, c // (r * r), r, r, h, w])
    moved = s(aten.permute.default, parts, [*range(k), k, k + 3, k + 1, k + 4, k + 2])
    return s(aten.reshape.default, moved, [*lead, c // (r * r), h * r, w * r])


@composite("aten.pixel_unshuffle.default", samples=[Sample(I8(1, 2, 6, 4), 2), Sample(I8(2, 1, 3, 6), 3)])
def pixel_unshuffle(s: AtenBuilder, x: Node, factor: int) -> Any:
    """Compute out[n,c*r*r+i*r+j,h,w] = x[n,c,h*r+i,w*r+j]: [N,C,H*r,W*r] -> [N,C*r*r,H,W]."""
    *lead, c, h, w = shape_of(x)
    r, k = factor, len(lead)
    parts = s(aten.reshape.default, x, [*lead, c, h // r, r, w // r, r])
    moved = s(aten.permute.default, parts, [*range(k), k, k + 2, k + 4, k + 1, k + 3])
    return s(aten.reshape.default, moved, [*lead, c * r * r, h // r, w // r])


@composite(
    "aten.channel_shuffle.default",
    also={"aten.native_channel_shuffle.default": lambda x, g: ((x, g), {})},
    samples=[Sample(I8(1, 6, 4, 4), 2)],
)
def channel_shuffle(s: AtenBuilder, x: Node, groups: int) -> Any:
    """Compute out[n,k*G+g] = x[n,g*K+k] for G groups of K channels."""
    n, c, *rest = shape_of(x)
    parts = s(aten.reshape.default, x, [n, groups, c // groups, *rest])
    return s(aten.reshape.default, s(aten.transpose.int, parts, 1, 2), [n, c, *rest])


@composite("aten.copy.default", samples=[Sample(I8(2, 3), I8(2, 3)), Sample(I8(2, 3), I8(3))])
def copy(s: AtenBuilder, x: Node, source: Node, non_blocking: bool = False) -> Any:
    """Return source, expanded to the shape of x."""
    return s(aten.clone.default, source) if shape_of(source) == shape_of(x) else s(aten.expand.default, source, list(shape_of(x)))


@op(
    "aten.view.default",
    "aten.view_copy.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze_copy.default",
    "aten.squeeze_copy.dim",
    "aten.squeeze_copy.dims",
    "aten.unsqueeze.default",
    "aten.unsqueeze_copy.default",
    quant=SAME_AS_INPUT,
    moves=True,
    samples=[
        Sample(I8(1, 8, 4, 4), [1, 128]),
        Sample(I8(2, 3, 4), [6, 4]),
        Sample(I8(4, 6), [2, 2, 3, 2]),
        Sample(I8(1, 12, 1, 1), [12]),
    ],
)
def view(b: Builder, x: QTensor, *_: Any, out: Result) -> QTensor:
    """Return x in another shape, with its elements in PyTorch's order. Data moves only if necessary. TOSA RESHAPE."""
    return b.to_qparams(b.view(x, out.shape), out.q)


@op(
    "aten.permute.default",
    "aten.permute_copy.default",
    quant=SAME_AS_INPUT,
    moves=True,
    also={
        "aten.transpose.int": lambda x, a, b: ((x, _swap(x, a, b)), {}),
        "aten.transpose_copy.int": lambda x, a, b: ((x, _swap(x, a, b)), {}),
        "aten.t.default": lambda x: ((x, _swap(x, 0, -1)), {}),
        "aten.t_copy.default": lambda x: ((x, _swap(x, 0, -1)), {}),
    },
    samples=[Sample(I8(2, 3, 4, 5), [0, 2, 3, 1]), Sample(I8(4, 6), [1, 0]), Sample(I8(1, 4, 6), [0, -1, 1])],
)
def permute(b: Builder, x: QTensor, dims: Sequence[int], *, out: Result) -> QTensor:
    """Return x with dims in the order ``dims``. Data moves only if a later operator requires it."""
    return b.to_qparams(b.permute(x, [dim % x.rank for dim in dims]), out.q)


def _swap(x: Any, first: int, second: int) -> list[int]:
    order = list(range(len(x.shape)))
    if order:
        order[first], order[second] = order[second], order[first]
    return order


@op(
    "aten.dropout.default",
    "aten.alias.default",
    "aten.alias_copy.default",
    "aten.clone.default",
    "aten.detach.default",
    "aten.detach_copy.default",
    "aten.contiguous.default",
    "aten.lift_fresh_copy.default",
    "dim_order_ops._clone_dim_order.default",
    quant=SAME_AS_INPUT,
    absorbs=True,
    homogeneous=0,
    samples=[Sample(I8(2, 5), 0.5, False)],
)
def identity(b: Builder, x: QTensor, *_: Any, out: Result, **__: Any) -> QTensor:
    """Return x unchanged, for copies and for dropout in eval mode."""
    return b.to_qparams(x, out.q)


@composite("aten.view_as.default", samples=[Sample(I8(2, 6), I8(3, 4))])
def view_as(s: AtenBuilder, x: Node, target: Node) -> Node:
    """Return x in the shape of ``target``."""
    return s(torch.ops.aten.view.default, x, list(shape_of(target)))
