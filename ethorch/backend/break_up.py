"""Operators that were left whole for the NPU and stay on the CPU after all: broken up, since the CPU has no kernel for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from executorch.exir.dialects._ops import ops as edge_ops
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx


def break_up(program: ExportedProgram, nodes: Iterable[Node]) -> list[Node]:
    """Replace each of these edge operators of ``program`` by the core ATen operators that PyTorch makes of it.

    Returns:
        The operators that came in their place, with the place in the user's code of what they replace.
    """
    table = dict(torch.export.default_decompositions())
    made: list[Node] = []
    for node in nodes:
        made += _broken_up(program.graph_module, node, table)
    program.graph_module.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return made


def _broken_up(module: torch.fx.GraphModule, node: Node, table: dict[Any, Callable[..., Any]]) -> list[Node]:
    if not isinstance(node.target, EdgeOpOverload):
        return []
    call, inputs = node.target._op, list(node.all_input_nodes)

    def function(*tensors: Any) -> Any:
        given = dict(zip(inputs, tensors, strict=True))
        return call(*torch.fx.map_arg(node.args, given.__getitem__), **torch.fx.map_arg(node.kwargs, given.__getitem__))

    with torch.no_grad():
        values = [value.meta["val"] for value in inputs]
        traced = make_fx(function, decomposition_table=table)(*values)
        traced = make_fx(torch.func.functionalize(traced, remove="mutations_and_views"))(*values)  # an edge program has no views
    body = [inner for inner in traced.graph.nodes if inner.op not in ("placeholder", "output")]
    if any(inner.op != "call_function" for inner in body) or call in [inner.target for inner in body]:
        return []
    copies: dict[Node, Any] = dict(zip((inner for inner in traced.graph.nodes if inner.op == "placeholder"), inputs, strict=True))
    made: list[Node] = []
    with module.graph.inserting_before(node):
        for inner in body:
            args = torch.fx.map_arg((inner.args, inner.kwargs), copies.__getitem__)
            target = _edge(inner.target) if isinstance(inner.target, torch._ops.OpOverload) else inner.target
            copies[inner] = module.graph.call_function(target, *args)
            copies[inner].meta = {key: value for key, value in node.meta.items() if key != "delegation_tag"}
            copies[inner].meta["val"] = inner.meta["val"]
            made.append(copies[inner])
    (result,) = (inner.args[0] for inner in traced.graph.nodes if inner.op == "output")
    if isinstance(result, Node):
        _replace(node, copies[result])
        return made
    for user in list(node.users):  # of several results each is read by a getitem
        _replace(user, copies[result[user.args[1]]])
    module.graph.erase_node(node)
    return made


def _replace(node: Node, by: Node) -> None:
    """The program's signature knows its outputs by name, so ``by`` takes over the name."""
    name = node.name
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)
    by.name = name


def _edge(target: torch._ops.OpOverload) -> Any:
    namespace, name = target._schema.name.split("::")
    return getattr(getattr(getattr(edge_ops.edge, namespace), name), target._overloadname)
