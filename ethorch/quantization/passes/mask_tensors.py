"""Detect tensors added to scores as masks.

A mask is the result of ``where`` or ``masked_fill``, or the product of a masking number and a tensor of zeros and ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.fx import Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import arguments, is_float, op_name, tensor_of
from ethorch.lower.ops.arithmetic import mul, sub
from ethorch.lower.ops.attention import MASKED
from ethorch.lower.ops.cast import to
from ethorch.lower.ops.extremes import argmax
from ethorch.lower.ops.gather import embedding, gather, index, index_select
from ethorch.lower.ops.joining import expand
from ethorch.lower.ops.selection import masked_fill
from ethorch.lower.ops.shape import identity, permute, view
from ethorch.lower.ops.slicing import flip, roll, select, slice_
from ethorch.lower.ops.softmax import log_softmax, logsumexp, softmax
from ethorch.lower.ops.spec import OpSpec, find
from ethorch.lower.ops.unary import exp, rsub
from ethorch.support import trees

aten = torch.ops.aten

HUGE = -1e4  #: largest masking number of values that only softmax or argmax reads. In all others, only numbers <= ``MASKED`` mask.
SUNK = HUGE / 2  #: upper limit of masked values after the addition of scores
APART = 100.0  #: minimum ratio of the magnitudes of masking numbers to all other numbers
#: Operators that only move elements.
MOVERS = (view, permute, expand, slice_, select, flip, roll)
#: Operators that select elements of their first operand.
PICKERS = (index, index_select, gather, embedding)
#: Operators that return about 0 for masked scores.
SOFTMAX = (softmax, log_softmax, exp)
_SUMS = (softmax, log_softmax, logsumexp)
#: Operators whose result for values <= ``HUGE`` does not depend on the exact value.
_READERS = (*_SUMS, exp, argmax)

#: A bool node or constant.
Truth = Node | torch.Tensor


@dataclass(frozen=True)
class Mask:
    """A mask, represented by two tensors that broadcast to the shape of the mask.

    Attributes:
        masked: Bool, True for masked elements.
        rest: Constant float32, the values of unmasked elements.
    """

    masked: Truth
    rest: torch.Tensor

    @property
    def masks(self) -> bool:
        """True unless all elements are known to be unmasked."""
        return isinstance(self.masked, Node) or bool(self.masked.any())


def is_mask_fill(node: Node) -> bool:
    if find(node.target) is not masked_fill:
        return False
    value = node.args[2]
    return isinstance(value, (int, float)) and value <= MASKED


def is_unified(arg: Any) -> bool:
    """Return True if the argument is a ``masked_fill`` with ``MASKED``, the form of all masks."""
    return isinstance(arg, Node) and is_mask_fill(arg) and bool(arg.args[2] == MASKED)


def mask_scores(s: AtenBuilder, x: Node, mask: Truth) -> Node:
    """Set elements of ``x`` to ``MASKED`` where ``mask`` is True. Masked elements remain masked."""
    if is_unified(x):
        x, before = cast(tuple[Node, Node], x.args[:2])
        mask = unite(s, truth_of(s, before), mask)
    scores: Node = s(aten.masked_fill.Scalar, x, as_node(s, mask), MASKED)
    return scores


def constant_of(s: AtenBuilder, arg: Any) -> torch.Tensor | None:
    """Return the value of a constant that is not a parameter, or None."""
    value = tensor_of(s.model, arg) if isinstance(arg, Node) else None
    return None if isinstance(value, torch.nn.Parameter) else value


def huge(s: AtenBuilder, arg: Any) -> float | None:
    """Return a number, or the maximum of a constant tensor, if it masks in ``s.node``, or None."""
    constant = constant_of(s, arg)
    value = constant.max().item() if constant is not None and constant.numel() else arg
    return float(value) if isinstance(value, (int, float)) and _masks(s, value) else None


def _masks(s: AtenBuilder, value: float) -> bool:
    return value <= HUGE and (value <= MASKED or ignores_magnitudes(s.node))


def mask_of(s: AtenBuilder, arg: Any) -> Mask | None:
    """Convert a number, a constant or a masked constant to a Mask. Return None if masking values are not far below other values."""
    if isinstance(arg, (int, float)):
        value = torch.tensor(float(arg))
    elif is_unified(arg):
        base, where = cast(tuple[Node, Node], arg.args[:2])
        rest = constant_of(s, base)
        return None if rest is None else Mask(truth_of(s, where), rest)
    else:
        constant = constant_of(s, arg)
        if constant is None or not constant.is_floating_point():
            return None
        value = constant.float()
    hidden = value <= HUGE
    if hidden.any() and not (_masks(s, float(value[hidden].max())) and is_mask(value)):
        return None
    return Mask(hidden, value.masked_fill(hidden, 0.0))


def is_mask(values: torch.Tensor, below: float = HUGE) -> bool:
    """Return True if values <= ``below`` exist and are far below all other values."""
    hidden = values <= below
    if not hidden.any():
        return False
    rest = values.masked_fill(hidden, 0.0)
    return float(values[hidden].max()) <= -APART * max(1.0, float(rest.abs().max()))


def select_mask(s: AtenBuilder, node: Node, condition: Node, x: Any, y: Any) -> Node | None:
    """Convert ``where(condition, x, y)`` of constants to a mask, or return None if neither ``x`` nor ``y`` has masking values."""
    first, second = mask_of(s, x), mask_of(s, y)
    if first is None or second is None or not (first.masks or second.masks):
        return None
    truth = truth_of(s, condition)
    hidden = unite(s, intersect(s, truth, first.masked), intersect(s, invert(s, truth), second.masked))
    if torch.equal(*torch.broadcast_tensors(first.rest, second.rest)):
        return emit_mask(s, node, Mask(hidden, first.rest))
    rest = s(aten.where.self, as_node(s, truth), s.constant(first.rest), s.constant(second.rest))
    return mask_scores(s, rest, hidden)


def product(s: AtenBuilder, node: Node, x: Any, y: Any) -> Node | None:
    """Convert the product of a masking number and a tensor of zeros and ones to a mask. Return None for other products.

    If only a softmax reads the product and the number is at most -1e9, the tensor is assumed to contain only zeros and ones.
    """
    for factor, number in ((x, y), (y, x)):
        value = s.number(number)
        if value is not None and _masks(s, value) and isinstance(factor, Node):
            softens = only_softmax_reads(node)
            hidden = _is_one(s, factor, softens=softens)
            if hidden is None and softens and value <= MASKED:
                hidden = s(aten.gt.Scalar, factor, 0.5)
            if hidden is not None:
                return emit_mask(s, node, Mask(hidden, torch.zeros(())))
    return None


def move_mask(s: AtenBuilder, node: Node) -> Node | None:
    """Apply the data movement of ``node`` to a mask's bool tensor, or return None if it is not supported.

    If ``node`` moves masked scores, the mask must have the full shape of the scores.
    """
    source = node.args[0] if node.args else None
    if not is_unified(source):
        return None
    assert isinstance(source, Node)
    spec, shape = find(node.target), shape_of(source)
    if spec is identity:
        return source
    mask = mask_of(s, source) if spec in MOVERS else None
    if mask is not None:
        rest = mask.rest if mask.rest.numel() == 1 else _move(s, node, mask.rest.expand(shape))
        assert isinstance(rest, torch.Tensor)
        if spec is expand:  # the operator that adds the mask broadcasts the bool tensor
            return emit_mask(s, node, Mask(mask.masked, rest))
        return emit_mask(s, node, Mask(_move(s, node, expand_truth(s, mask.masked, shape)), rest))
    base, where = cast(tuple[Node, Node], source.args[:2])
    if spec not in MOVERS or isinstance(truth_of(s, where), torch.Tensor) or shape_of(where) != shape:
        return None
    return mask_scores(s, cast(Node, _move(s, node, base)), _move(s, node, where))


def gather_mask(s: AtenBuilder, node: Node) -> Node | None:
    """Gather the bool tensor and the values of a constant mask separately, or return None if ``node`` does not gather a mask."""
    mask = mask_of(s, node.args[0]) if find(node.target) in PICKERS else None
    if mask is None or not mask.masks:
        return None
    hidden = s(node.target, as_node(s, mask.masked), *node.args[1:], **node.kwargs)
    if mask.rest.unique().numel() == 1:
        return emit_mask(s, node, Mask(hidden, mask.rest.flatten()[0]))
    return mask_scores(s, s(node.target, s.constant(mask.rest), *node.args[1:], **node.kwargs), hidden)


def emit_mask(s: AtenBuilder, node: Node, mask: Mask) -> Node:
    return mask_scores(s, s.constant(mask.rest.expand(shape_of(node))), mask.masked)


def _move(s: AtenBuilder, node: Node, value: Truth) -> Truth:
    rest = node.args[1:]
    if isinstance(value, torch.Tensor):
        return cast(torch.Tensor, cast(Any, node.target)(value, *rest, **node.kwargs))
    return s(node.target, value, *rest, **node.kwargs)


def _is_one(s: AtenBuilder, x: Node, *, softens: bool) -> Truth | None:
    """Convert ``x``, a tensor of zeros and ones, to bool. Return None if it may contain other values."""
    # ``x`` may be a cast of a bool tensor, also if moved, subtracted from 1 or multiplied. If a softmax reads the product, ``x``
    # may also be an integer input. For float inputs, calibration decides (``mask_inputs``).
    spec = find(x.target) if x.op == "call_function" else None
    if x.meta["val"].dtype == torch.bool:
        return truth_of(s, x)
    if (operand := _one_minus(s, x)) is not None:
        inner = _is_one(s, operand, softens=softens)
        return None if inner is None else invert(s, inner)
    if spec is mul:
        factors = [_is_one(s, arg, softens=softens) if isinstance(arg, Node) else None for arg in x.args[:2]]
        return None if factors[0] is None or factors[1] is None else intersect(s, factors[0], factors[1])
    source = x.args[0] if spec is to or spec is identity or spec in MOVERS else None
    if isinstance(source, Node):
        inner = _is_one(s, source, softens=softens)
        if inner is None or spec not in MOVERS:
            return inner
        return _move(s, x, expand_truth(s, inner, shape_of(source)))
    if x.op != "placeholder" or is_float(x) or not softens:
        return None
    return s(aten.gt.Scalar, x, 0)


def _one_minus(s: AtenBuilder, node: Node) -> Node | None:
    spec = find(node.target) if node.op == "call_function" else None
    if spec is sub:
        (minuend, operand, *_), settings = spec.canonical(op_name(node.target), *arguments(node))
        alpha = settings.get("alpha", 1)
    elif spec is rsub:
        operand, minuend, alpha = arguments(node)[0]
    else:
        return None
    return operand if s.number(minuend) == 1 and alpha == 1 and isinstance(operand, Node) else None


def only_softmax_reads(node: Node) -> bool:
    """Return True if only operators like softmax read ``node``, directly or after operators that move or scale values."""
    return _is_only_read_by(node, lambda user, spec: spec in _SUMS)


def ignores_magnitudes(node: Node) -> bool:
    """Return True if only softmax, argmax and functions that saturate read ``node``, also after such operators."""
    return _is_only_read_by(node, lambda user, spec: spec in _READERS or (spec.pointwise and _saturates(user)))


def _is_only_read_by(node: Node, is_reader: Callable[[Node, OpSpec], bool]) -> bool:
    waiting, seen = [node], {node}
    while waiting:
        for user in waiting.pop().users:
            spec = find(user.target) if user.op == "call_function" else None
            if user in seen or (spec is not None and is_reader(user, spec)):
                continue
            rule = None if spec is None else spec.rule(user)
            carries = spec is not None and rule is not None and (spec.pointwise or rule.output == "same" or rule.joins)
            if not (is_float(user) and (carries or user.target is operator.getitem)):
                return False
            seen.add(user)
            waiting.append(user)
    return True


def _saturates(node: Node) -> bool:
    # Returns True for a function of one tensor, such as sigmoid or gelu, that is nearly constant below -8.
    if [arg for arg in trees.leaves((node.args, node.kwargs)) if isinstance(arg, Node)] != [node.args[0]]:
        return False
    *results, masked = node.target(torch.tensor([-8.0, 0.0, 8.0, HUGE]), *node.args[1:], **node.kwargs).tolist()  # type: ignore[operator]
    return bool(abs(results[0] - masked) <= 1e-3 * (max(results) - min(results)))


# The following functions fold constants.


def truth_of(s: AtenBuilder, node: Node) -> Truth:
    constant = constant_of(s, node)
    return node if constant is None else constant


def as_node(s: AtenBuilder, value: Truth) -> Node:
    return value if isinstance(value, Node) else s.constant(value)


def invert(s: AtenBuilder, value: Truth) -> Truth:
    if isinstance(value, torch.Tensor):
        return ~value
    return s(aten.logical_not.default, value)


def intersect(s: AtenBuilder, x: Truth, y: Truth) -> Truth:
    for first, second in ((x, y), (y, x)):
        if isinstance(first, torch.Tensor):
            if isinstance(second, torch.Tensor):
                return first & second
            if first.all() or not first.any():
                return second if first.all() else first
    return s(aten.logical_and.default, as_node(s, x), as_node(s, y))


def unite(s: AtenBuilder, x: Truth, y: Truth) -> Truth:
    for first, second in ((x, y), (y, x)):
        if isinstance(first, torch.Tensor):
            if isinstance(second, torch.Tensor):
                return first | second
            if first.all() or not first.any():
                return first if first.all() else second
    return s(aten.logical_or.default, as_node(s, x), as_node(s, y))


def expand_truth(s: AtenBuilder, value: Truth, shape: Sequence[int]) -> Truth:
    """Expand a bool tensor to the shape of the masked tensor."""
    if isinstance(value, torch.Tensor):
        return value.expand(tuple(shape))
    return value if shape_of(value) == tuple(shape) else s(aten.expand.default, value, list(shape))
