"""Masks of attention scores, in the one form that a quantized score survives.

User code masks with -inf, -1e9 or the least float, by ``masked_fill``, by ``where`` or by adding a mask. None of these is a
number to calibrate with: a range that holds it has no code left for the scores. They all become ``masked_fill`` with a value
of at most ``HUGE``, whose observer leaves room below the scores instead (``wire`` tells it), and which takes the lowest code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ethorch.ops.attention import MASKED
from ethorch.ops.spec import op_name
from ethorch.sketch import Sketch, attribute

aten = torch.ops.aten

HUGE = -1e4  #: a number to mask with, not to compute with
_APART = 100.0  #: a mask's numbers are at least that many times as large as all else that is added


def is_mask_fill(node: Node) -> bool:
    """Does the node mask scores?"""
    if op_name(node.target) != "aten.masked_fill.Scalar":
        return False
    value = node.args[2]
    return isinstance(value, (int, float)) and value <= HUGE


def gather_masks(model: GraphModule, keep: Callable[[Node], bool] = lambda node: False) -> None:
    """Write every way to mask with a number below ``HUGE`` as ``masked_fill``, but for nodes to ``keep``. In place."""
    for node in list(model.graph.nodes):
        rewrite = _FORMS.get(op_name(node.target)) if node.op == "call_function" else None
        value = node.meta.get("val")
        if rewrite is None or keep(node) or not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
            continue
        made = rewrite(Sketch(model, node, None), node)
        if made is not None:
            node.replace_all_uses_with(made)
            model.graph.erase_node(node)


def _constant(s: Sketch, arg: Any) -> torch.Tensor | None:
    value = attribute(s.model, arg) if isinstance(arg, Node) and arg.op == "get_attr" else None
    return value if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter) else None


def _number(s: Sketch, arg: Any) -> float | None:
    """The one number that ``arg`` is, if it is below ``HUGE``."""
    constant = _constant(s, arg)
    value = constant.item() if constant is not None and constant.numel() == 1 else arg
    return float(value) if isinstance(value, (int, float)) and value <= HUGE else None


def _fill(s: Sketch, node: Node) -> Node | None:
    x, mask, value = node.args
    number = _number(s, value)
    return None if number is None or value == MASKED else s(aten.masked_fill.Scalar, x, mask, MASKED)


def _where(s: Sketch, node: Node) -> Node | None:
    mask, x, y = node.args
    if _number(s, x) is not None and _as_large(y, node):
        return s(aten.masked_fill.Scalar, y, mask, MASKED)
    if _number(s, y) is not None and _as_large(x, node):
        return s(aten.masked_fill.Scalar, x, _inverted(s, mask), MASKED)
    return None


def _add(s: Sketch, node: Node) -> Node | None:
    if node.kwargs.get("alpha", 1) != 1:
        return None
    for x, other in (node.args, node.args[::-1]):
        mask = _constant(s, other)
        if mask is None or not mask.is_floating_point() or mask.numel() == 1 or not _as_large(x, node):
            continue
        masked = mask <= HUGE
        rest = mask.masked_fill(masked, 0.0)
        if not masked.any() or mask[masked].max() > -_APART * max(1.0, float(rest.abs().max())):
            continue
        if rest.any():
            x = s(aten.add.Tensor, x, s.constant(rest))
        return s(aten.masked_fill.Scalar, x, s.constant(masked), MASKED)
    return None


def _as_large(arg: Any, node: Node) -> bool:
    return isinstance(arg, Node) and arg.meta["val"].shape == node.meta["val"].shape


def _inverted(s: Sketch, mask: Any) -> Node:
    constant = _constant(s, mask)
    return s.constant(operator.invert(constant)) if constant is not None else s(aten.logical_not.default, mask)


_FORMS = {
    "aten.masked_fill.Scalar": _fill, "aten.masked_fill.Tensor": _fill, "aten.where.self": _where, "aten.where.ScalarSelf": _where,
    "aten.where.ScalarOther": _where, "aten.add.Tensor": _add,
}  # fmt: skip
