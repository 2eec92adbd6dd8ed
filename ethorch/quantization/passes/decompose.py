"""Composite operators become the operators they are made of, before annotation.

What is inside a composite (attention's scores, a cell's gates) can only be calibrated if it is there while PyTorch's
observers watch. So each operator whose OpSpec has a ``decompose`` is replaced here by a small ATen graph that its
function draws on a ``AtenBuilder``; source lines, module paths and parameters stay what they were.
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
from ethorch.lower.ops.spec import OpSpec, find
from ethorch.models.open_sizes import OpenSize, is_dynamic, is_size
from ethorch.quantization.passes.context import PassContext

aten = torch.ops.aten


def decompose_composites(graph_module: GraphModule, context: PassContext) -> None:
    """Replace every composite operator, in place, and those that what is drawn for it holds.

    The graph has no in-place operators.
    """
    pending = deque(node for node in graph_module.graph.nodes if node.op == "call_function")
    relaid: set[Node] = set()  # what is laid out in another way than what it replaces
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
        if not (is_float(node) or (spec is not None and spec.decomposes_integers) or (spec is None and _reads_floats(node))):
            continue
        if shape_of_values(node) or any(map(shape_of_values, node.all_input_nodes)):
            continue  # the CPU's, whatever it is made of
        before, s = node.prev, AtenBuilder(graph_module, node, context.limits)
        try:
            if spec is None:
                made = _by_pytorch(s, node)
            else:
                assert spec.decompose is not None
                args, kwargs = spec.canonical(op_name(node.target), *arguments(node))
                made = spec.decompose(s, *args, **kwargs)
        except (OpenSize, RuntimeError) as error:  # the parts would be of one size only
            if not isinstance(error, OpenSize) and not is_dynamic(node):
                raise
            while node.prev is not before:
                graph_module.graph.erase_node(node.prev)
            continue
        if made is None:
            continue
        relaid |= _relaid(node, made)
        drawn = node.prev
        while drawn is not before:  # in the order of the graph, before what follows
            pending.extendleft([drawn] if drawn.op == "call_function" else [])
            drawn = drawn.prev
        replace(node, made)
        graph_module.graph.erase_node(node)
    _reshape_behind(graph_module.graph, relaid)


def _without_shape_operands(s: AtenBuilder, node: Node, spec: OpSpec) -> Node | None:
    """Draw the canonical spelling of a call that reads a tensor only for its shape, as ``expand_as`` does.

    Such a tensor need not be quantized. Return None for other calls, and for open sizes.
    """
    name = op_name(node.target)
    if name not in spec.adapters or spec.lower is None or len(node.all_input_nodes) < 2 or is_dynamic(node):
        return None
    nodes = {id(value_of(each)): each for each in node.all_input_nodes}
    args, kwargs = spec.canonical(name, *map_leaves(arguments(node), value_of))
    args, kwargs = map_leaves((args, kwargs), lambda arg: nodes.get(id(arg), arg))
    left = [arg for arg in flat([*args, *kwargs.values()]) if isinstance(arg, Node)]
    if len(set(left)) == len(nodes):
        return None
    made: Node = s(operator.attrgetter(spec.name)(torch.ops), *args, **kwargs)
    return made


def _relaid(node: Node, made: Any) -> set[Node]:
    """Of the results of ``made``, those that lie in memory in another way than the results of ``node`` do."""
    values = node.meta["val"]
    pairs = zip(made, values, strict=False) if isinstance(made, (list, tuple)) else [(made, values)]
    known = [(new, old) for new, old in pairs if isinstance(new, Node) and isinstance(old, torch.Tensor)]
    return {new for new, old in known if new.meta["val"].stride() != old.stride()}


def _reshape_behind(graph: Graph, relaid: set[Node]) -> None:
    """Views become reshapes behind what is laid out in another way now: of its elements a view may not be possible any more."""
    for node in graph.nodes if relaid else ():
        if not relaid.isdisjoint(node.all_input_nodes):
            relaid.add(node)
            if node.target is aten.view.default:
                node.target = aten.reshape.default


def _reads_floats(node: Node) -> bool:
    return any(map(is_float, node.all_input_nodes))


def _by_pytorch(s: AtenBuilder, node: Node) -> Any:
    """What PyTorch makes of an operator that ethorch does not know (``torch.multiply``, ``vstack``, ``lerp``), if it knows that.

    None where one of those would be unknown too.
    """
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
        given = dict(zip(inputs, tensors, strict=True))
        return target(*torch.fx.map_arg(node.args, given.__getitem__), **torch.fx.map_arg(node.kwargs, given.__getitem__))

    def known(graph: Graph) -> bool:
        calls = [each for each in graph.nodes if each.op == "call_function" and each.target is not operator.getitem]
        floats = {value.dtype for value in map(first_value, inputs) if value is not None}
        made = {value.dtype for value in map(first_value, calls) if value is not None and value.is_floating_point()}
        nothing = all(each.op == "placeholder" for each in graph.output_node().all_input_nodes)  # tensors of one shape broadcast
        return (bool(calls) or nothing) and made <= floats and all(map(_is_known, calls))

    try:
        return s.inline(function, *inputs, table=table, where=known)
    except (
        RuntimeError,
        NotImplementedError,
    ):  # an operator that cannot be traced without data stays on the CPU, as any unknown one
        return None


def _is_known(node: Node) -> bool:
    return (find(node.target) is not None or makes_constant(node)) and not is_in_place(node)


@functools.cache
def _table_of_unknown() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of the operators that ethorch does not know."""
    return {target: function for target, function in core_aten_decompositions().items() if find(target) is None}


def replace(node: Node, made: Node | Sequence[Node | None]) -> None:
    """Let the users of ``node`` read ``made``: a node, or one per result of an operator that has several."""
    if isinstance(made, Node):
        node.replace_all_uses_with(made)
        return
    for user in list(node.users):
        assert user.target is operator.getitem, f"{user.format_node()} reads several results at once"
        result = made[user.args[1]]  # type: ignore[index]
        assert result is not None or not user.users, f"nothing computes result {user.args[1]} of {node.format_node()}"
        if result is not None:
            user.replace_all_uses_with(result)
        user.graph.erase_node(user)


def hoist_clamps(graph_module: GraphModule, context: PassContext) -> None:
    """``relu(view(y))`` becomes ``view(relu(y))`` where a decomposition drew the view: the clamp then costs nothing, in place."""
    for node in list(graph_module.graph.nodes):
        spec = find(node.target) if node.op == "call_function" else None
        if spec is None or not spec.absorbs or is_in_place(node) or len(node.all_input_nodes) != 1:
            continue
        if spec.rule(node).output == "same":  # a copy, behind which a view finds the elements in order
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
    """Give all batch norms the form with fixed statistics, in place."""
    settle_batch_norms(graph_module)


def settle_batch_norms(model: GraphModule, stays: Callable[[Node], bool] = lambda node: True) -> None:
    """Batch norms that stay become the form with fixed statistics, in place.

    ``convert_pt2e`` takes the other forms for a sign of training and exports 96 patterns to look for (10 s).
    """
    for node in filter(stays, list(model.graph.nodes)):
        if node.op == "call_function" and op_name(node.target) == "aten._native_batch_norm_legit_no_training.default":
            x, weight, bias, mean, var, momentum, eps = node.args
            s = AtenBuilder(model, node)
            replace(node, s.results(aten.native_batch_norm.default, x, weight, bias, mean, var, False, momentum, eps))
            model.graph.erase_node(node)
        elif node.op == "call_function" and op_name(node.target) == "aten.batch_norm.default" and not node.args[5]:
            x, weight, bias, mean, var, _, momentum, eps = node.args[:8]
            s = AtenBuilder(model, node)
            made = s.results(aten.native_batch_norm.default, x, weight, bias, mean, var, False, momentum, eps)
            replace(node, made[0])
            model.graph.erase_node(node)
