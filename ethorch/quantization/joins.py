"""Concatenations: what only a concatenation reads gets the concatenation's qparams.

It would be rounded twice otherwise, once to qparams of its own and once to those of the result, by a RESCALE that is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.fx import Node
from torchao.quantization.pt2e.quantizer import QuantizationSpec, SharedQuantizationSpec

from ethorch.lower.ops.spec import find
from ethorch.quantization.specs import ANNOTATION

Edge = Node | tuple[Node, Node]


def join(nodes: Sequence[Node], is_absorbed: Callable[[Node], bool]) -> None:
    """Let what only a concatenation reads share its observer. All members of a group share the observer of the first one.

    A member is a node whose result is observed, or an edge, (argument, reader), whose argument nothing quantizes: an input of the
    program or a constant.

    Args:
        nodes: of the graph, in order; annotated.
        is_absorbed: is a node's result observed one node later, behind a clamp?
    """
    groups: list[set[Edge]] = []
    for node in nodes:
        spec = find(node.target) if node.op == "call_function" else None
        annotation = node.meta.get(ANNOTATION)
        if spec is None or annotation is None or not spec.rule(node).joins:
            continue
        whole = node
        while is_absorbed(whole):
            (whole,) = whole.users
        qspec = whole.meta[ANNOTATION].output_qspec if ANNOTATION in whole.meta else None
        if type(qspec) is not QuantizationSpec:
            continue
        observed = [_observed(arg, node) for arg in annotation.input_qspec_map]
        alike = len({part for part, _ in observed}) == 1  # one tensor and what was moved or pooled of it
        parts = {part for part, alone in observed if part and (alone or alike)}
        group = {whole} | {part for part in parts if _qspec(part) == qspec}
        for other in [other for other in groups if other & group]:
            group |= other
            groups.remove(other)
        groups.append(group)
    place: dict[Edge, int] = {}  # in the order in which torchao reads them
    for node in nodes:
        annotation = node.meta.get(ANNOTATION)
        for edge in [(arg, node) for arg in annotation.input_qspec_map] if annotation else []:
            place[edge] = len(place)
        place[node] = len(place)
    for group in groups:
        first, *rest = sorted(group, key=place.__getitem__)
        for part in rest:
            shared = SharedQuantizationSpec(first)
            if isinstance(part, Node):
                part.meta[ANNOTATION].output_qspec = shared
            else:
                part[1].meta[ANNOTATION].input_qspec_map[part[0]] = shared


def _qspec(part: Edge) -> object:
    """Return the spec of a member of a group."""
    if isinstance(part, Node):
        return part.meta[ANNOTATION].output_qspec
    return part[1].meta[ANNOTATION].input_qspec_map[part[0]]


def _observed(value: Node, reader: Node) -> tuple[Edge | None, bool]:
    """Return (the member that gives ``value`` its qparams, followed through moved data; True if nothing else reads it)."""
    alone = True
    while True:
        alone = alone and len(value.users) == 1
        annotation = value.meta.get(ANNOTATION)
        produced = annotation.output_qspec if annotation else None
        if produced is None:
            edge = value, reader
            return (edge if type(_qspec(edge)) is QuantizationSpec else None), alone
        if not isinstance(produced, SharedQuantizationSpec):
            return value, alone
        shared, spec = produced.edge_or_node, find(value.target)
        if not isinstance(shared, tuple) or shared[1] is not value or spec is None or spec.rule(value).output != "same":
            return None, False
        value, reader = shared
