"""Masks of attention scores, in the one form that a quantized score survives.

User code masks with -inf, -1e9 or the least float, by ``masked_fill``, by ``where`` or by adding a mask. None of these is a
number to calibrate with: a range that holds it has no code left for the scores. They all become ``masked_fill`` with a value
of at most ``HUGE``, which takes the lowest code. The scores' observer leaves room for it instead (``link_observers`` tells it).
What is scaled, added to, joined with other scores or bounded from below after it is masked is masked after that instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from ethorch.fx.aten_builder import AtenBuilder, shape_of
from ethorch.fx.node import arguments, is_float, op_name, tensor_of
from ethorch.ops.arithmetic import add, mul
from ethorch.ops.attention import MASKED
from ethorch.ops.clamp import clamp, maximum
from ethorch.ops.division import div
from ethorch.ops.joining import cat
from ethorch.ops.selection import masked_fill, where
from ethorch.ops.spec import find

aten = torch.ops.aten

HUGE = -1e4  #: a number to mask with, not to compute with
_APART = 100.0  #: a mask's numbers are at least that many times as large as all else that is added


def is_mask_fill(node: Node) -> bool:
    """Does the node mask scores?"""
    if find(node.target) is not masked_fill:
        return False
    value = node.args[2]
    return isinstance(value, (int, float)) and value <= HUGE


def gather_masks(model: GraphModule, keep: Callable[[Node], bool] = lambda node: False) -> None:
    """Write every way to mask with a number below ``HUGE`` as ``masked_fill``, but for nodes to ``keep``. In place."""
    for node in list(model.graph.nodes):
        spec = find(node.target) if node.op == "call_function" else None
        if spec is None or spec not in _FORMS or keep(node) or not is_float(node):
            continue
        args, kwargs = spec.canonical(op_name(node.target), *arguments(node))
        made = _FORMS[spec](AtenBuilder(model, node, None), node, *args, **kwargs)
        if made is not None:
            read = node.all_input_nodes
            node.replace_all_uses_with(made)
            model.graph.erase_node(node)
            for mask in read:
                if not mask.users and is_mask_fill(mask):  # what it masked is masked later
                    model.graph.erase_node(mask)


def _constant(s: AtenBuilder, arg: Any) -> torch.Tensor | None:
    """A constant tensor that is no parameter."""
    value = tensor_of(s.model, arg) if isinstance(arg, Node) else None
    return None if isinstance(value, torch.nn.Parameter) else value


def _number(s: AtenBuilder, arg: Any) -> float | None:
    """The one number that ``arg`` is, if it is below ``HUGE``."""
    constant = _constant(s, arg)
    value = constant.item() if constant is not None and constant.numel() == 1 else arg
    return float(value) if isinstance(value, (int, float)) and value <= HUGE else None


def _masked(s: AtenBuilder, x: Node, mask: Node) -> Node:
    made: Node = s(aten.masked_fill.Scalar, x, mask, MASKED)
    return made


def _fill(s: AtenBuilder, node: Node, x: Any, mask: Any, value: Any) -> Node | None:
    return None if _number(s, value) is None or value == MASKED else _masked(s, x, mask)


def _where(s: AtenBuilder, node: Node, mask: Any, x: Any, y: Any) -> Node | None:
    if _number(s, x) is not None and _as_large(y, node):
        return _masked(s, y, mask)
    if _number(s, y) is not None and _as_large(x, node):
        return _masked(s, x, _inverted(s, mask))
    return None


def _add(s: AtenBuilder, node: Node, x: Any, y: Any, alpha: Any = 1) -> Node | None:
    if alpha != 1:
        return None
    if (later := _later(s, node, x, y)) is not None:
        return later
    for scores, other in ((x, y), (y, x)):
        mask = _constant(s, other)
        if mask is None or not mask.is_floating_point() or mask.numel() == 1 or not _as_large(scores, node):
            continue
        masked = mask <= HUGE
        rest = mask.masked_fill(masked, 0.0)
        if not masked.any() or mask[masked].max() > -_APART * max(1.0, float(rest.abs().max())):
            continue
        if rest.any():
            scores = s(aten.add.Tensor, scores, s.constant(rest))
        return _masked(s, scores, s.constant(masked))
    return None


def _later(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    """``node`` of what was masked before, and the mask behind it; no mask where both operands are masked, or neither."""
    for scores, other in ((x, y), (y, x)):
        if _is_ours(scores) and not _is_ours(other) and _as_large(scores, node) and len(scores.users) == 1:
            unmasked, mask = cast(tuple[Node, Node], scores.args[:2])
            args = tuple(unmasked if arg is scores else arg for arg in node.args)
            return _masked(s, s(node.target, *args, **node.kwargs), mask)
    return None


def _scaled(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    """A product or quotient by a positive number: what is masked stays far below all else."""
    factor = next((number for arg in (y, x) if (number := s.number(arg)) is not None), None)
    return _later(s, node, x, y) if factor is not None and factor > 0 else None


def _quotient(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    return _scaled(s, node, x, y) if _is_ours(x) else None


def _bounded(s: AtenBuilder, node: Node, x: Any, y: Any) -> Any:
    """The greater of masked scores and a number to mask with: the scores."""
    for scores, other in ((x, y), (y, x)):
        if _number(s, other) is not None and _is_ours(scores) and _as_large(scores, node):
            return scores
    return None


def _clamped(s: AtenBuilder, node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    return _bounded(s, node, x, low) if high is None else None


def _joined(s: AtenBuilder, node: Node, tensors: list[Any], dim: int = 0) -> Node | None:
    """Scores of which some are masked, joined: the mask is joined with places that are not."""
    if not any(_is_ours(part) and len(part.users) == 1 for part in tensors):
        return None
    masks = [_mask_of(s, part) for part in tensors]
    unmasked = [part.args[0] if _is_ours(part) else part for part in tensors]
    constants = [_constant(s, mask) for mask in masks]
    known = [mask for mask in constants if mask is not None]
    mask = s.constant(torch.cat(known, dim)) if len(known) == len(masks) else s(aten.cat.default, masks, dim)
    return _masked(s, s(node.target, unmasked, dim), mask)


def _mask_of(s: AtenBuilder, scores: Node) -> Node:
    """Where ``scores`` are masked, bool of their shape."""
    shape = shape_of(scores)
    if not _is_ours(scores):
        return s.constant(torch.zeros(shape, dtype=torch.bool))
    mask = cast(Node, scores.args[1])
    constant = _constant(s, mask)
    made: Node = s(aten.expand.default, mask, list(shape)) if constant is None else s.constant(constant.expand(shape))
    return made


def _is_ours(arg: Any) -> bool:
    return isinstance(arg, Node) and is_mask_fill(arg) and bool(arg.args[2] == MASKED)


def _as_large(arg: Any, node: Node) -> bool:
    return isinstance(arg, Node) and arg.meta["val"].shape == node.meta["val"].shape


def _inverted(s: AtenBuilder, mask: Any) -> Node:
    constant = _constant(s, mask)
    made: Node = s.constant(operator.invert(constant)) if constant is not None else s(aten.logical_not.default, mask)
    return made


_FORMS: dict[Any, Callable[..., Any]] = {
    masked_fill: _fill, where: _where, add: _add, mul: _scaled, div: _quotient, maximum: _bounded, clamp: _clamped,
    cat: _joined,
}  # fmt: skip
