"""Masks that are tensors of their own, to be added to scores: where they mask, and which numbers they add elsewhere.

A mask that the program computes is a few operators on truth values: ``where``, ``masked_fill``, a product of 0 or 1 and a
number to mask with, all of it moved, expanded and joined. ``mask_of`` reads such a value as ``Mask``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.fx import Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import arguments, is_float, op_name, tensor_of
from ethorch.lower.ops.arithmetic import mul, sub
from ethorch.lower.ops.attention import MASKED
from ethorch.lower.ops.cast import to
from ethorch.lower.ops.gather import embedding, gather, index, index_select
from ethorch.lower.ops.joining import expand
from ethorch.lower.ops.selection import masked_fill
from ethorch.lower.ops.shape import identity, permute, view
from ethorch.lower.ops.slicing import flip, roll, select, slice_
from ethorch.lower.ops.softmax import log_softmax, softmax
from ethorch.lower.ops.spec import find
from ethorch.lower.ops.unary import exp, rsub

aten = torch.ops.aten

HUGE = -1e4  #: a number to mask with, not to compute with
SUNK = HUGE / 2  #: what is masked stays below it once scores were added
_BEYOND = -1e9  #: times anything but 0 it leaves nothing of a score
_APART = 100.0  #: a mask's numbers are at least that many times as large as all else that is added
#: What changes no element, and where masks are looked for behind it.
MOVERS = (view, permute, expand, slice_, select, flip, roll)
#: What picks elements of its first operand, and changes none.
PICKERS = (index, index_select, gather, embedding)
#: What makes about 0 of masked scores.
SOFTMAX = (softmax, log_softmax, exp)

#: Truth values: of a node, or constant.
Truth = Node | torch.Tensor


@dataclass(frozen=True)
class Mask:
    """A tensor that masks.

    Attributes:
        masked: where it does, bool; broadcasts to the tensor's shape.
        rest: the numbers elsewhere, constant float32; broadcasts to the tensor's shape.
    """

    masked: Truth
    rest: torch.Tensor

    @property
    def masks(self) -> bool:
        """Does it mask anything, as far as that is known?"""
        return isinstance(self.masked, Node) or bool(self.masked.any())


def is_mask_fill(node: Node) -> bool:
    """Does the node mask scores?"""
    if find(node.target) is not masked_fill:
        return False
    value = node.args[2]
    return isinstance(value, (int, float)) and value <= HUGE


def is_ours(arg: Any) -> bool:
    """Is it ``masked_fill`` with ``MASKED``, the one form that masks are brought into?"""
    return isinstance(arg, Node) and is_mask_fill(arg) and bool(arg.args[2] == MASKED)


def masked(s: AtenBuilder, x: Node, mask: Truth) -> Node:
    """``x`` with ``MASKED`` where the mask is set, besides where it has that already."""
    if is_ours(x):
        x, before = cast(tuple[Node, Node], x.args[:2])
        mask = either(s, truth_of(s, before), mask)
    made: Node = s(aten.masked_fill.Scalar, x, as_node(s, mask), MASKED)
    return made


def constant_of(s: AtenBuilder, arg: Any) -> torch.Tensor | None:
    """A constant tensor that is no parameter."""
    value = tensor_of(s.model, arg) if isinstance(arg, Node) else None
    return None if isinstance(value, torch.nn.Parameter) else value


def huge(s: AtenBuilder, arg: Any) -> float | None:
    """The one number that ``arg`` is, or the largest of a constant tensor, if it is below ``HUGE``."""
    constant = constant_of(s, arg)
    value = constant.max().item() if constant is not None and constant.numel() else arg
    return float(value) if isinstance(value, (int, float)) and value <= HUGE else None


def mask_of(s: AtenBuilder, arg: Any) -> Mask | None:
    """A number, a constant or a masked constant as Mask; None for all else, and for constants whose numbers are not apart."""
    if isinstance(arg, (int, float)):
        value = torch.tensor(float(arg))
    elif is_ours(arg):
        base, where = cast(tuple[Node, Node], arg.args[:2])
        rest = constant_of(s, base)
        return None if rest is None else Mask(truth_of(s, where), rest)
    else:
        found = constant_of(s, arg)
        if found is None or not found.is_floating_point():
            return None
        value = found.float()
    hidden = value <= HUGE
    return Mask(hidden, value.masked_fill(hidden, 0.0)) if is_mask(value) or not hidden.any() else None


def is_mask(values: torch.Tensor, below: float = HUGE) -> bool:
    """Are there numbers below ``below``, and do they lie apart from all others?"""
    hidden = values <= below
    if not hidden.any():
        return False
    rest = values.masked_fill(hidden, 0.0)
    return float(values[hidden].max()) <= -_APART * max(1.0, float(rest.abs().max()))


def chosen(s: AtenBuilder, node: Node, condition: Node, x: Any, y: Any) -> Node | None:
    """``where(condition, x, y)`` of two numbers or constants of which one masks, at least in places."""
    first, second = mask_of(s, x), mask_of(s, y)
    if first is None or second is None or not (first.masks or second.masks):
        return None
    there = truth_of(s, condition)
    hidden = either(s, both(s, there, first.masked), both(s, inverted(s, there), second.masked))
    if torch.equal(*torch.broadcast_tensors(first.rest, second.rest)):
        return drawn(s, node, Mask(hidden, first.rest))
    rest = s(aten.where.self, as_node(s, there), s.constant(first.rest), s.constant(second.rest))
    return masked(s, rest, hidden)


def product(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    """The product of a tensor of 0 and 1 and a number to mask with.

    What a softmax reads a billion times is taken for such a tensor, whatever it is: nothing but 0 leaves a score there.
    """
    for factor, other in ((x, y), (y, x)):
        value = s.number(other)
        if value is not None and value <= HUGE and isinstance(factor, Node):
            softens = _reaches_softmax(node)
            hidden = _is_one(s, factor, softens=softens)
            if hidden is None and softens and value <= _BEYOND:
                hidden = s(aten.gt.Scalar, factor, 0.5)
            if hidden is not None:
                return drawn(s, node, Mask(hidden, torch.zeros(())))
    return None


def subtrahend(s: AtenBuilder, arg: Any) -> Truth | None:
    """Where ``arg``, the product of a tensor of 0 and 1 and a number as large as masks are, is not 0."""
    if not isinstance(arg, Node) or find(arg.target) is not mul:
        return None
    x, y = arg.args[:2]
    for factor, other in ((x, y), (y, x)):
        value = s.number(other)
        if value is not None and value >= -HUGE and isinstance(factor, Node):
            return _is_one(s, factor, softens=_reaches_softmax(arg))
    return None


def moved(s: AtenBuilder, node: Node) -> Node | None:
    """A mask somewhere else or under another shape. It is moved before it masks, so that scores meet it where they are.

    Scores that are masked stay where they are, unless the program makes a mask as large as they are.
    """
    source = node.args[0] if node.args else None
    if not is_ours(source):
        return None
    assert isinstance(source, Node)
    spec, shape = find(node.target), shape_of(source)
    if spec is identity:
        return source
    mask = mask_of(s, source) if spec in MOVERS else None
    if mask is not None:
        rest = mask.rest if mask.rest.numel() == 1 else _move(s, node, mask.rest.expand(shape))
        assert isinstance(rest, torch.Tensor)
        if spec is expand:  # whatever it is added to does that again
            return drawn(s, node, Mask(mask.masked, rest))
        return drawn(s, node, Mask(_move(s, node, expanded(s, mask.masked, shape)), rest))
    base, where = cast(tuple[Node, Node], source.args[:2])
    if spec not in MOVERS or isinstance(truth_of(s, where), torch.Tensor) or shape_of(where) != shape:
        return None
    return masked(s, cast(Node, _move(s, node, base)), _move(s, node, where))


def picked(s: AtenBuilder, node: Node) -> Node | None:
    """Pick truth values and numbers apart, where the program picks rows of a constant mask, as by a position."""
    mask = mask_of(s, node.args[0]) if find(node.target) in PICKERS else None
    if mask is None or not mask.masks:
        return None
    hidden = s(node.target, as_node(s, mask.masked), *node.args[1:], **node.kwargs)
    if mask.rest.unique().numel() == 1:
        return drawn(s, node, Mask(hidden, mask.rest.flatten()[0]))
    return masked(s, s(node.target, s.constant(mask.rest), *node.args[1:], **node.kwargs), hidden)


def drawn(s: AtenBuilder, node: Node, mask: Mask) -> Node:
    """The mask as a masked constant that replaces ``node``."""
    return masked(s, s.constant(mask.rest.expand(shape_of(node))), mask.masked)


def _move(s: AtenBuilder, node: Node, value: Truth) -> Truth:
    """What ``node`` makes of another tensor of the shape that it reads."""
    rest = node.args[1:]
    if isinstance(value, torch.Tensor):
        return cast(torch.Tensor, cast(Any, node.target)(value, *rest, **node.kwargs))
    return s(node.target, value, *rest, **node.kwargs)


def _is_one(s: AtenBuilder, x: Node, *, softens: bool) -> Truth | None:
    """Where ``x`` is 1, for one that is 0 or 1 everywhere.

    A truth value that was cast is such a number, moved, subtracted from 1 or a factor of another one too. An input of the
    program may be one: it is taken for it if the product goes into a softmax (``softens``), which would make the same of it.
    """
    spec = find(x.target) if x.op == "call_function" else None
    if x.meta["val"].dtype == torch.bool:
        return truth_of(s, x)
    if (other := _one_minus(s, x)) is not None:
        inner = _is_one(s, other, softens=softens)
        return None if inner is None else inverted(s, inner)
    if spec is mul:
        factors = [_is_one(s, arg, softens=softens) if isinstance(arg, Node) else None for arg in x.args[:2]]
        return None if factors[0] is None or factors[1] is None else both(s, factors[0], factors[1])
    source = x.args[0] if spec is to or spec is identity or spec in MOVERS else None
    if isinstance(source, Node):
        inner = _is_one(s, source, softens=softens)
        if inner is None or spec not in MOVERS:
            return inner
        return _move(s, x, expanded(s, inner, shape_of(source)))
    if x.op != "placeholder" or not softens:
        return None
    return s(aten.gt.Scalar, x, 0.5 if is_float(x) else 0)


def _one_minus(s: AtenBuilder, node: Node) -> Node | None:
    """What the node subtracts from 1; None for all else."""
    spec = find(node.target) if node.op == "call_function" else None
    if spec is sub:
        (one, other, *_), settings = spec.canonical(op_name(node.target), *arguments(node))
        alpha = settings.get("alpha", 1)
    elif spec is rsub:
        other, one, alpha = arguments(node)[0]
    else:
        return None
    return other if s.number(one) == 1 and alpha == 1 and isinstance(other, Node) else None


def _reaches_softmax(node: Node) -> bool:
    """Is the result read by a softmax, behind what works on single elements or moves them?"""
    waiting, seen = [node], {node}
    while waiting:
        for user in waiting.pop().users:
            spec = find(user.target) if user.op == "call_function" else None
            if spec in SOFTMAX:
                return True
            if spec is not None and user not in seen and (spec.pointwise or spec in MOVERS):
                seen.add(user)
                waiting.append(user)
    return False


# Truth values, computed at once where they are constant.


def truth_of(s: AtenBuilder, node: Node) -> Truth:
    """The constant that ``node`` is, else the node."""
    constant = constant_of(s, node)
    return node if constant is None else constant


def as_node(s: AtenBuilder, value: Truth) -> Node:
    """Truth values as a node."""
    return value if isinstance(value, Node) else s.constant(value)


def inverted(s: AtenBuilder, value: Truth) -> Truth:
    """not value"""
    if isinstance(value, torch.Tensor):
        return ~value
    return s(aten.logical_not.default, value)


def both(s: AtenBuilder, x: Truth, y: Truth) -> Truth:
    """x and y"""
    for one, other in ((x, y), (y, x)):
        if isinstance(one, torch.Tensor):
            if isinstance(other, torch.Tensor):
                return one & other
            if one.all() or not one.any():
                return other if one.all() else one
    return s(aten.logical_and.default, as_node(s, x), as_node(s, y))


def either(s: AtenBuilder, x: Truth, y: Truth) -> Truth:
    """x or y"""
    for one, other in ((x, y), (y, x)):
        if isinstance(one, torch.Tensor):
            if isinstance(other, torch.Tensor):
                return one | other
            if one.all() or not one.any():
                return one if one.all() else other
    return s(aten.logical_or.default, as_node(s, x), as_node(s, y))


def expanded(s: AtenBuilder, value: Truth, shape: Sequence[int]) -> Truth:
    """Truth values in the shape of what they belong to."""
    if isinstance(value, torch.Tensor):
        return value.expand(tuple(shape))
    return value if shape_of(value) == tuple(shape) else s(aten.expand.default, value, list(shape))
