from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch.fx import Node

from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, op_name, origin_of
from ethorch.support.errors import Reason

_INPUT, _OUTPUT = "graph.input_not_quantized", "graph.output_not_quantized"


def is_consequence(reason: Reason) -> bool:
    """Return True if the operator was refused because a neighbor is not quantized."""
    return reason.id in (_INPUT, _OUTPUT)


def root_causes(refusals: Mapping[Node, Reason]) -> dict[Node, Reason]:
    """Return the refusals. A refusal caused by a float neighbor includes the reason why that neighbor stays on the CPU."""
    return {node: _explain(node, reason, refusals) for node, reason in refusals.items()}


def _explain(node: Node, reason: Reason, refusals: Mapping[Node, Reason]) -> Reason:
    if not is_consequence(reason):
        return reason
    seen = {node}
    edge = list(_neighbors(node, reason.id))
    while edge:
        neighbor = edge.pop(0)
        if neighbor in seen or op_name(neighbor.target) in QUANTIZE | DEQUANTIZE:
            continue
        seen.add(neighbor)
        cause = refusals.get(neighbor)
        if cause is None:
            continue
        if is_consequence(cause):
            edge += _neighbors(neighbor, cause.id)
            continue
        relation = "the operator reads" if reason.id == _INPUT else "the float result is read by"
        return Reason(
            reason.id, f"{relation} {origin_of(neighbor)}, which stays on the CPU: {cause.text} [{cause.id}]", cause.remedy
        )
    return reason


def _neighbors(node: Node, id: str) -> Iterable[Node]:
    return node.all_input_nodes if id == _INPUT else list(node.users)
