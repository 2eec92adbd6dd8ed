"""What torch.export leaves in a graph and calibration has no use for: guards, assertions, idle dropouts and casts, gradients."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import AtenBuilder
from ethorch.lower.fx.node import ASSERTIONS, arguments, has_scalar_dim, op_name
from ethorch.lower.ops.arithmetic import sub
from ethorch.lower.ops.extremes import amax, max_dim
from ethorch.lower.ops.softmax import log_softmax, softmax
from ethorch.lower.ops.spec import OPS, find
from ethorch.quantization.passes.context import PassContext

aten = torch.ops.aten

_SOFTMAXES = (softmax, log_softmax)


def remove_guards(graph_module: GraphModule, context: PassContext) -> None:
    """Erase the call of the module that checks a program's inputs."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_module" and node.target == "_guards_fn":
            graph_module.graph.erase_node(node)


def remove_assertions(graph_module: GraphModule, context: PassContext) -> None:
    """Erase assertions about dtypes and sizes, which hold by construction."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_function" and op_name(node.target) in ASSERTIONS and not node.users:
            graph_module.graph.erase_node(node)


def remove_no_ops(graph_module: GraphModule, context: PassContext) -> None:
    """Let readers of an idle operator read its input; one of a parameter or an input stays: its result is quantized.

    Idle are dropouts in evaluation, and casts to the dtype that is there already.
    """
    for node in list(graph_module.graph.nodes):
        if (_is_idle_dropout(node) or _is_idle_cast(node)) and node.all_input_nodes[0].op == "call_function":
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph_module.graph.erase_node(node)


def lift_scalars(graph_module: GraphModule, context: PassContext) -> None:
    """Compute along a dim of a scalar, as PyTorch allows, along the only axis of its reshape to one element. In place."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or find(node.target) is None or not has_scalar_dim(node) or context.is_excluded(node):
            continue
        s = AtenBuilder(graph_module, node)

        def lifted(operand: Node, s: AtenBuilder = s) -> Node:
            return s(aten.reshape.default, operand, [1]) if operand.meta["val"].dim() == 0 else operand

        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lifted)
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
    """Let a softmax read x where it reads x less the largest of each of its rows, which it takes off itself.

    Written out it costs scores their range: it reaches as far below 0 as the scores lie apart.
    """
    for node in list(graph_module.graph.nodes):
        if node.op == "call_function" and find(node.target) in _SOFTMAXES:
            difference, dim = node.all_input_nodes[0], node.args[1]
            scores = _above(difference, dim % node.meta["val"].dim()) if isinstance(dim, int) else None
            if scores is not None:
                node.replace_input_with(difference, scores)
                graph_module.graph.eliminate_dead_code()


def _above(difference: Node, dim: int) -> Node | None:
    """x of ``x - x.amax(dim, keepdim=True)``, however that is written."""
    if difference.op != "call_function" or find(difference.target) is not sub:
        return None
    (x, taken, *_), options = arguments(difference)
    while isinstance(taken, Node) and (taken.target is operator.getitem or op_name(taken.target).startswith("aten.detach")):
        taken = taken.all_input_nodes[0]
    if options.get("alpha", 1) != 1 or not isinstance(taken, Node) or find(taken.target) not in (amax, max_dim):
        return None
    (of, dims, *keepdim), _ = arguments(taken)
    dims = [dims] if isinstance(dims, int) else list(dims)
    kept = bool(keepdim and keepdim[0])
    return x if of is x and kept and [each % x.meta["val"].dim() for each in dims] == [dim] else None


def _is_idle_cast(node: Node) -> bool:
    """Does it say what its first operand is already: dtype, shape, and how it lies in memory?"""
    if node.op != "call_function" or find(node.target) is not OPS["aten._to_copy.default"]:
        return False
    given, result = (each.meta.get("val") for each in (node.all_input_nodes[0], node))
    if not isinstance(given, torch.Tensor) or not isinstance(result, torch.Tensor):
        return False
    return (given.dtype, given.shape, given.stride(), given.device) == (result.dtype, result.shape, result.stride(), result.device)


def _is_idle_dropout(node: Node) -> bool:
    """Is it of the form (input, p, train=False) -> tensor? PyTorch has dropout, feature_dropout, alpha_dropout and both at once."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or [argument.name for argument in schema.arguments] != ["input", "p", "train"] or len(schema.returns) != 1:
        return False
    (_, _, train), _ = arguments(node)
    return train is False


def freeze_parameters(graph_module: GraphModule, context: PassContext) -> None:
    """Let each parameter of the graph be one without gradient, over the same memory.

    A model that writes to its buffers would otherwise write a value there that needs a gradient, and can be neither copied nor
    exported from then on. The user's module keeps its own parameters.
    """
    frozen: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for module in graph_module.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.requires_grad:
                if parameter not in frozen:
                    frozen[parameter] = torch.nn.Parameter(parameter.detach(), requires_grad=False)
                setattr(module, name, frozen[parameter])
