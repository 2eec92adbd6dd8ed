"""``torch.topk`` of a few: the greatest of a row, then the greatest of what is left, each by ``amax`` and ``argmax``.

What is read or written at their places along their own dim, as a router of a mixture of experts does, needs no index then:
the mark of a place, which is one in it and zero beside it, is multiplied or chooses.

Of equal values the first counts here. PyTorch does not promise which one topk takes, and quantized values are equal more often:
two experts of nearly the same score may change places.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import arguments, op_name
from ethorch.lower.ops.attention import MASKED
from ethorch.quantization.passes.context import PassContext

aten = torch.ops.aten

_MOST = 8  #: of the greatest; more are left to torch.topk's kernel on the CPU
_AT_PLACES = frozenset({"aten.gather.default", "aten.scatter.value", "aten.scatter.src"})


def lower_top_k(graph_module: GraphModule, context: PassContext) -> None:
    """Replace each ``torch.topk`` of a few whose places are read along their own dim alone, but for excluded nodes. In place.

    Where there is one, those whose places nobody reads are replaced too: they find the groups that experts are chosen from.
    """
    few = [node for node in graph_module.graph.nodes if is_few(node) and not context.is_excluded(node)]
    readers = {node: [user for places in results(node, 1) for user in places.users] for node in few}
    drawn = [node for node in few if all(_is_along(user, node) and not context.is_excluded(user) for user in readers[node])]
    if any(readers[node] for node in drawn):
        for node in drawn:
            draw_top_k(AtenBuilder(graph_module, node), node)


def is_few(node: Node) -> bool:
    """Is it a topk of the greatest few along the last dim, of floats?"""
    if op_name(node.target) != "aten.topk.default":
        return False
    x, k, dim, largest, _ = arguments(node)[0]
    return 0 < k <= _MOST and dim in (-1, len(shape_of(x)) - 1) and largest and x.meta["val"].is_floating_point()


def results(node: Node, index: int) -> list[Node]:
    """Who takes the result ``index`` of an operator with several."""
    return [user for user in node.users if user.target is operator.getitem and user.args[1] == index]


def draw_top_k(s: AtenBuilder, topk: Node) -> None:
    """Values and places of the greatest, and what reads or writes at these places."""
    row, k = topk.args[0], int(topk.args[1])  # type: ignore[arg-type]
    assert isinstance(row, Node)
    numbers = s.constant(torch.arange(shape_of(row)[-1]))
    values, places, marks = [], [], []
    left = row
    for last in (i == k - 1 for i in range(k)):
        values.append(s(aten.amax.default, left, [-1], True))
        places.append(s(aten.argmax.default, left, -1, True))
        marks.append(s(aten.eq.Tensor, numbers, places[-1]))
        if not last:
            left = s(aten.masked_fill.Scalar, left, marks[-1], MASKED)
    greatest = _joined(s, values)
    for user in [user for found in results(topk, 1) for user in found.users if _is_along(user, topk)]:
        user.replace_all_uses_with(greatest if _reads(user, row) else _at_marks(AtenBuilder(s.model, user), user, marks))
    for index, made in enumerate((greatest, _joined(s, places))):
        for node in results(topk, index):
            node.replace_all_uses_with(made)


def _joined(s: AtenBuilder, parts: list[Node]) -> Node:
    return s(aten.cat.default, parts, -1) if len(parts) > 1 else parts[0]


def _reads(node: Node, row: Node) -> bool:
    """Does it read, at the places of the greatest of ``row``, just these?"""
    return op_name(node.target) == "aten.gather.default" and node.args[0] is row


def _is_along(node: Node, topk: Node) -> bool:
    """Does ``node`` read or write floats of the rows' shape at the places that ``topk`` gives, along the last dim?"""
    if op_name(node.target) not in _AT_PLACES:
        return False
    x, dim, places, *rest = node.args
    assert isinstance(x, Node) and isinstance(places, Node)
    shape = shape_of(topk.args[0])  # type: ignore[arg-type]
    if places not in results(topk, 1) or shape_of(x) != shape or not x.meta["val"].is_floating_point():
        return False
    written = rest[0] if rest and isinstance(rest[0], Node) else None
    return dim in (-1, len(shape) - 1) and (written is None or shape_of(written) == shape_of(places))


def _at_marks(s: AtenBuilder, node: Node, marks: list[Node]) -> Node:
    """What ``node`` reads or writes at places, by products with, and choices of, the marks of these."""
    x, _, _, *rest = node.args
    assert isinstance(x, Node)
    if op_name(node.target) == "aten.gather.default":
        chosen = (s(aten.mul.Tensor, x, s(aten.to.dtype, mark, torch.float32)) for mark in marks)
        return _joined(s, [s(aten.sum.dim_IntList, each, [-1], True) for each in chosen])
    if not isinstance(rest[0], Node):
        for mark in marks:
            x = s(aten.masked_fill.Scalar, x, mark, rest[0])
        return x
    fill = _number_of(x)
    if len(marks) == 1 and fill is not None:  # as a mask's number, it says nothing of the range of the others
        wide = s(aten.expand.default, rest[0], list(shape_of(x)))
        return s(aten.masked_fill.Scalar, wide, s(aten.logical_not.default, marks[0]), fill)
    for number, mark in enumerate(marks):
        x = s(aten.where.self, mark, s(aten.slice.Tensor, rest[0], -1, number, number + 1), x)
    return x


def _number_of(x: Node) -> float | None:
    """The number that a tensor is full of; None where it is not made so."""
    name, args = op_name(x.target), x.args
    if name in ("aten.full_like.default", "aten.full.default"):
        return float(args[1]) if isinstance(args[1], (int, float)) else None
    return 0.0 if name in ("aten.zeros_like.default", "aten.zeros.default") else None
