"""Convert large positive masks to negative masks, which are excluded from ranges."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import AtenBuilder
from ethorch.lower.fx.node import arguments, is_float, op_name
from ethorch.lower.ops.arithmetic import add, mul, neg, sub
from ethorch.lower.ops.attention import MASKED
from ethorch.lower.ops.division import div
from ethorch.lower.ops.extremes import amin, argmin
from ethorch.lower.ops.joining import cat
from ethorch.lower.ops.selection import masked_fill, where
from ethorch.lower.ops.shape import identity
from ethorch.lower.ops.spec import OpSpec, find
from ethorch.lower.ops.unary import rsub
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.mask_tensors import HUGE, MOVERS, constant_of, is_mask
from ethorch.quantization.passes.top_k import TOPK

aten = torch.ops.aten

_FORMS = (neg, amin, argmin, sub, rsub, mul, div)
#: Operators whose operands may be masks or masked, except operators that move elements.
_MASKED = (masked_fill, where, add, sub, mul, div, cat)


def negate_masks(graph_module: GraphModule, context: PassContext) -> None:
    """Move negations before masks, and replace minima of masked values with negated maxima.

    For example, ``softmax(-masked_fill(x, mask, 1e4))`` becomes ``softmax(masked_fill(-x, mask, -1e4))``. A minimum can return
    the masking number, so only numbers >= 1e9 mask its operand.
    """
    negation = _Negation(graph_module, context, -HUGE)
    minima = _Negation(graph_module, context, -MASKED)
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or context.is_excluded(node) or not node.args:
            continue
        if not isinstance(node.args[0], Node) or not is_float(node.args[0]):
            continue
        s = AtenBuilder(graph_module, node)
        if op_name(node.target) == TOPK:
            _replace_topk(minima, s, node)
        elif (replacement := _replace(negation, minima, s, node)) is not None:
            node.replace_all_uses_with(replacement)


def _replace(negation: _Negation, minima: _Negation, s: AtenBuilder, node: Node) -> Node | None:
    spec = find(node.target)
    if spec not in _FORMS:
        return None
    (x, *rest), options = spec.canonical(op_name(node.target), *arguments(node))
    if spec is neg and negation.is_raised(x):
        return cast(Node, negation.negate(s, x))
    if spec is argmin and negation.needs_opposite(x):
        return s(aten.argmax.default, negation.negate(s, x), *rest)
    if spec is amin and minima.needs_opposite(x):
        return s(aten.neg.default, s(aten.amax.default, minima.negate(s, x), *rest))
    if spec is sub and options.get("alpha", 1) == 1 and negation.is_raised(rest[0], single=False):
        return s(aten.add.Tensor, x, negation.negate(s, rest[0]))
    if spec is rsub and rest[1] == 1 and negation.is_raised(x, single=False):
        return s(aten.add.Tensor, negation.negate(s, x), s.constant(torch.tensor(float(rest[0]))))
    if spec in (mul, div) and (scaled := _find_factor(s, spec, x, *rest, **options)) is not None:
        scores, factor = scaled
        if factor < 0 and negation.is_raised(scores):
            return s(node.target, negation.negate(s, scores), s.constant(torch.tensor(-factor)))
    return None


def _find_factor(s: AtenBuilder, spec: OpSpec, x: Any, y: Any, **options: Any) -> tuple[Node, float] | None:
    # Returns the tensor and the number of a product, in any order, or a quotient.
    for scores, other in ((x, y), (y, x))[: 2 if spec is mul else 1]:
        number = s.number(other)
        if number is not None and isinstance(scores, Node) and not options:
            return scores, number
    return None


def _replace_topk(minima: _Negation, s: AtenBuilder, node: Node) -> None:
    x, k, dim, largest, is_sorted = arguments(node)[0]
    if largest or not minima.needs_opposite(x):
        return
    values, indices = s.results(aten.topk.default, minima.negate(s, x), k, dim, True, is_sorted)
    for item in [user for user in node.users if user.target is operator.getitem]:
        item.replace_all_uses_with(indices if item.args[1] == 1 else s(aten.neg.default, values))


@dataclass
class _Negation:
    # Negates tensors with masks >= ``least``. ``opposites`` contains the negated tensors.

    model: GraphModule
    context: PassContext
    least: float
    raised: dict[Node, bool] = field(default_factory=dict)
    opposites: dict[Node, Node] = field(default_factory=dict)

    def needs_opposite(self, x: Node) -> bool:
        # The number of a ``masked_fill`` >= 1e9 does not change the range of its result.
        is_free = find(x.target) is masked_fill and isinstance(x.args[2], (int, float)) and x.args[2] >= -MASKED
        return self.is_raised(x) and not is_free

    def is_raised(self, x: Any, *, single: bool = True) -> bool:
        # Returns True if ``x`` contains such a mask. Unless ``single`` is set, a mask has several elements.
        if isinstance(x, (int, float)):
            return single and x >= self.least
        if not isinstance(x, Node) or not isinstance(x.meta.get("val"), torch.Tensor) or not is_float(x):
            return False
        constant = constant_of(AtenBuilder(self.model, x), x)
        if constant is not None:
            return (single or constant.numel() > 1) and is_mask(-constant, -self.least)
        if x not in self.raised:
            self.raised[x] = x.op == "call_function" and not self.context.is_excluded(x) and self._contains_mask(x)
        return self.raised[x]

    def _contains_mask(self, x: Node) -> bool:
        spec = find(x.target)
        if spec is identity or spec in MOVERS:
            return self.is_raised(x.args[0])
        if spec is None or spec not in _MASKED:
            return False
        args, options = spec.canonical(op_name(x.target), *arguments(x))
        if spec is masked_fill:
            return self.is_raised(args[0]) or self.is_raised(args[2])
        if spec is where:
            return self.is_raised(args[1]) or self.is_raised(args[2])
        if spec in (add, sub):
            operands = args if spec is add else args[:1]
            return options.get("alpha", 1) == 1 and any(self.is_raised(arg, single=False) for arg in operands)
        if spec in (mul, div):
            scaled = _find_factor(AtenBuilder(self.model, x), spec, *args, **options)
            if scaled is None:
                return False
            scores, factor = scaled
            return factor > 0 and (self.is_raised(scores) or (spec is mul and factor >= self.least))
        return spec is cat and any(self.is_raised(part) for part in args[0])

    def negate(self, s: AtenBuilder, x: Any) -> Any:
        if isinstance(x, (int, float)):
            return -x
        if (constant := constant_of(s, x)) is not None:
            return s.constant(-constant)
        if not self.is_raised(x):
            return s(aten.neg.default, x)
        if x not in self.opposites:
            self.opposites[x] = self._move(AtenBuilder(self.model, x), x)
        return self.opposites[x]

    def _move(self, s: AtenBuilder, x: Node) -> Node:
        spec = find(x.target)
        if spec is None or spec not in _MASKED:
            return s(x.target, self.negate(s, x.args[0]), *x.args[1:], **x.kwargs)
        args, options = spec.canonical(op_name(x.target), *arguments(x))
        if spec is masked_fill:
            return s(x.target, self.negate(s, args[0]), args[1], self.negate(s, args[2]))
        if spec is where:
            return s(x.target, args[0], self.negate(s, args[1]), self.negate(s, args[2]))
        if spec in (add, sub):
            target = aten.add.Tensor if spec is add else aten.sub.Tensor
            return s(target, self.negate(s, args[0]), self.negate(s, args[1]))
        if spec is cat:
            return s(aten.cat.default, [self.negate(s, part) for part in args[0]], *args[1:], **options)
        scores, factor = cast(tuple[Node, float], _find_factor(s, spec, *args))
        if self.is_raised(scores):
            return s(x.target, self.negate(s, scores), s.constant(torch.tensor(factor)))
        return s(x.target, scores, s.constant(torch.tensor(-factor)))
