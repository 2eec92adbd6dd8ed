"""Remove guards, assertions, no-ops, softmax shifts, joins and gradients, and reshape scalars."""

from __future__ import annotations

import operator
from itertools import accumulate, pairwise

import torch
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import ASSERTIONS, arguments, has_scalar_dim, op_name
from ethorch.lower.ops.arithmetic import sub
from ethorch.lower.ops.extremes import amax, max_dim
from ethorch.lower.ops.joining import cat, stack
from ethorch.lower.ops.shape import permute
from ethorch.lower.ops.slicing import select, slice_
from ethorch.lower.ops.softmax import log_softmax, softmax
from ethorch.lower.ops.spec import OPS, OpSpec, find
from ethorch.quantization.passes.context import PassContext

aten = torch.ops.aten

_SOFTMAXES = (softmax, log_softmax)
#: Operators that can return an operand of a join, and the join.
_JOINS: dict[OpSpec | None, OpSpec] = {select: stack, slice_: cat}


def remove_guards(graph_module: GraphModule, context: PassContext) -> None:
    """Erase the call to the module that checks program inputs."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_module" and node.target == "_guards_fn":
            graph_module.graph.erase_node(node)


def remove_assertions(graph_module: GraphModule, context: PassContext) -> None:
    """Erase assertions about dtypes and sizes, which always hold."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_function" and op_name(node.target) in ASSERTIONS and not node.users:
            graph_module.graph.erase_node(node)


def remove_no_ops(graph_module: GraphModule, context: PassContext) -> None:
    """Remove dropouts in evaluation mode and casts without effect, unless they read a parameter or an input."""
    for node in list(graph_module.graph.nodes):
        if (_is_idle_dropout(node) or _is_idle_cast(node)) and node.all_input_nodes[0].op == "call_function":
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph_module.graph.erase_node(node)


def lift_scalars(graph_module: GraphModule, context: PassContext) -> None:
    """Reshape scalars to [1] for operators with a ``dim`` argument."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or find(node.target) is None or not has_scalar_dim(node) or context.is_excluded(node):
            continue
        s = AtenBuilder(graph_module, node)

        def lift(operand: Node, s: AtenBuilder = s) -> Node:
            return s(aten.reshape.default, operand, [1]) if operand.meta["val"].dim() == 0 else operand

        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lift)
        if find(node.target) is permute:  # whose dims must include the new one
            args = (args[0], [0])
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            node.replace_all_uses_with(s(aten.reshape.default, s(node.target, *args, **kwargs), list(value.shape)))
            graph_module.graph.erase_node(node)
            continue
        pairs = zip(s.results(node.target, *args, **kwargs), value, strict=True)
        results = [s(aten.reshape.default, each, list(like.shape)) for each, like in pairs]
        for item in list(node.users):
            item.replace_all_uses_with(results[item.args[1]])
            graph_module.graph.erase_node(item)
        graph_module.graph.erase_node(node)


def remove_softmax_shifts(graph_module: GraphModule, context: PassContext) -> None:
    """Replace softmax(x - x.amax(dim)) with softmax(x), because the difference would widen the range of the scores."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_function" and find(node.target) in _SOFTMAXES:
            difference, dim = node.all_input_nodes[0], node.args[1]
            scores = _above(difference, dim % node.meta["val"].dim()) if isinstance(dim, int) else None
            if scores is not None:
                node.replace_input_with(difference, scores)
                graph_module.graph.eliminate_dead_code()


def _above(difference: Node, dim: int) -> Node | None:
    if difference.op != "call_function" or find(difference.target) is not sub:
        return None
    (x, largest, *_), options = arguments(difference)
    while isinstance(largest, Node) and (largest.target is operator.getitem or op_name(largest.target).startswith("aten.detach")):
        largest = largest.all_input_nodes[0]
    if options.get("alpha", 1) != 1 or not isinstance(largest, Node) or find(largest.target) not in (amax, max_dim):
        return None
    (source, dims, *keepdim), _ = arguments(largest)
    dims = [dims] if isinstance(dims, int) else list(dims)
    keeps_dim = bool(keepdim and keepdim[0])
    return x if source is x and keeps_dim and [each % x.meta["val"].dim() for each in dims] == [dim] else None


def bypass_joins(graph_module: GraphModule, context: PassContext) -> None:
    """Replace a part of a ``cat`` or ``stack`` that equals one of the operands with this operand.

    For example, the last output of a recurrent layer does not need the outputs of other steps.
    """
    for node in list(graph_module.graph.nodes):
        spec = find(node.target) if node.op == "call_function" and not context.is_excluded(node) else None
        joined = node.args[0] if spec in _JOINS else None
        if not isinstance(joined, Node) or joined.op != "call_function" or context.is_excluded(joined):
            continue
        operand = _find_operand(node, joined) if find(joined.target) is _JOINS[spec] else None
        if operand is not None and _permits_views(operand.meta["val"], node.meta["val"]):
            node.replace_all_uses_with(operand)
            graph_module.graph.erase_node(node)


def _find_operand(node: Node, joined: Node) -> Node | None:
    (tensors, axis), _ = arguments(joined)
    (_, dim, *bounds), _ = arguments(node)
    result, rank, is_stack = node.meta["val"], joined.meta["val"].dim(), find(joined.target) is stack
    # Other dtypes are promoted, and an input that becomes an output would not be copied.
    if not all(each.op == "call_function" and each.meta["val"].dtype == result.dtype for each in tensors):
        return None
    if not all(each.meta["val"].dim() == rank - is_stack for each in tensors) or dim % rank != axis % rank:
        return None
    extents = [1 if is_stack else shape_of(each)[axis] for each in tensors]
    if not all(isinstance(number, int) for number in (*bounds, *extents)):
        return None
    length = sum(extents)
    part = (bounds[0] % length, bounds[0] % length + 1, 1) if is_stack else slice(*bounds).indices(length)
    spans = pairwise(accumulate(extents, initial=0))
    return next((each for each, span in zip(tensors, spans, strict=True) if (*span, 1) == part), None)


def _permits_views(part: torch.Tensor, original: torch.Tensor) -> bool:
    is_static = all(isinstance(extent, int) for extent in part.shape)
    return is_static and (part.is_contiguous() or part.stride() == original.stride())


def _is_idle_cast(node: Node) -> bool:
    if node.op != "call_function" or find(node.target) is not OPS["aten._to_copy.default"]:
        return False
    before, after = (each.meta.get("val") for each in (node.all_input_nodes[0], node))
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    return (before.dtype, before.shape, before.stride(), before.device) == (after.dtype, after.shape, after.stride(), after.device)


def _is_idle_dropout(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or [argument.name for argument in schema.arguments] != ["input", "p", "train"] or len(schema.returns) != 1:
        return False
    (_, _, train), _ = arguments(node)
    return train is False


def freeze_parameters(graph_module: GraphModule, context: PassContext) -> None:
    """Replace parameters with parameters that share the same memory but require no gradient.

    Otherwise a written buffer would store a value with a gradient, which cannot be exported.
    """
    frozen: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for module in graph_module.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.requires_grad:
                if parameter not in frozen:
                    frozen[parameter] = torch.nn.Parameter(parameter.detach(), requires_grad=False)
                setattr(module, name, frozen[parameter])
