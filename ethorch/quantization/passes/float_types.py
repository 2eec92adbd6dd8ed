"""Replace float64 (e.g. in rotary embeddings), bfloat16 and complex128."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node, map_arg
from torch.utils import _pytree as pytree

from ethorch.lower.fx.aten_builder import constant
from ethorch.lower.fx.control_flow import is_control_flow
from ethorch.lower.fx.node import is_in_place, leave_out, tensor_of
from ethorch.quantization.passes.cleanup import remove_no_ops
from ethorch.quantization.passes.context import PassContext

#: ExecuTorch's quantize and dequantize kernels do not support bfloat16.
_REPLACED = {torch.float64: torch.float32, torch.bfloat16: torch.float32, torch.complex128: torch.complex64}


def convert_float_types(graph_module: GraphModule, context: PassContext) -> None:
    """Replace types, except in program outputs and excluded nodes, for which casts are inserted."""
    graph, changed = graph_module.graph, set[Node]()
    mode = detect_fake_mode([node.meta["val"] for node in graph.nodes if "val" in node.meta])

    def keeps_type(node: Node) -> bool:
        if node.target is operator.getitem:
            return node.all_input_nodes[0] not in changed
        return node.op == "output" or is_control_flow(node) or is_in_place(node) or context.is_excluded(node)

    for node in list(graph.nodes):
        if node.op == "get_attr" and _has_replaced_type(node) and not any(map(is_in_place, node.users)):
            tensor = tensor_of(graph_module, node)
            if tensor is not None and not isinstance(tensor, torch.nn.Parameter):
                with graph.inserting_after(node):
                    replacement = constant(graph_module, tensor.to(_REPLACED[tensor.dtype]), mode, node.meta)
                node.replace_all_uses_with(replacement, delete_user_cb=lambda user: not keeps_type(user))
                changed.add(replacement)
        elif node.op == "call_function" and "val" in node.meta and not keeps_type(node):
            inputs = [arg for arg in node.all_input_nodes if _has_replaced_type(arg)]
            if not inputs and not _has_replaced_type(node) and changed.isdisjoint(node.all_input_nodes):
                continue
            for arg in inputs:
                with graph.inserting_before(node):
                    node.replace_input_with(arg, _cast(arg, _REPLACED[arg.meta["val"].dtype]))
            node.args, node.kwargs = pytree.tree_map(_replace_dtype, (node.args, node.kwargs))
            args, kwargs = map_arg((node.args, node.kwargs), lambda arg: arg.meta.get("val"))
            assert mode is not None
            before = node.meta["val"]
            with mode:
                node.meta["val"] = node.target(*args, **kwargs)
            changed.add(node)
            users = [user for user in node.users if keeps_type(user)]
            if isinstance(before, torch.Tensor) and before.dtype != node.meta["val"].dtype and users:
                with graph.inserting_after(node):
                    cast = _cast(node, before.dtype)
                for user in users:
                    user.replace_input_with(node, cast)
    if changed:
        remove_no_ops(graph_module, context)


def _cast(node: Node, dtype: torch.dtype) -> Node:
    cast = node.graph.call_function(torch.ops.aten.to.dtype, (node, dtype))
    cast.meta = {**node.meta, "val": node.meta["val"].to(dtype)}
    leave_out(cast)
    return cast


def _has_replaced_type(node: Node) -> bool:
    return any(
        isinstance(tensor, torch.Tensor) and tensor.dtype in _REPLACED for tensor in pytree.tree_leaves(node.meta.get("val"))
    )


def _replace_dtype(argument: Any) -> Any:
    return _REPLACED.get(argument, argument) if isinstance(argument, torch.dtype) else argument
