"""Replace ``torch.topk`` with repeated ``amax`` and ``argmax`` if k is at most 8.

Of equal values, the first is chosen. Quantization makes more values equal, so experts with similar scores may be swapped.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import arguments, op_name
from ethorch.lower.ops.attention import EXCLUDED, MASKED
from ethorch.quantization.passes.context import PassContext

aten = torch.ops.aten

TOPK = "aten.topk.default"
_MOST = 8  #: maximum k; larger k use the CPU kernel of torch.topk
_AT_PLACES = frozenset({"aten.gather.default", "aten.scatter.value", "aten.scatter.src"})


def lower_top_k(graph_module: GraphModule, context: PassContext) -> None:
    """Decompose each ``torch.topk`` with k <= 8 if only gather and scatter along the same dim read its indices.

    A ``topk`` with unused indices (e.g. to select groups of experts) is decomposed only together with a ``topk`` whose indices are
    used.
    """
    few = [node for node in graph_module.graph.nodes if is_few(node) and not context.is_excluded(node)]
    readers = {node: [user for places in results(node, 1) for user in places.users] for node in few}
    replaceable = [node for node in few if all(_is_along(user, node) and not context.is_excluded(user) for user in readers[node])]
    if any(readers[node] for node in replaceable):
        for node in replaceable:
            draw_top_k(AtenBuilder(graph_module, node), node)


def is_few(node: Node) -> bool:
    """Return True if the node is a float ``topk`` with k <= 8 that returns the largest values along the last dim."""
    if op_name(node.target) != TOPK:
        return False
    x, k, dim, largest, _ = arguments(node)[0]
    return 0 < k <= _MOST and dim in (-1, len(shape_of(x)) - 1) and largest and x.meta["val"].is_floating_point()


def results(node: Node, index: int) -> list[Node]:
    """Return the nodes that select output ``index`` of ``node``."""
    return [user for user in node.users if user.target is operator.getitem and user.args[1] == index]


def draw_top_k(s: AtenBuilder, topk: Node) -> None:
    """Decompose a ``topk``, and replace its indices in gather and scatter operators with one-hot masks."""
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
            left = s(aten.masked_fill.Scalar, left, marks[-1], EXCLUDED if left is row else MASKED)
    greatest = _concatenate(s, values)
    for user in [user for indices in results(topk, 1) for user in indices.users if _is_along(user, topk)]:
        user.replace_all_uses_with(greatest if _reads(user, row) else _at_marks(AtenBuilder(s.model, user), user, marks))
    for index, output in enumerate((greatest, _concatenate(s, places))):
        for node in results(topk, index):
            node.replace_all_uses_with(output)


def _concatenate(s: AtenBuilder, parts: list[Node]) -> Node:
    return s(aten.cat.default, parts, -1) if len(parts) > 1 else parts[0]


def _reads(node: Node, row: Node) -> bool:
    return op_name(node.target) == "aten.gather.default" and node.args[0] is row


def _is_along(node: Node, topk: Node) -> bool:
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
    x, _, _, *rest = node.args
    assert isinstance(x, Node)
    if op_name(node.target) == "aten.gather.default":
        chosen = (s(aten.mul.Tensor, x, s(aten.to.dtype, mark, torch.float32)) for mark in marks)
        return _concatenate(s, [s(aten.sum.dim_IntList, each, [-1], True) for each in chosen])
    if not isinstance(rest[0], Node):
        for mark in marks:
            x = s(aten.masked_fill.Scalar, x, mark, rest[0])
        return x
    fill = _number_of(x)
    if len(marks) == 1 and fill is not None:  # unlike where, masked_fill does not affect the range of the other values
        wide = s(aten.expand.default, rest[0], list(shape_of(x)))
        return s(aten.masked_fill.Scalar, wide, s(aten.logical_not.default, marks[0]), fill)
    for number, mark in enumerate(marks):
        x = s(aten.where.self, mark, s(aten.slice.Tensor, rest[0], -1, number, number + 1), x)
    return x


def _number_of(x: Node) -> float | None:
    name, args = op_name(x.target), x.args
    if name in ("aten.full_like.default", "aten.full.default"):
        return float(args[1]) if isinstance(args[1], (int, float)) else None
    return 0.0 if name in ("aten.zeros_like.default", "aten.zeros.default") else None
