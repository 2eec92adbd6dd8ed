"""Decomposition of scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import tensor_of
from ethorch.lower.ops.matmul import draw_scaled_bmm
from ethorch.lower.ops.samples import I8, Sample
from ethorch.lower.ops.spec import composite

aten = torch.ops.aten

#: Score of a masked position. -inf would produce NaN in a completely masked row.
MASKED = -1e9
#: Value of an element that must be below all others, also below those that saturate. Models mask with other, round numbers.
EXCLUDED = 2 * MASKED - 1


def _with_mask(s: AtenBuilder, scores: Node, mask: Any, causal: bool) -> Node:
    rows, columns = shape_of(scores)[-2:]
    fill = MASKED if s.calibrated else -math.inf
    if causal:
        future = s.constant(torch.ones(rows, columns, dtype=torch.bool).triu(1))
        scores = s(aten.masked_fill.Scalar, scores, future, fill)
    if mask is None:
        return scores
    if mask.meta["val"].dtype == torch.bool:
        return s(aten.masked_fill.Scalar, scores, s(aten.logical_not.default, mask), fill)
    return s(aten.add.Tensor, scores, mask)


def _find_empty_rows(s: AtenBuilder, mask: Any, rows: int, columns: int, causal: bool) -> torch.Tensor | None:
    constant = tensor_of(s.model, mask) if isinstance(mask, Node) else None
    if constant is None or isinstance(constant, torch.nn.Parameter):
        return None
    attended = constant if constant.dtype == torch.bool else constant != -math.inf
    if causal:
        attended = attended & torch.ones(rows, columns, dtype=torch.bool).tril()
    empty_rows = ~attended.any(-1, keepdim=True)
    return empty_rows if empty_rows.any() else None


def _repeat_heads(s: AtenBuilder, x: Node, heads: int) -> Node:
    *batch_dims, count, tall, wide = shape_of(x)
    if count == heads:
        return x
    x = s(aten.expand.default, s(aten.unsqueeze.default, x, -3), [*batch_dims, count, heads // count, tall, wide])
    return s(aten.reshape.default, x, [*batch_dims, heads, tall, wide])


@composite(
    "aten.scaled_dot_product_attention.default",
    bound=2,
    bound16=4,
    samples=[
        Sample(I8(1, 2, 6, 8), I8(1, 2, 7, 8), I8(1, 2, 7, 5)),
        Sample(I8(2, 6, 8), I8(2, 6, 8), I8(2, 6, 8), None, 0.0, True),
        Sample(I8(1, 2, 6, 8), I8(1, 2, 6, 8), I8(1, 2, 6, 8), I8(6, 6), scale=0.2),
        Sample(I8(2, 4, 3, 8), I8(2, 2, 5, 8), I8(2, 2, 5, 8), enable_gqa=True),
        Sample(I8(1, 4, 3, 8), I8(2, 2, 5, 8), I8(2, 4, 5, 8), enable_gqa=True),
        Sample(I8(1, 3, 1, 8), I8(1, 3, 20, 8), I8(1, 3, 20, 8)),
    ],
)
def scaled_dot_product_attention(
    s: AtenBuilder,
    query: Node,
    key: Node,
    value: Node,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return softmax(scale * query @ key.T + mask) @ value over the last two dims.

    A row in which a computed mask excludes all positions becomes the mean of the values, not 0.
    """
    rows, width = shape_of(query)[-2:]
    columns = shape_of(key)[-2]
    operands = [_repeat_heads(s, x, shape_of(query)[-3]) if enable_gqa else x for x in (query, key, value)]
    lead = list(torch.broadcast_shapes(*(shape_of(x)[:-2] for x in operands)))
    for k, x in enumerate(operands):
        *batch_dims, tall, wide = shape_of(x)
        x = x if batch_dims == lead else s(aten.expand.default, x, [*lead, tall, wide])
        operands[k] = s(aten.reshape.default, x, [math.prod(lead), tall, wide])
    factor = width**-0.5 if scale is None else scale
    scores = draw_scaled_bmm(s, operands[0], s(aten.transpose.int, operands[1], 1, 2), factor)
    if attn_mask is not None or is_causal:
        full = s(aten.reshape.default, scores, [*lead, rows, columns])
        masked = _with_mask(s, full, attn_mask, is_causal)
        scores = s(aten.reshape.default, masked, [math.prod(lead), rows, columns])
    weights = s(aten.softmax.int, scores, -1)
    result = s(aten.reshape.default, s(aten.bmm.default, weights, operands[2]), [*lead, rows, shape_of(value)[-1]])
    empty_rows = _find_empty_rows(s, attn_mask, rows, columns, is_causal)
    return result if empty_rows is None else s(aten.masked_fill.Scalar, result, s.constant(empty_rows), 0.0)
