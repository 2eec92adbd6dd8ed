"""Rows that the CPU picks or replaces, as codes: of a quantized table it would dequantize every row, at each inference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, Converted, is_float, is_int64, op_name
from ethorch.lower.ops.spec import find
from ethorch.tosa.limits import Limits


def picked_from_codes(program: ExportedProgram | Converted, limits: Mapping[str, Limits]) -> list[Node]:
    """Operators that pick or replace elements of a dequantized tensor by indices, and may stay on the CPU.

    Embedding, index and gather pick; index_put and index_copy replace, where all that they read is dequantized.
    """
    absent = {name for name in ("GATHER", "SCATTER") if name in limits and not limits[name].present}

    def may_stay(node: Node) -> bool:
        spec = find(node.target)
        return (spec is not None and spec.needs in absent) or any(map(is_int64, node.all_input_nodes))

    return [node for node in program.graph.nodes if node.op == "call_function" and _dequantized(node) and may_stay(node)]


def pick_codes(program: ExportedProgram | Converted, nodes: Iterable[Node]) -> None:
    """Let each of the nodes, which are some of ``picked_from_codes``, read the codes, and its readers dequantize what it picked.

    A quantize node behind it that has the same parameters goes: the codes are there.
    """
    graph = program.graph
    for node in nodes:
        dequantize = _dequantized(node)
        assert dequantize is not None
        codes, parameters = dequantize.args[0], dequantize.args[1:]
        assert isinstance(codes, Node)
        for others in [arg for arg in node.all_input_nodes if arg is not dequantize and is_float(arg)]:
            node.replace_input_with(others, _codes_in(graph, others, dequantize))
        with graph.inserting_after(node):
            back = graph.create_node("call_function", dequantize.target, (node, *parameters), dict(dequantize.kwargs))
        back.meta = dict(node.meta)
        node.replace_all_uses_with(back, delete_user_cb=lambda user, back=back: user is not back)  # type: ignore[misc]
        node.replace_input_with(dequantize, codes)
        node.meta["val"] = torch.empty_like(node.meta["val"], dtype=codes.meta["val"].dtype)
        for user in list(back.users):
            if op_name(user.target) in QUANTIZE and user.args[1:] == parameters:
                user.replace_all_uses_with(node)
                graph.erase_node(user)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def _codes_in(graph: Graph, others: Node, like: Node) -> Node:
    """The codes of what a dequantize node gives, in the scale of another one."""
    codes = others.args[0]
    assert isinstance(codes, Node)
    if others.args[1:] == like.args[1:]:
        return codes
    quantize: Any = torch.ops.quantized_decomposed.quantize_per_tensor.default
    with graph.inserting_after(others):
        made = graph.call_function(quantize, (others, *like.args[1:]))
    made.meta = {**others.meta, "val": torch.empty_like(others.meta["val"], dtype=codes.meta["val"].dtype)}
    return made


def _dequantized(node: Node) -> Node | None:
    """The dequantize node of one scale that the operator picks from or replaces elements of: its first operand."""
    spec = find(node.target)
    picks = spec is not None and spec.needs == "GATHER"
    replaces = spec is not None and spec.needs == "SCATTER" and spec.rule(node).replaces
    source = node.args[0] if picks or replaces else None
    if not isinstance(source, Node) or not _per_tensor(source) or (replaces and not _stays_in_scale(node, source)):
        return None
    return source


def _stays_in_scale(node: Node, source: Node) -> bool:
    """Is the result quantized as ``source``, and nothing added up? Then replacing codes gives the bits of replacing floats."""
    floats = [arg for arg in node.all_input_nodes if is_float(arg)]
    quantized = all(op_name(user.target) in QUANTIZE and user.args[1:] == source.args[1:] for user in node.users)
    return quantized and all(map(_per_tensor, floats)) and True not in [arg for arg in node.args if isinstance(arg, bool)]


def _per_tensor(node: Node) -> bool:
    """Is it a dequantize node of one scale?"""
    name = op_name(node.target) if node.op == "call_function" else ""
    return name in DEQUANTIZE and "per_channel" not in name
