"""What really keeps an operator on the CPU: not that its neighbour is float, but why the neighbour is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch.fx import Node

from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, op_name, origin_of
from ethorch.support.errors import Reason

_INPUT, _OUTPUT = "graph.input_not_quantized", "graph.output_not_quantized"


def is_consequence(reason: Reason) -> bool:
    """Return True if the reason is a neighbor that is not quantized."""
    return reason.id in (_INPUT, _OUTPUT)


def root_causes(refusals: Mapping[Node, Reason]) -> dict[Node, Reason]:
    """The refusals, where a neighbour's reason in place of "it is float" for those that another refusal explains."""
    return {node: _explained(node, reason, refusals) for node, reason in refusals.items()}


def _explained(node: Node, reason: Reason, refusals: Mapping[Node, Reason]) -> Reason:
    if not is_consequence(reason):
        return reason
    seen = {node}
    edge = list(_neighbours(node, reason.id))
    while edge:
        found = edge.pop(0)
        if found in seen or op_name(found.target) in QUANTIZE | DEQUANTIZE:
            continue
        seen.add(found)
        cause = refusals.get(found)
        if cause is None:
            continue
        if is_consequence(cause):
            edge += _neighbours(found, cause.id)
            continue
        what = "its input comes from" if reason.id == _INPUT else "its float result goes to"
        return Reason(reason.id, f"{what} {origin_of(found)}, which stays on the CPU: {cause.text} [{cause.id}]", cause.way_out)
    return reason


def _neighbours(node: Node, id: str) -> Iterable[Node]:
    return node.all_input_nodes if id == _INPUT else list(node.users)
