"""Compute mixtures of experts without sorting.

The library ``transformers`` sorts rows by expert for grouped matrix products, which neither the NPU nor ExecuTorch supports.
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

#: Grouped products: operators of (rows sorted by expert, weights [experts, K, N], int32 end of each expert's rows).
_GROUPED = frozenset({"transformers.grouped_mm_fallback.default", "aten._grouped_mm.default"})
#: Operators that preserve the order of elements.
_VIEWS = frozenset({"aten.reshape.default", "aten.view.default", "aten.flatten.using_ints", "aten.to.dtype", "aten.clone.default"})


def lower_experts(graph_module: GraphModule, context: PassContext) -> None:
    """Remove the sort and the inverse permutation in mixtures of experts, and replace grouped matrix products with linear layers.

    Each row is copied to the position of its expert in a longer row of zeros. One linear layer then multiplies the longer row by
    the matrices of all experts.
    """
    grouped = [node for node in graph_module.graph.nodes if op_name(node.target) in _GROUPED and not context.is_excluded(node)]
    for sort in dict.fromkeys(filter(None, map(_find_sort, grouped))):
        products = [node for node in grouped if _find_sort(node) is sort]
        if _restores_order(sort):
            _remove_sort(graph_module, sort, products)
    if grouped:
        graph_module.graph.eliminate_dead_code()
        graph_module.recompile()


def _find_sort(grouped: Node) -> Node | None:
    ends = grouped.args[2] if len(grouped.args) > 2 else None
    while isinstance(ends, Node) and ends.all_input_nodes:
        if op_name(ends.target) == "aten.sort.default":
            values = ends.all_input_nodes[0].meta["val"]
            return ends if values.dim() == 1 and not values.is_floating_point() else None
        ends = ends.all_input_nodes[0]
    return None


def _inverses(sort: Node) -> Iterator[Node]:
    for permutation in results(sort, 1):
        for user in permutation.users:
            if op_name(user.target) in ("aten.index_put.default", "aten.index_put_.default") and user.args[1] == [permutation]:
                yield user


def _restores_order(sort: Node) -> bool:
    return any(True for _ in _inverses(sort))


def _remove_sort(model: GraphModule, sort: Node, grouped: list[Node]) -> None:
    s = AtenBuilder(model, sort.next)
    ids = _lower_routing(model, sort.all_input_nodes[0])
    experts = int(grouped[0].args[1].meta["val"].shape[0])  # type: ignore[union-attr]
    rows = shape_of(ids)[0]
    chosen = s(aten.eq.Tensor, s(aten.unsqueeze.default, ids, 1), s.constant(torch.arange(experts)[None]))
    marks = s(aten.to.dtype, chosen, torch.float32)  # [rows, experts]: 1 at the expert of the row
    order = s.constant(torch.arange(rows))
    for node in list(_inverses(sort)):
        _drop_index(node)
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
                _repeat_rows(model, user, int(user.args[1]))  # type: ignore[arg-type]
        _drop_index(permutation)
        permutation.replace_all_uses_with(order)


def _drop_index(order: Node) -> None:
    for user in list(order.users):
        if op_name(user.target) == "aten.index.Tensor" and user.args[1] == [order]:
            user.replace_all_uses_with(user.args[0])  # type: ignore[arg-type]


def _repeat_rows(model: GraphModule, index: Node, times: int) -> None:
    for user in list(index.users):
        if op_name(user.target) == "aten.index.Tensor" and user.args[1] == [index]:
            s, x = AtenBuilder(model, user), user.args[0]
            rows, *rest = shape_of(x)  # type: ignore[arg-type]
            wide = s(aten.expand.default, s(aten.unsqueeze.default, x, 1), [rows, times, *rest])
            user.replace_all_uses_with(s(aten.reshape.default, wide, [rows * times, *rest]))


def _product(s: AtenBuilder, node: Node, marks: Node) -> None:
    x, weights, *_ = node.args
    assert isinstance(x, Node) and isinstance(weights, Node)
    rows, count = shape_of(x)
    experts, _, width = shape_of(weights)
    spread = s(aten.mul.Tensor, s(aten.unsqueeze.default, x, 1), s(aten.unsqueeze.default, marks, 2))
    flat = s(aten.reshape.default, spread, [rows, experts * count])
    node.replace_all_uses_with(s(aten.linear.default, flat, _matrix(s, weights, experts * count, width)))


def _matrix(s: AtenBuilder, weights: Node, height: int, width: int) -> Node:
    if weights.op == "get_attr":
        return s.parameter(weights, lambda data: data.reshape(height, width).t().contiguous())
    source = weights.all_input_nodes[0]
    if op_name(weights.target) == "aten.transpose.int" and source.op == "get_attr" and source.meta["val"].dim() == 3:
        a, b = (int(dim) for dim in weights.args[1:3])  # type: ignore[arg-type]
        return s.parameter(source, lambda data: data.transpose(a, b).reshape(height, width).t().contiguous())
    return s(aten.t.default, s(aten.reshape.default, weights, [height, width]))


def _biases(s: AtenBuilder, node: Node, marks: Node) -> None:
    biases = node.args[0]
    if isinstance(biases, Node) and len(shape_of(biases)) == 2:
        transposed = s.transpose_parameter(biases) if tensor_of(s.model, biases) is not None else s(aten.t.default, biases)
        node.replace_all_uses_with(s(aten.linear.default, marks, transposed))


def _lower_routing(model: GraphModule, ids: Node) -> Node:
    source = ids
    while op_name(source.target) in _VIEWS:
        source = source.all_input_nodes[0]
    if source.target is operator.getitem and source.args[1] == 1:
        topk = source.all_input_nodes[0]
        if is_few(topk):
            draw_top_k(AtenBuilder(model, topk), topk)
    return ids
