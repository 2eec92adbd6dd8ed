"""Rows that the CPU picks, picked as codes: of a quantized table it would dequantize every row, at each inference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ethorch.fx.node import DEQUANTIZE, QUANTIZE, Converted, is_int64, op_name
from ethorch.ops.spec import find
from ethorch.tosa.limits import Limits


def picked_from_codes(program: ExportedProgram | Converted, limits: Mapping[str, Limits]) -> list[Node]:
    """Operators that pick elements of a dequantized tensor by indices (embedding, index, gather), and may stay on the CPU."""
    absent = "GATHER" in limits and not limits["GATHER"].present

    def may_stay(node: Node) -> bool:
        return absent or any(map(is_int64, node.all_input_nodes))

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


def _dequantized(node: Node) -> Node | None:
    """The dequantize node of one scale that a picking operator reads, as its first operand."""
    spec = find(node.target)
    source = node.args[0] if spec is not None and spec.needs == "GATHER" else None
    name = op_name(source.target) if isinstance(source, Node) and source.op == "call_function" else ""
    return source if name in DEQUANTIZE and "per_channel" not in name else None  # type: ignore[return-value]
