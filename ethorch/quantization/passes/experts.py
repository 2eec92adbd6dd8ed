"""Mixtures of experts without sorting: each row times the weights of all experts, of which its own count.

transformers exports a mixture as a computer likes it: rows are sorted by expert, a grouped product multiplies each run of them by
the matrix of its expert, and the result is put back into order. ExecuTorch has no kernel for the sort nor for the product, and
neither has the NPU. The order of the rows does not matter to the result, so they stay as they are, and a row stands beside zeros
in the places of the experts that it was not given to: one linear layer multiplies it by the matrices of all.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import op_name, tensor_of
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.top_k import draw_top_k, is_few, results

aten = torch.ops.aten

#: Operators of (rows sorted by expert, weights [experts, K, N], int32 ends of the runs).
_GROUPED = frozenset({"transformers.grouped_mm_fallback.default", "aten._grouped_mm.default"})
#: What hands on the elements of its first operand, in their order.
_VIEWS = frozenset({"aten.reshape.default", "aten.view.default", "aten.flatten.using_ints", "aten.to.dtype", "aten.clone.default"})


def lower_experts(graph_module: GraphModule, context: PassContext) -> None:
    """Replace the sort, the grouped products and the way back of each mixture of experts, but for excluded nodes. In place.

    A routing by ``torch.topk`` becomes ``amax`` and ``argmax`` too, see ``ethorch.quantization.passes.top_k``.
    """
    grouped = [node for node in graph_module.graph.nodes if op_name(node.target) in _GROUPED and not context.is_excluded(node)]
    for sort in dict.fromkeys(filter(None, map(_sorted_by, grouped))):
        mine = [node for node in grouped if _sorted_by(node) is sort]
        if _is_put_back(sort):
            _unsorted(graph_module, sort, mine)
    if grouped:
        graph_module.graph.eliminate_dead_code()
        graph_module.recompile()


def _sorted_by(grouped: Node) -> Node | None:
    """The sort of int[rows] experts that the ends of the runs are counted in."""
    found = grouped.args[2] if len(grouped.args) > 2 else None
    while isinstance(found, Node) and found.all_input_nodes:
        if op_name(found.target) == "aten.sort.default":
            values = found.all_input_nodes[0].meta["val"]
            return found if values.dim() == 1 and not values.is_floating_point() else None
        found = found.all_input_nodes[0]
    return None


def _inverses(sort: Node) -> Iterator[Node]:
    """Where the inverse of the permutation is written: ``inverse[permutation] = arange``."""
    for permutation in results(sort, 1):
        for user in permutation.users:
            if op_name(user.target) in ("aten.index_put.default", "aten.index_put_.default") and user.args[1] == [permutation]:
                yield user


def _is_put_back(sort: Node) -> bool:
    return any(True for _ in _inverses(sort))


def _unsorted(model: GraphModule, sort: Node, grouped: list[Node]) -> None:
    """``sort`` keeps the order; ``grouped`` reads which expert a row is for."""
    s = AtenBuilder(model, sort.next)
    ids = _routed(model, sort.all_input_nodes[0])
    experts = int(grouped[0].args[1].meta["val"].shape[0])  # type: ignore[union-attr]
    rows = shape_of(ids)[0]
    chosen = s(aten.eq.Tensor, s(aten.unsqueeze.default, ids, 1), s.constant(torch.arange(experts)[None]))
    marks = s(aten.to.dtype, chosen, torch.float32)  # [rows, experts]: 1 of the row's own
    order = s.constant(torch.arange(rows))
    for node in list(_inverses(sort)):
        _dropped_index(node)
        node.replace_all_uses_with(order)
    for values in results(sort, 0):
        for user in list(values.users):
            if op_name(user.target) == "aten.index.Tensor" and user.args[1] == [values]:
                _biases(AtenBuilder(model, user), user, marks)
        values.replace_all_uses_with(ids)
    for node in grouped:
        _product(AtenBuilder(model, node), node, marks)
    for permutation in results(sort, 1):
        for user in list(permutation.users):
            if op_name(user.target) == "aten.floor_divide.default":
                _repeated(model, user, int(user.args[1]))  # type: ignore[arg-type]
        _dropped_index(permutation)
        permutation.replace_all_uses_with(order)


def _dropped_index(order: Node) -> None:
    """What is indexed by all rows in their order is itself."""
    for user in list(order.users):
        if op_name(user.target) == "aten.index.Tensor" and user.args[1] == [order]:
            user.replace_all_uses_with(user.args[0])  # type: ignore[arg-type]


def _repeated(model: GraphModule, index: Node, times: int) -> None:
    """``x[row // times]`` is each row of x ``times`` times."""
    for user in list(index.users):
        if op_name(user.target) == "aten.index.Tensor" and user.args[1] == [index]:
            s, x = AtenBuilder(model, user), user.args[0]
            rows, *rest = shape_of(x)  # type: ignore[arg-type]
            wide = s(aten.expand.default, s(aten.unsqueeze.default, x, 1), [rows, times, *rest])
            user.replace_all_uses_with(s(aten.reshape.default, wide, [rows * times, *rest]))


def _product(s: AtenBuilder, node: Node, marks: Node) -> None:
    """``x[row] @ weights[expert of the row]``: the row in the place of its expert, zeros in the others, times all matrices."""
    x, weights, *_ = node.args
    assert isinstance(x, Node) and isinstance(weights, Node)
    rows, count = shape_of(x)
    experts, _, width = shape_of(weights)
    placed = s(aten.mul.Tensor, s(aten.unsqueeze.default, x, 1), s(aten.unsqueeze.default, marks, 2))
    flat = s(aten.reshape.default, placed, [rows, experts * count])
    node.replace_all_uses_with(s(aten.linear.default, flat, _matrix(s, weights, experts * count, width)))


def _matrix(s: AtenBuilder, weights: Node, height: int, width: int) -> Node:
    """Weights [experts, K, N] as the [N, experts * K] of a linear layer; a transpose that is a view of a parameter is one too."""
    if weights.op == "get_attr":
        return s.parameter(weights, lambda data: data.reshape(height, width).t().contiguous())
    source = weights.all_input_nodes[0]
    if op_name(weights.target) == "aten.transpose.int" and source.op == "get_attr" and source.meta["val"].dim() == 3:
        a, b = (int(dim) for dim in weights.args[1:3])  # type: ignore[arg-type]
        return s.parameter(source, lambda data: data.transpose(a, b).reshape(height, width).t().contiguous())
    return s(aten.t.default, s(aten.reshape.default, weights, [height, width]))


def _biases(s: AtenBuilder, node: Node, marks: Node) -> None:
    """``biases[expert of the row]``, of biases [experts, N]: the marks times them."""
    biases = node.args[0]
    if isinstance(biases, Node) and len(shape_of(biases)) == 2:
        transposed = s.transpose_parameter(biases) if tensor_of(s.model, biases) is not None else s(aten.t.default, biases)
        node.replace_all_uses_with(s(aten.linear.default, marks, transposed))


def _routed(model: GraphModule, ids: Node) -> Node:
    """The experts of each row, int[rows]; where torch.topk chose them, by amax and argmax in its place."""
    found = ids
    while op_name(found.target) in _VIEWS:
        found = found.all_input_nodes[0]
    if found.target is operator.getitem and found.args[1] == 1:
        topk = found.all_input_nodes[0]
        if is_few(topk):
            draw_top_k(AtenBuilder(model, topk), topk)
    return ids
