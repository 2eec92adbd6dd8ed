"""Decompose composite operators, so that intermediate values (attention scores, gates) can be calibrated.

The ``decompose`` function of an OpSpec emits a small ATen graph with an ``AtenBuilder``.
"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch.fx import Graph, GraphModule, Node

from ethorch.lower.fx.aten_builder import MADE_FOR, AtenBuilder, value_of
from ethorch.lower.fx.node import (
    arguments,
    first_value,
    flat,
    is_float,
    is_in_place,
    makes_constant,
    map_leaves,
    op_name,
    shape_of_values,
)
from ethorch.lower.ops.division import remainder as remainder_of_tensors
from ethorch.lower.ops.rounding import remainder
from ethorch.lower.ops.spec import OpSpec, find
from ethorch.models.open_sizes import OpenSize, is_dynamic, is_size
from ethorch.quantization.passes.context import PassContext

aten = torch.ops.aten


def decompose_composites(graph_module: GraphModule, context: PassContext) -> None:
    """Decompose composite operators recursively. Excluded operators, and operators with data-dependent shapes, do not change."""
    pending = deque(node for node in graph_module.graph.nodes if node.op == "call_function")
    relaid: set[Node] = set()  # nodes whose strides differ from the strides of the nodes that they replace
    while pending:
        node = pending.popleft()
        spec = find(node.target)
        if (
            spec is not None
            and not context.is_excluded(node)
            and (respelled := _without_shape_operands(AtenBuilder(graph_module, node, context.limits), node, spec))
        ):
            replace(node, respelled)
            graph_module.graph.erase_node(node)
            node = respelled
        if is_in_place(node) or is_size(node) or (spec is not None and spec.decompose is None) or context.is_excluded(node):
            continue
        if not (is_float(node) or (spec is not None and spec.decomposes_integers) or (spec is None and _decomposes(node))):
            continue
        if shape_of_values(node) or any(map(shape_of_values, node.all_input_nodes)):
            continue  # data-dependent shapes stay on the CPU
        before, s = node.prev, AtenBuilder(graph_module, node, context.limits)
        try:
            if spec is None:
                replacement = _by_pytorch(s, node)
            else:
                assert spec.decompose is not None
                args, kwargs = spec.canonical(op_name(node.target), *arguments(node))
                replacement = spec.decompose(s, *args, **kwargs)
        except (OpenSize, RuntimeError) as error:  # the decomposition requires a fixed size
            if not isinstance(error, OpenSize) and not is_dynamic(node):
                raise
            while node.prev is not before:
                graph_module.graph.erase_node(node.prev)
            continue
        if replacement is None:
            continue
        relaid |= _find_relaid(node, replacement)
        emitted = node.prev
        while emitted is not before:  # process emitted nodes in graph order, before the following nodes
            pending.extendleft([emitted] if emitted.op == "call_function" else [])
            emitted = emitted.prev
        replace(node, replacement)
        graph_module.graph.erase_node(node)
    _replace_views(graph_module.graph, relaid)


def _without_shape_operands(s: AtenBuilder, node: Node, spec: OpSpec) -> Node | None:
    name = op_name(node.target)
    if name not in spec.adapters or spec.lower is None or len(node.all_input_nodes) < 2 or is_dynamic(node):
        return None
    nodes = {id(value_of(each)): each for each in node.all_input_nodes}
    args, kwargs = spec.canonical(name, *map_leaves(arguments(node), value_of))
    args, kwargs = map_leaves((args, kwargs), lambda arg: nodes.get(id(arg), arg))
    left = [arg for arg in flat([*args, *kwargs.values()]) if isinstance(arg, Node)]
    if len(set(left)) == len(nodes):
        return None
    canonical: Node = s(operator.attrgetter(spec.name)(torch.ops), *args, **kwargs)
    return canonical


def _find_relaid(node: Node, replacement: Any) -> set[Node]:
    values = node.meta["val"]
    pairs = zip(replacement, values, strict=False) if isinstance(replacement, (list, tuple)) else [(replacement, values)]
    tensors = [(new, old) for new, old in pairs if isinstance(new, Node) and isinstance(old, torch.Tensor)]
    return {new for new, old in tensors if new.meta["val"].stride() != old.stride()}


def _replace_views(graph: Graph, relaid: set[Node]) -> None:
    for node in graph.nodes if relaid else ():
        if not relaid.isdisjoint(node.all_input_nodes):
            relaid.add(node)
            if node.target is aten.view.default:
                node.target = aten.reshape.default


def _decomposes(node: Node) -> bool:
    return node.target is aten.one_hot.default or any(map(is_float, node.all_input_nodes))


def _by_pytorch(s: AtenBuilder, node: Node) -> Any:
    """Return PyTorch's decomposition of an operator without an OpSpec (e.g. ``torch.multiply``, ``vstack``, ``lerp``)."""
    # Return None if PyTorch does not define one, or if the decomposition contains unsupported operators.
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or not node.all_input_nodes:
        return None
    table = _table_of_unknown()
    if target not in table and not target._can_decompose():
        return None
    inputs = list(node.all_input_nodes)
    if not all(isinstance(value_of(each), torch.Tensor) for each in inputs):
        return None

    def function(*tensors: Any) -> Any:
        operands = dict(zip(inputs, tensors, strict=True))
        return target(*torch.fx.map_arg(node.args, operands.__getitem__), **torch.fx.map_arg(node.kwargs, operands.__getitem__))

    def is_supported(graph: Graph) -> bool:
        calls = [each for each in graph.nodes if each.op == "call_function" and each.target is not operator.getitem]
        before = {value.dtype for value in map(first_value, inputs) if value is not None and value.is_floating_point()}
        after = {value.dtype for value in map(first_value, calls) if value is not None and value.is_floating_point()}
        nothing = all(
            each.op == "placeholder" for each in graph.output_node().all_input_nodes
        )  # e.g. a broadcast to an equal shape
        return (bool(calls) or nothing) and after <= (before or {torch.float32}) and all(map(_is_known, calls))

    try:
        return s.inline(function, *inputs, table=table, where=is_supported)
    except (RuntimeError, NotImplementedError):  # an operator that cannot be traced without data stays on the CPU
        return None


def _is_known(node: Node) -> bool:
    return (find(node.target) is not None or makes_constant(node)) and not is_in_place(node)


@functools.cache
def _table_of_unknown() -> dict[Any, Callable[..., Any]]:
    return {target: function for target, function in core_aten_decompositions().items() if find(target) is None}


def replace(node: Node, replacement: Node | Sequence[Node | None]) -> None:
    """Replace ``node`` in its users with one node, or with one node for each output."""
    if isinstance(replacement, Node):
        node.replace_all_uses_with(replacement)
        return
    for user in list(node.users):
        assert user.target is operator.getitem, f"{user.format_node()} reads several outputs, expected operator.getitem"
        result = replacement[user.args[1]]  # type: ignore[index]
        assert result is not None or not user.users, f"output {user.args[1]} of {node.format_node()} has no replacement"
        if result is not None:
            user.replace_all_uses_with(result)
        user.graph.erase_node(user)


def hoist_clamps(graph_module: GraphModule, context: PassContext) -> None:
    """Replace ``relu(view(y))`` with ``view(relu(y))`` for views that decompositions emitted, so that y's producer absorbs relu."""
    for node in list(graph_module.graph.nodes):
        spec = find(node.target) if node.op == "call_function" else None
        if spec is None or not spec.absorbs or is_in_place(node) or len(node.all_input_nodes) != 1:
            continue
        if spec.rule(node).output == "same":  # a view may depend on the strides of a copy
            continue
        (move,) = node.all_input_nodes
        while MADE_FOR in move.meta and _moves(move) and len(move.users) == 1 and node.meta["val"].shape == move.meta["val"].shape:
            (source,) = move.all_input_nodes
            node.replace_input_with(move, source)
            node.replace_all_uses_with(move)
            move.replace_input_with(source, node)
            node.append(move)
            node.meta["val"] = source.meta["val"]
            move = source


def _moves(node: Node) -> bool:
    spec = find(node.target) if node.op == "call_function" else None
    return spec is not None and spec.moves


def fix_batch_norms(graph_module: GraphModule, context: PassContext) -> None:
    """Convert all batch norms to the form with fixed statistics."""
    settle_batch_norms(graph_module)


def settle_batch_norms(model: GraphModule, stays: Callable[[Node], bool] = lambda node: True) -> None:
    """Convert batch norms to the form with fixed statistics, or with those of the batch.

    ``convert_pt2e`` treats other forms as training, and takes 10 s to match them.

    Args:
        stays: Predicate for batch norms that will not be folded.
    """
    for node in list(model.graph.nodes):
        if node.target is aten._native_batch_norm_legit_no_training.default:
            x, weight, bias, mean, var, momentum, eps = node.args
            uses_batch = False
        elif node.target in (aten.batch_norm.default, aten.native_batch_norm.default):
            x, weight, bias, mean, var, uses_batch, momentum, eps = node.args[:8]
        else:
            continue
        s = AtenBuilder(model, node)
        if uses_batch:
            outputs = s.results(aten._native_batch_norm_legit.no_stats, x, weight, bias, True, momentum, eps)
        elif node.target is not aten.native_batch_norm.default and stays(node):
            outputs = s.results(aten.native_batch_norm.default, x, weight, bias, mean, var, False, momentum, eps)
        else:
            continue
        replace(node, outputs if isinstance(node.meta["val"], (tuple, list)) else outputs[0])
        model.graph.erase_node(node)


def correct_remainders(graph_module: GraphModule, context: PassContext) -> None:
    """Give remainders of integers the sign of the divisor. ExecuTorch's kernel returns remainders with the sign of the dividend."""
    for node in [node for node in graph_module.graph.nodes if find(node.target) in (remainder, remainder_of_tensors)]:
        x, y = node.args
        if not all(map(_is_signed, (node, x, y))):
            continue
        s = AtenBuilder(graph_module, node, context.limits)
        rest = s(node.target, x, y)
        if isinstance(y, Node):
            signs_differ = s(aten.ne.Tensor, s(aten.lt.Scalar, rest, 0), s(aten.lt.Scalar, y, 0))
            is_wrong = s(aten.logical_and.default, s(aten.ne.Scalar, rest, 0), signs_differ)
            moved = s(aten.add.Tensor, rest, y)
        else:
            is_wrong = s((aten.lt if y > 0 else aten.gt).Scalar, rest, 0)
            moved = s(aten.add.Scalar, rest, y)
        replace(node, s(aten.where.self, is_wrong, moved, rest))
        graph_module.graph.erase_node(node)


def _is_signed(arg: Any) -> bool:
    if not isinstance(arg, Node):
        return isinstance(arg, int) and not isinstance(arg, bool)
    dtype = arg.meta["val"].dtype
    return bool(dtype.is_signed and not dtype.is_floating_point and not dtype.is_complex)
