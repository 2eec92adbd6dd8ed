"""Concatenation, stacking and repetition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.quant_rules import JOINED, SAME_AS_INPUT
from ethorch.lower.ops.samples import I8, Bools, Ints, Sample
from ethorch.lower.ops.spec import composite, op

aten = torch.ops.aten


@op(
    "aten.expand.default",
    "aten.expand_copy.default",
    quant=SAME_AS_INPUT,
    also={
        "aten.broadcast_to.default": lambda x, size: ((x, size), {}),
        "aten.expand_as.default": lambda x, y: ((x, list(y.shape)), {}),
    },
    samples=[Sample(I8(1, 8, 1, 5), [2, -1, 4, 5]), Sample(I8(12), [2, 12]), Sample(I8(4, 5), [4, 5])],
)
def expand(b: Builder, x: QTensor, size: Sequence[int], implicit: bool = False, *, out: Result) -> QTensor:
    """Repeat x along dims of size 1, so that its shape becomes ``size``. TOSA TILE."""
    x = b.view(x, (1,) * (len(out.shape) - x.rank) + x.shape)
    return b.to_qparams(b.tile(x, [want // have if have else 1 for want, have in zip(out.shape, x.shape, strict=True)]), out.q)


@op(
    "aten.repeat.default",
    "aten.repeat_copy.default",
    quant=SAME_AS_INPUT,
    also={"aten.tile.default": lambda x, dims: ((x, [1] * (len(x.shape) - len(dims)) + list(dims)), {})},
    samples=[Sample(I8(1, 4, 3, 2), [1, 2, 1, 3]), Sample(I8(12), [1, 3]), Sample(I8(2, 3), [1, 1])],
)
def repeat(b: Builder, x: QTensor, repeats: Sequence[int], *, out: Result) -> QTensor:
    """Repeat x ``repeats[d]`` times along each dim d. TOSA TILE."""
    x = b.view(x, (1,) * (len(repeats) - x.rank) + x.shape)
    return b.to_qparams(b.tile(x, list(repeats)), out.q)


@op(
    "aten.stack.default",
    quant=JOINED,
    samples=[Sample([I8(2, 3), I8(2, 3, low=-1.0)], 1), Sample([I8(1, 4, 5), I8(1, 4, 5)], -1)],
)
def stack(b: Builder, tensors: Sequence[QTensor], dim: int = 0, *, out: Result) -> QTensor:
    """Concatenate tensors along a new ``dim``. TOSA CONCAT."""
    dim %= tensors[0].rank + 1
    parts = [b.view(x, (*x.shape[:dim], 1, *x.shape[dim:])) for x in tensors]
    joined: QTensor = cat(b, parts, dim, out=out)
    return joined


@composite("aten.repeat_interleave.self_int", samples=[Sample(I8(2, 3, 4), 2, 1), Sample(I8(2, 3), 3, -1), Sample(I8(2, 3), 2)])
def repeat_interleave(s: AtenBuilder, x: Node, repeats: int, dim: int | None = None, *, output_size: int | None = None) -> Any:
    """Repeat each element of x ``repeats`` times along ``dim``. If ``dim`` is None, x is first flattened."""
    if dim is None:
        x, dim = s(aten.reshape.default, x, [-1]), 0
    shape = list(shape_of(x))
    dim %= len(shape)
    x = s(aten.unsqueeze.default, x, dim + 1)
    x = s(aten.expand.default, x, [*shape[: dim + 1], repeats, *shape[dim + 1 :]])
    return s(aten.reshape.default, x, [*shape[:dim], shape[dim] * repeats, *shape[dim + 1 :]])


@op(
    "aten.cat.default",
    "aten.concat.default",
    "aten.concatenate.default",
    quant=JOINED,
    samples=[
        Sample([I8(1, 4, 5, 5), I8(1, 3, 5, 5, low=-1.0, high=1.0)], 1),
        Sample([I8(2, 3), I8(2, 3), I8(2, 1)], -1),
        Sample([I8(1, 4, 2, 5), I8(1, 4, 3, 5)], 2),
        Sample([I8(1, 4, 2), I8(2, 4, 2)]),
        Sample([Ints(2, 3), Ints(2, 2, dtype="int16", low=-99, high=99)], 1),
        Sample([Bools(2, 9), Bools(1, 9)]),
        Sample([I8(2, 3), Ints(2, 2, low=-3, high=3)], 1),
    ],
)
def cat(b: Builder, tensors: Sequence[QTensor], dim: int = 0, *, out: Result) -> QTensor:
    """Concatenate tensors along ``dim``, after conversion to the quantization parameters of ``out``. TOSA CONCAT."""
    parts = [b.convert_operand(x, out) for x in tensors if 0 not in x.shape]
    values, dims = b.alike(parts)
    axis = dims[dim % parts[0].rank][0]
    return QTensor(b.emit("CONCAT", *values, axis=axis) if len(values) > 1 else values[0], dims, out.q)
