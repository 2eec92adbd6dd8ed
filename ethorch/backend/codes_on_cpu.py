"""Gather and scatter integer values on the CPU instead of dequantizing whole tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from ethorch.lower.fx.node import CASTS, DEQUANTIZE, QUANTIZE, Converted, is_float, is_int64, op_name
from ethorch.lower.ops.spec import find
from ethorch.tosa.limits import Limits

#: Operators whose CPU kernels require an int64 index, their third argument.
_WIDE_INDICES = frozenset({"aten.gather.default", "aten.scatter.src", "aten.scatter.value"})


def find_picks(program: ExportedProgram | Converted, limits: Mapping[str, Limits]) -> list[Node]:
    """Return the gathers and scatters of dequantized tensors that might stay on the CPU.

    Scatters (such as index_put and index_copy) must keep the tensor's quantization parameters.
    """
    absent = {name for name in ("GATHER", "SCATTER") if name in limits and not limits[name].present}

    def may_stay(node: Node) -> bool:
        spec = find(node.target)
        return (spec is not None and spec.needs in absent) or any(map(is_int64, node.all_input_nodes))

    return [node for node in program.graph.nodes if node.op == "call_function" and _dequantize_of(node) and may_stay(node)]


def pick_codes(program: ExportedProgram | Converted, nodes: Iterable[Node]) -> None:
    """Apply gathers and scatters from ``find_picks`` to integer values, and dequantize the results.

    Remove quantize nodes that undo this dequantization.
    """
    graph = program.graph
    for node in nodes:
        dequantize = _dequantize_of(node)
        assert dequantize is not None
        codes, parameters = dequantize.args[0], dequantize.args[1:]
        assert isinstance(codes, Node)
        for source in [arg for arg in node.all_input_nodes if arg is not dequantize and is_float(arg)]:
            node.replace_input_with(source, _requantize(graph, source, dequantize))
        with graph.inserting_after(node):
            back = graph.create_node("call_function", dequantize.target, (node, *parameters), dict(dequantize.kwargs))
        back.meta = dict(node.meta)
        node.replace_all_uses_with(back, delete_user_cb=lambda user, back=back: user is not back)  # type: ignore[misc]
        node.replace_input_with(dequantize, codes)
        node.meta["val"] = torch.empty_like(node.meta["val"], dtype=codes.meta["val"].dtype)
        for user in list(back.users):
            if op_name(user.target) in QUANTIZE and user.args[1:] == parameters:
                user.replace_all_uses_with(node)
                if isinstance(program, ExportedProgram):
                    program.graph_signature.replace_all_uses(user.name, node.name)
                graph.erase_node(user)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def find_int32_indices(program: ExportedProgram | Converted) -> list[Node]:
    """Return gathers and scatters with an int32 index."""
    return [
        node
        for node in program.graph.nodes
        if op_name(node.target) in _WIDE_INDICES and node.args[2].meta["val"].dtype == torch.int32
    ]


def widen_indices(program: ExportedProgram | Converted, nodes: Iterable[Node]) -> None:
    """Give gathers and scatters the int64 index that ExecuTorch requires."""
    for node in nodes:
        index = node.args[2]
        assert isinstance(index, Node)
        if _narrows(index):
            node.update_arg(2, index.args[0])
            continue
        node.update_arg(2, _widen(program.graph, node, index))
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _widen(graph: Graph, node: Node, index: Node) -> Node:
    value = index.meta["val"]
    target: Any = torch.ops.aten.to.dtype
    args: tuple[Any, ...] = (index, torch.int64)
    options: dict[str, Any] = {}
    if not isinstance(node.target, torch._ops.OpOverload):  # in ExecuTorch's edge dialect
        from executorch.exir.dialects._ops import ops

        target, args = ops.edge.dim_order_ops._to_dim_order_copy.default, (index,)
        options = {"dtype": torch.int64, "dim_order": list(value.dim_order())}
    with graph.inserting_before(node):
        wide = graph.call_function(target, args, options)
    wide.meta = {**index.meta, "val": value.to(torch.int64)}
    return wide


def _narrows(index: Any) -> bool:
    return op_name(index.target) in CASTS and index.meta["val"].dtype == torch.int32 and is_int64(index.args[0])


def _requantize(graph: Graph, dequantize: Node, like: Node) -> Node:
    codes = dequantize.args[0]
    assert isinstance(codes, Node)
    if dequantize.args[1:] == like.args[1:]:
        return codes
    quantize: Any = torch.ops.quantized_decomposed.quantize_per_tensor.default
    with graph.inserting_after(dequantize):
        requantized = graph.call_function(quantize, (dequantize, *like.args[1:]))
    requantized.meta = {**dequantize.meta, "val": torch.empty_like(dequantize.meta["val"], dtype=codes.meta["val"].dtype)}
    return requantized


def _dequantize_of(node: Node) -> Node | None:
    spec = find(node.target)
    picks = spec is not None and spec.needs == "GATHER"
    replaces = spec is not None and spec.needs == "SCATTER" and spec.rule(node).replaces
    source = node.args[0] if picks or replaces else None
    if not isinstance(source, Node) or not _is_per_tensor(source) or (replaces and not _stays_in_scale(node, source)):
        return None
    return source


def _stays_in_scale(node: Node, source: Node) -> bool:
    floats = [arg for arg in node.all_input_nodes if is_float(arg)]
    quantized = all(op_name(user.target) in QUANTIZE and user.args[1:] == source.args[1:] for user in node.users)
    return quantized and all(map(_is_per_tensor, floats)) and True not in [arg for arg in node.args if isinstance(arg, bool)]


def _is_per_tensor(node: Node) -> bool:
    name = op_name(node.target) if node.op == "call_function" else ""
    return name in DEQUANTIZE and "per_channel" not in name
