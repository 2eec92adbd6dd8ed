"""Masks of attention scores, in the one form that a quantized score survives.

User code masks with -inf, -1e9 or the least float, by ``masked_fill``, by ``where`` or by adding a mask. None of these is a
number to calibrate with: a range that holds it has no code left for the scores. They all become ``masked_fill`` with a value
of at most ``HUGE``, which takes the lowest code. The scores' observer leaves room for it instead (``link_observers`` tells it).
What is scaled, added to, joined with other scores or bounded from below after it is masked is masked after that instead.
So are scores that a mask is added to, however the program makes that mask (``ethorch.quantization.passes.mask_tensors``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import arguments, is_float, op_name
from ethorch.lower.ops.arithmetic import add, mul, sub
from ethorch.lower.ops.attention import MASKED
from ethorch.lower.ops.clamp import clamp, maximum, minimum
from ethorch.lower.ops.division import div
from ethorch.lower.ops.joining import cat
from ethorch.lower.ops.selection import masked_fill, where
from ethorch.lower.ops.spec import find
from ethorch.quantization.passes import mask_tensors
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.mask_tensors import either, expanded, huge, is_ours, mask_of, masked, truth_of

aten = torch.ops.aten


def unify_masks(graph_module: GraphModule, context: PassContext) -> None:
    """Write every way to mask with a number below ``HUGE`` as ``masked_fill``, but for excluded nodes. In place."""
    for node in list(graph_module.graph.nodes):
        spec = find(node.target) if node.op == "call_function" else None
        if spec is None or context.is_excluded(node) or not is_float(node):
            continue
        s = AtenBuilder(graph_module, node, None)
        if spec in _FORMS:
            args, kwargs = spec.canonical(op_name(node.target), *arguments(node))
            made = _FORMS[spec](s, node, *args, **kwargs)
        else:
            made = mask_tensors.picked(s, node) or mask_tensors.moved(s, node)
        if made is not None:
            node.replace_all_uses_with(made)
            _erase(node)


def _erase(node: Node) -> None:
    """Remove a node that nobody reads, and what only it has read."""
    waiting = [node]
    while waiting:
        unread = waiting.pop()
        if not unread.users and unread.op == "call_function" and not unread._erased:
            read = unread.all_input_nodes
            unread.graph.erase_node(unread)
            waiting += read


def _fill(s: AtenBuilder, node: Node, x: Any, mask: Any, value: Any) -> Node | None:
    if (made := mask_tensors.chosen(s, node, mask, value, x)) is not None:
        return made
    return None if huge(s, value) is None or value == MASKED else masked(s, x, truth_of(s, mask))


def _where(s: AtenBuilder, node: Node, mask: Any, x: Any, y: Any) -> Node | None:
    if (made := mask_tensors.chosen(s, node, mask, x, y)) is not None:
        return made
    if huge(s, x) is not None and _as_large(y, node):
        return masked(s, y, mask)
    if huge(s, y) is not None and _as_large(x, node):
        return masked(s, x, mask_tensors.inverted(s, truth_of(s, mask)))
    return None


def _add(s: AtenBuilder, node: Node, x: Any, y: Any, alpha: Any = 1) -> Node | None:
    if alpha != 1:
        return None
    if (made := _both(s, node, x, y)) is not None:
        return made
    for scores, other in ((x, y), (y, x)):
        mask = mask_of(s, other) if isinstance(scores, Node) and isinstance(other, Node) else None
        if mask is None or not mask.masks or not _as_large(scores, node):
            continue
        if isinstance(mask.masked, torch.Tensor) and mask.masked.numel() == 1:
            continue
        if mask.rest.any():
            scores = s(aten.add.Tensor, scores, s.constant(mask.rest))
        return masked(s, scores, mask.masked)
    return _later(s, node, x, y)


def _both(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    """The sum of two masks, or of scores of which both are masked."""
    if not (isinstance(x, Node) and isinstance(y, Node)):
        return None
    first, second = mask_of(s, x), mask_of(s, y)
    if first is not None and second is not None and (first.masks or second.masks):
        hidden = either(s, first.masked, second.masked)
        return mask_tensors.drawn(s, node, mask_tensors.Mask(hidden, first.rest + second.rest))
    if first is None and second is None and is_ours(x) and is_ours(y):
        hidden = either(s, *(truth_of(s, cast(Node, part.args[1])) for part in (x, y)))
        return masked(s, s(aten.add.Tensor, x.args[0], y.args[0]), hidden)
    return None


def _subtract(s: AtenBuilder, node: Node, x: Any, y: Any, alpha: Any = 1) -> Node | None:
    hidden = mask_tensors.subtrahend(s, y) if alpha == 1 and _as_large(x, node) else None
    if hidden is not None:
        return masked(s, x, hidden)
    return _later(s, node, x, y) if is_ours(x) and alpha == 1 else None


def _later(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    """``node`` of what was masked before, and the mask behind it; no mask where both operands are masked, or neither."""
    for scores, other in ((x, y), (y, x)):
        if is_ours(scores) and not is_ours(other):
            unmasked, mask = cast(tuple[Node, Node], scores.args[:2])
            args = tuple(unmasked if arg is scores else arg for arg in node.args)
            return masked(s, s(node.target, *args, **node.kwargs), mask)
    return None


def _product(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    """A product by a number to mask with, or by a positive one: what is masked stays far below all else."""
    made = mask_tensors.product(s, node, x, y)
    return _scaled(s, node, x, y) if made is None else made


def _scaled(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    factor = next((number for arg in (y, x) if (number := s.number(arg)) is not None), None)
    return _later(s, node, x, y) if factor is not None and factor > 0 else None


def _quotient(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    return _scaled(s, node, x, y) if is_ours(x) else None


def _bounded(s: AtenBuilder, node: Node, x: Any, y: Any) -> Any:
    """The greater of masked scores and a number to mask with: the scores."""
    for scores, other in ((x, y), (y, x)):
        if huge(s, other) is not None and is_ours(scores) and _as_large(scores, node):
            return scores
    return None


def _lesser(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    """The lesser of two masks masks where one of both does."""
    first, second = mask_of(s, x), mask_of(s, y)
    if first is None or second is None or not (first.masks or second.masks):
        return None
    rest = torch.minimum(first.rest, second.rest)
    return mask_tensors.drawn(s, node, mask_tensors.Mask(either(s, first.masked, second.masked), rest))


def _clamped(s: AtenBuilder, node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    return _bounded(s, node, x, low) if high is None else None


def _joined(s: AtenBuilder, node: Node, tensors: list[Any], dim: int = 0) -> Node | None:
    """Scores of which some are masked, joined: the mask is joined with places that are not."""
    if not any(is_ours(part) and len(part.users) == 1 for part in tensors):
        return None
    masks = [_mask_of(s, part) for part in tensors]
    unmasked = [part.args[0] if is_ours(part) else part for part in tensors]
    known = [mask for mask in masks if isinstance(mask, torch.Tensor)]
    mask = (
        torch.cat(known, dim)
        if len(known) == len(masks)
        else s(aten.cat.default, [mask_tensors.as_node(s, part) for part in masks], dim)
    )
    return masked(s, s(node.target, unmasked, dim), mask)


def _mask_of(s: AtenBuilder, scores: Node) -> mask_tensors.Truth:
    """Where ``scores`` are masked, bool of their shape."""
    shape = shape_of(scores)
    if not is_ours(scores):
        return torch.zeros(shape, dtype=torch.bool)
    return expanded(s, truth_of(s, cast(Node, scores.args[1])), shape)


def _as_large(arg: Any, node: Node) -> bool:
    return isinstance(arg, Node) and arg.meta["val"].shape == node.meta["val"].shape


_FORMS: dict[Any, Callable[..., Any]] = {
    masked_fill: _fill, where: _where, add: _add, sub: _subtract, mul: _product, div: _quotient, maximum: _bounded,
    minimum: _lesser, clamp: _clamped, cat: _joined,
}  # fmt: skip
