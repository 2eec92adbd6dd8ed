"""Rewrite attention masks into a form that quantization supports.

All masks become ``masked_fill`` with ``MASKED``, which maps to the lowest integer value of the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import arguments, is_float, op_name
from ethorch.lower.ops.arithmetic import add, mul, sub
from ethorch.lower.ops.attention import EXCLUDED, MASKED
from ethorch.lower.ops.clamp import clamp, maximum, minimum
from ethorch.lower.ops.division import div
from ethorch.lower.ops.joining import cat
from ethorch.lower.ops.pad import constant_pad
from ethorch.lower.ops.selection import masked_fill, where
from ethorch.lower.ops.spec import find
from ethorch.quantization.passes import mask_tensors
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.mask_tensors import expand_truth, huge, is_unified, mask_of, mask_scores, truth_of, unite

aten = torch.ops.aten


def unify_masks(graph_module: GraphModule, context: PassContext) -> None:
    """Replace masks with ``masked_fill``, except in excluded nodes.

    A mask contains a number <= -1e9, or <= ``HUGE`` (-1e4) if only operators like softmax read the result. Its range would leave
    no integer values for the scores. The ``masked_fill`` is placed after operators that scale, add, concatenate or clamp scores.
    """
    for node in list(graph_module.graph.nodes):
        spec = find(node.target) if node.op == "call_function" else None
        if spec is None or context.is_excluded(node) or not is_float(node):
            continue
        s = AtenBuilder(graph_module, node, None)
        if spec in _FORMS:
            args, kwargs = spec.canonical(op_name(node.target), *arguments(node))
            replacement = _FORMS[spec](s, node, *args, **kwargs)
        else:
            replacement = mask_tensors.gather_mask(s, node) or mask_tensors.move_mask(s, node)
        if replacement is not None:
            node.replace_all_uses_with(replacement)
            _erase(node)


def _erase(node: Node) -> None:
    waiting = [node]
    while waiting:
        unread = waiting.pop()
        if not unread.users and unread.op == "call_function" and not unread._erased:
            read = unread.all_input_nodes
            unread.graph.erase_node(unread)
            waiting += read


def _fill(s: AtenBuilder, node: Node, x: Any, mask: Any, value: Any) -> Node | None:
    if (mask_node := mask_tensors.select_mask(s, node, mask, value, x)) is not None:
        return mask_node
    return None if huge(s, value) is None or value in (MASKED, EXCLUDED) else mask_scores(s, x, truth_of(s, mask))


def _pad(s: AtenBuilder, node: Node, x: Node, pad: Any, value: float = 0.0, mode: str = "constant") -> Node | None:
    if value > mask_tensors.HUGE or not mask_tensors.ignores_magnitudes(node):
        return None
    hidden = aten.constant_pad_nd.default(torch.zeros(shape_of(x), dtype=torch.bool), pad, True)
    return mask_scores(s, s(aten.constant_pad_nd.default, x, pad, 0.0), hidden)


def _where(s: AtenBuilder, node: Node, mask: Any, x: Any, y: Any) -> Node | None:
    if (mask_node := mask_tensors.select_mask(s, node, mask, x, y)) is not None:
        return mask_node
    if huge(s, x) is not None and _as_large(y, node):
        return mask_scores(s, y, mask)
    if huge(s, y) is not None and _as_large(x, node):
        return mask_scores(s, x, mask_tensors.invert(s, truth_of(s, mask)))
    return None


def _add(s: AtenBuilder, node: Node, x: Any, y: Any, alpha: Any = 1) -> Node | None:
    if alpha != 1:
        return None
    if (total := _add_masks(s, node, x, y)) is not None:
        return total
    for scores, addend in ((x, y), (y, x)):
        mask = mask_of(s, addend) if isinstance(scores, Node) and isinstance(addend, Node) else None
        if mask is None or not mask.masks or not _as_large(scores, node):
            continue
        if isinstance(mask.masked, torch.Tensor) and mask.masked.numel() == 1:
            continue
        if mask.rest.any():
            scores = s(aten.add.Tensor, scores, s.constant(mask.rest))
        return mask_scores(s, scores, mask.masked)
    return _later(s, node, x, y)


def _add_masks(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    if not (isinstance(x, Node) and isinstance(y, Node)):
        return None
    first, second = mask_of(s, x), mask_of(s, y)
    if first is not None and second is not None and (first.masks or second.masks):
        hidden = unite(s, first.masked, second.masked)
        return mask_tensors.emit_mask(s, node, mask_tensors.Mask(hidden, first.rest + second.rest))
    if first is None and second is None and is_unified(x) and is_unified(y):
        hidden = unite(s, *(truth_of(s, cast(Node, part.args[1])) for part in (x, y)))
        return mask_scores(s, s(aten.add.Tensor, x.args[0], y.args[0]), hidden)
    return None


def _subtract(s: AtenBuilder, node: Node, x: Any, y: Any, alpha: Any = 1) -> Node | None:
    return _later(s, node, x, y) if is_unified(x) and alpha == 1 else None


def _later(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    for scores, operand in ((x, y), (y, x)):
        if is_unified(scores) and not is_unified(operand):
            unmasked, mask = cast(tuple[Node, Node], scores.args[:2])
            args = tuple(unmasked if arg is scores else arg for arg in node.args)
            return mask_scores(s, s(node.target, *args, **node.kwargs), mask)
    return None


def _product(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    mask_node = mask_tensors.product(s, node, x, y)
    return _scale(s, node, x, y) if mask_node is None else mask_node


def _scale(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    factor = next((number for arg in (y, x) if (number := s.number(arg)) is not None), None)
    return _later(s, node, x, y) if factor is not None and factor > 0 else None


def _quotient(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    return _scale(s, node, x, y) if is_unified(x) else None


def _maximum(s: AtenBuilder, node: Node, x: Any, y: Any) -> Any:
    for scores, bound in ((x, y), (y, x)):
        if huge(s, bound) is not None and is_unified(scores) and _as_large(scores, node):
            return scores
    return None


def _minimum(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    first, second = mask_of(s, x), mask_of(s, y)
    if first is None or second is None or not (first.masks or second.masks):
        return None
    rest = torch.minimum(first.rest, second.rest)
    return mask_tensors.emit_mask(s, node, mask_tensors.Mask(unite(s, first.masked, second.masked), rest))


def _clamp(s: AtenBuilder, node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    return _maximum(s, node, x, low) if high is None else None


def _concatenate(s: AtenBuilder, node: Node, tensors: list[Any], dim: int = 0) -> Node | None:
    if not any(is_unified(part) and len(part.users) == 1 for part in tensors):
        return None
    masks = [_mask_of(s, part) for part in tensors]
    unmasked = [part.args[0] if is_unified(part) else part for part in tensors]
    constants = [mask for mask in masks if isinstance(mask, torch.Tensor)]
    mask = (
        torch.cat(constants, dim)
        if len(constants) == len(masks)
        else s(aten.cat.default, [mask_tensors.as_node(s, part) for part in masks], dim)
    )
    return mask_scores(s, s(node.target, unmasked, dim), mask)


def _mask_of(s: AtenBuilder, scores: Node) -> mask_tensors.Truth:
    shape = shape_of(scores)
    if not is_unified(scores):
        return torch.zeros(shape, dtype=torch.bool)
    return expand_truth(s, truth_of(s, cast(Node, scores.args[1])), shape)


def _as_large(arg: Any, node: Node) -> bool:
    return isinstance(arg, Node) and arg.meta["val"].shape == node.meta["val"].shape


_FORMS: dict[Any, Callable[..., Any]] = {
    masked_fill: _fill, where: _where, add: _add, sub: _subtract, mul: _product, div: _quotient, maximum: _maximum,
    minimum: _minimum, clamp: _clamp, cat: _concatenate, constant_pad: _pad,
}  # fmt: skip
