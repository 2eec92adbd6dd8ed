"""Operators that were left whole for the NPU and stay on the CPU after all: broken up, since the CPU has no kernel for them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from executorch.exir.dialects._ops import ops as edge_ops
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from ethorch.lower.fx.node import op_name, overload_of
from ethorch.lower.ops.spec import OPS


def keep_whole(target: torch._ops.OpOverload) -> bool:
    """Return True if ExecuTorch would decompose this operator, which ethorch lowers as one.

    It breaks up what returns a view of its input, or may return one, whatever it is asked.
    """
    spec = OPS.get(op_name(target))
    if spec is None or spec.composite or target.namespace != "aten" or target._schema.is_mutable:
        return False
    aliases = any(result.alias_info is not None for result in target._schema.returns)
    return not aliases and torch.Tag.maybe_aliasing_or_mutating not in target.tags


def break_up(program: ExportedProgram, nodes: Iterable[Node]) -> list[Node]:
    """Replace each of these edge operators of ``program`` by the core ATen operators that PyTorch makes of it.

    Returns:
        The operators that came in their place, with the place in the user's code of what they replace.
    """
    made: list[Node] = []
    for node in nodes:
        made += _broken_up(node)
    for module in {id(node.graph): node.graph.owning_module for node in made}.values():
        assert module is not None
        module.graph.eliminate_dead_code()
        module.recompile()
    return made


def parts_of(node: Node) -> list[Node]:
    """Return the operators that would replace an edge operator, in a graph of their own; none if ExecuTorch leaves it whole."""
    op = overload_of(node.target)
    if not isinstance(node.target, EdgeOpOverload) or not isinstance(op, torch._ops.OpOverload) or not keep_whole(op):
        return []
    traced = _traced(node)
    parts = [] if traced is None else _body(traced)
    for part in parts:
        part.target = edge_operator(part.target) or part.target
        part.meta = {**node.meta, "val": part.meta["val"]}
    return parts


def edge_operator(target: Any) -> Any:
    """The operator of the edge dialect for one of ATen; None where there is none."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    namespace, name = target._schema.name.split("::")
    try:
        return getattr(getattr(getattr(edge_ops.edge, namespace), name), target._overloadname)
    except (AttributeError, RuntimeError):
        return None


@cache
def _decompositions() -> dict[Any, Any]:
    return dict(torch.export.default_decompositions())


def _traced(node: Node) -> GraphModule | None:
    """The graph of core ATen operators that an edge operator becomes; None where PyTorch breaks it up no further."""
    call, inputs = node.target._op, list(node.all_input_nodes)  # type: ignore[union-attr]

    def function(*tensors: Any) -> Any:
        given = dict(zip(inputs, tensors, strict=True))
        return call(*torch.fx.map_arg(node.args, given.__getitem__), **torch.fx.map_arg(node.kwargs, given.__getitem__))

    values = [value.meta["val"] for value in inputs]
    outputs = node.meta.get("val")
    mode = detect_fake_mode([*values, *(outputs if isinstance(outputs, tuple | list) else [outputs])])
    with torch.no_grad(), mode or nullcontext():  # tensors that the decomposition creates belong to the program's fake mode
        traced = make_fx(function, decomposition_table=_decompositions())(*values)
        traced = make_fx(torch.func.functionalize(traced, remove="mutations_and_views"))(*values)  # an edge program has no views
    body = _body(traced)
    return None if any(inner.op != "call_function" for inner in body) or call in [inner.target for inner in body] else traced


def _body(traced: GraphModule) -> list[Node]:
    return [inner for inner in traced.graph.nodes if inner.op not in ("placeholder", "output")]


def _broken_up(node: Node) -> list[Node]:
    traced = _traced(node) if isinstance(node.target, EdgeOpOverload) else None
    if traced is None:
        return []
    graph = node.graph
    placeholders = (inner for inner in traced.graph.nodes if inner.op == "placeholder")
    copies: dict[Node, Any] = dict(zip(placeholders, node.all_input_nodes, strict=True))
    made: list[Node] = []
    with graph.inserting_before(node):
        for inner in _body(traced):
            args = torch.fx.map_arg((inner.args, inner.kwargs), copies.__getitem__)
            target: Any = edge_operator(inner.target) or inner.target
            copies[inner] = graph.call_function(target, *args)
            copies[inner].meta = {key: value for key, value in node.meta.items() if key != "delegation_tag"}
            copies[inner].meta["val"] = inner.meta["val"]
            made.append(copies[inner])
    (result,) = (inner.args[0] for inner in traced.graph.nodes if inner.op == "output")
    if isinstance(result, Node):
        _replace(node, copies[result])
        return made
    for user in list(node.users):  # of several results each is read by a getitem
        _replace(user, copies[result[user.args[1]]])
    graph.erase_node(node)
    return made


def _replace(node: Node, by: Node) -> None:
    """The program's signature refers to outputs by name, so ``by`` gets the name of an output."""
    name, is_output = node.name, any(user.op == "output" for user in node.users)
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)
    if is_output:
        by.name = name
