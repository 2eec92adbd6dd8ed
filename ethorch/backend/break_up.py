"""Decompose CPU operators that ExecuTorch left undecomposed for a delegate."""

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
    """Return True if ethorch lowers the operator without decomposition, and the operator neither mutates nor aliases its inputs."""
    spec = OPS.get(op_name(target))
    if spec is None or spec.composite or target.namespace != "aten" or target._schema.is_mutable:
        return False
    aliases = any(result.alias_info is not None for result in target._schema.returns)
    return not aliases and torch.Tag.maybe_aliasing_or_mutating not in target.tags


def break_up(program: ExportedProgram, nodes: Iterable[Node]) -> list[Node]:
    """Decompose each edge operator in ``nodes`` into core ATen operators, if it has a decomposition.

    Returns:
        The new operators, with the metadata of the replaced operators.
    """
    pieces: list[Node] = []
    for node in nodes:
        pieces += _decompose(node)
    for module in {id(node.graph): node.graph.owning_module for node in pieces}.values():
        assert module is not None
        module.graph.eliminate_dead_code()
        module.recompile()
    return pieces


def parts_of(node: Node) -> list[Node]:
    """Decompose an edge operator in a separate graph. Return the resulting operators, or [] if it is not decomposed."""
    op = overload_of(node.target)
    if not isinstance(node.target, EdgeOpOverload) or not isinstance(op, torch._ops.OpOverload) or not keep_whole(op):
        return []
    traced = _trace(node)
    parts = [] if traced is None else _body(traced)
    for part in parts:
        part.target = edge_operator(part.target) or part.target
        part.meta = {**node.meta, "val": part.meta["val"]}
    return parts


def edge_operator(target: Any) -> Any:
    """Return the edge dialect's operator for an ATen operator, or None."""
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


def _trace(node: Node) -> GraphModule | None:
    call, inputs = node.target._op, list(node.all_input_nodes)  # type: ignore[union-attr]

    def function(*tensors: Any) -> Any:
        tensor_by_input = dict(zip(inputs, tensors, strict=True))
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), tensor_by_input.__getitem__)
        return call(*args, **kwargs)

    values = [value.meta["val"] for value in inputs]
    outputs = node.meta.get("val")
    mode = detect_fake_mode([*values, *(outputs if isinstance(outputs, tuple | list) else [outputs])])
    with torch.no_grad(), mode or nullcontext():  # new tensors must belong to the program's fake mode
        traced = make_fx(function, decomposition_table=_decompositions())(*values)
        traced = make_fx(torch.func.functionalize(traced, remove="mutations_and_views"))(*values)  # an edge program has no views
    body = _body(traced)
    return None if any(inner.op != "call_function" for inner in body) or call in [inner.target for inner in body] else traced


def _body(traced: GraphModule) -> list[Node]:
    return [inner for inner in traced.graph.nodes if inner.op not in ("placeholder", "output")]


def _decompose(node: Node) -> list[Node]:
    traced = _trace(node) if isinstance(node.target, EdgeOpOverload) else None
    if traced is None:
        return []
    graph = node.graph
    placeholders = (inner for inner in traced.graph.nodes if inner.op == "placeholder")
    copies: dict[Node, Any] = dict(zip(placeholders, node.all_input_nodes, strict=True))
    pieces: list[Node] = []
    with graph.inserting_before(node):
        for inner in _body(traced):
            args = torch.fx.map_arg((inner.args, inner.kwargs), copies.__getitem__)
            target: Any = edge_operator(inner.target) or inner.target
            copies[inner] = graph.call_function(target, *args)
            copies[inner].meta = {key: value for key, value in node.meta.items() if key != "delegation_tag"}
            copies[inner].meta["val"] = inner.meta["val"]
            pieces.append(copies[inner])
    (result,) = (inner.args[0] for inner in traced.graph.nodes if inner.op == "output")
    if isinstance(result, Node):
        _replace(node, copies[result])
        return pieces
    for user in list(node.users):  # getitem nodes
        _replace(user, copies[result[user.args[1]]])
    graph.erase_node(node)
    return pieces


def _replace(node: Node, by: Node) -> None:
    name, is_output = node.name, any(user.op == "output" for user in node.users)
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)
    if is_output:
        by.name = name
