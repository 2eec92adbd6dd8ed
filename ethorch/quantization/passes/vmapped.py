"""Replace ``torch.vmap`` and ``flex_attention`` with operators on batched tensors.

Exported nodes between ``_vmap_increment_nesting`` and ``_vmap_decrement_nesting`` operate on one element of the batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch import predispatch
from torch._higher_order_ops.flex_attention import math_attention
from torch.fx import GraphModule, Node, map_arg

from ethorch.lower.fx.aten_builder import AtenBuilder

_FLEX = torch.ops.higher_order.flex_attention
_ENTER, _LEAVE = predispatch._vmap_increment_nesting, predispatch._vmap_decrement_nesting


def inline_vmapped(model: GraphModule) -> None:
    """Inline each ``torch.vmap`` call in place, including calls in control-flow subgraphs."""
    for child in model.children():
        if isinstance(child, GraphModule):
            inline_vmapped(child)
    regions = _regions(model)
    for region in regions:
        _inline(model, region)
    for node in model.graph.find_nodes(op="call_function", target=predispatch.lazy_load_decompositions):
        model.graph.erase_node(node)
    if regions:
        model.recompile()


def _regions(model: GraphModule) -> list[list[Node]]:
    regions: list[list[Node]] = []
    depth = 0
    for node in model.graph.nodes:
        if node.target is _ENTER:
            regions += [[]] if not depth else []
            depth += 1
        if depth:
            regions[-1].append(node)
        elif node.target is _FLEX:
            regions.append([node, *node.users])
        depth -= node.target is _LEAVE
    return regions


def _inline(model: GraphModule, region: list[Node]) -> None:
    inside = set(region)
    constants = [node for node in region if node.op == "get_attr"]
    for node in constants:
        region[0].prepend(node)
        inside.remove(node)
    operators = [node for node in region if node in inside]
    read = dict.fromkeys(arg for node in operators for arg in node.all_input_nodes if arg not in inside)
    graphs = {node: getattr(model, str(node.target)) for node in read if "val" not in node.meta}  # e.g. for torch.no_grad()
    inputs = [node for node in read if node not in graphs]
    results = [node for node in operators if any(user not in inside for user in node.users)]

    def compute(*tensors: Any) -> tuple[Any, ...]:
        values: dict[Node, Any] = graphs | dict(zip(inputs, tensors, strict=True))
        for node in operators:
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            target: Any = math_attention if node.target is _FLEX else node.target
            values[node] = target(*args, **kwargs)
        return tuple(values[node] for node in results)

    outputs = AtenBuilder(model, results[0 if region[0].target is _FLEX else -1]).inline(compute, *inputs) if results else ()
    for node, new in zip(results, outputs, strict=True):
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user not in inside)
    for node in reversed(operators):
        model.graph.erase_node(node)
