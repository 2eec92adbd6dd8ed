"""Replace float64 and complex128, e.g. in rotary embeddings, with float32 and complex64."""

from __future__ import annotations

from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node, map_arg
from torch.utils import _pytree as pytree

from ethorch.lower.fx.aten_builder import constant
from ethorch.lower.fx.node import is_in_place, tensor_of
from ethorch.quantization.passes.cleanup import remove_no_ops
from ethorch.quantization.passes.context import PassContext

_NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def narrow_doubles(graph_module: GraphModule, context: PassContext) -> None:
    """Narrow float64 and complex128 to float32 and complex64, except in excluded nodes and program outputs."""
    graph, changed = graph_module.graph, set[Node]()
    mode = detect_fake_mode([node.meta["val"] for node in graph.nodes if "val" in node.meta])
    output = graph.output_node()
    for node in list(graph.nodes):
        if node.op == "get_attr" and _is_double(node) and not any(map(is_in_place, node.users)):
            tensor = tensor_of(graph_module, node)
            if tensor is not None and not isinstance(tensor, torch.nn.Parameter):
                with graph.inserting_after(node):
                    narrow = constant(graph_module, tensor.to(_NARROW[tensor.dtype]), mode, node.meta)
                node.replace_all_uses_with(narrow, delete_user_cb=lambda user: user is not output and not context.is_excluded(user))
                changed.add(narrow)
        elif (
            node.op == "call_function"
            and "val" in node.meta
            and not context.is_excluded(node)
            and (_is_double(node) or not changed.isdisjoint(node.all_input_nodes))
        ):
            node.args, node.kwargs = pytree.tree_map(_narrow_dtype, (node.args, node.kwargs))
            args, kwargs = map_arg((node.args, node.kwargs), lambda arg: arg.meta.get("val"))
            assert mode is not None
            with mode:
                value = node.target(*args, **kwargs)
            changed.add(node)
            if isinstance(value, torch.Tensor) and value.dtype != node.meta["val"].dtype and output in node.users:
                with graph.inserting_after(node):
                    cast = graph.call_function(torch.ops.aten.to.dtype, (node, node.meta["val"].dtype))
                cast.meta = dict(node.meta)
                output.replace_input_with(node, cast)
            node.meta["val"] = value
    if changed:
        remove_no_ops(graph_module, context)


def _is_double(node: Node) -> bool:
    return any(isinstance(value, torch.Tensor) and value.dtype in _NARROW for value in pytree.tree_leaves(node.meta.get("val")))


def _narrow_dtype(value: Any) -> Any:
    return _NARROW.get(value, value) if isinstance(value, torch.dtype) else value
