"""Share quantization parameters between operators like ``cat`` and inputs that only they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.fx import Node
from torchao.quantization.pt2e.quantizer import QuantizationSpec, SharedQuantizationSpec

from ethorch.lower.ops.spec import find
from ethorch.quantization.specs import ANNOTATION

Edge = Node | tuple[Node, Node]


def join(nodes: Sequence[Node], is_absorbed: Callable[[Node], bool]) -> None:
    """Share the observer of an operator that joins with inputs that only it reads.

    If all inputs of a concatenation view or pool one tensor, the observer is also shared with this tensor. An operator that
    selects elements extends only groups of such operators.

    A group that shares an observer contains observed nodes, and edges (argument, reader) whose argument is not observed, e.g. a
    program input. The group uses the observer of its first member.

    Args:
        is_absorbed: Predicate for nodes that absorb a clamp. Their observers are placed after the clamp.
    """
    groups: list[set[Edge]] = []
    others: set[Edge] = set()  # members of groups that may contain tensors with other readers
    for node in nodes:
        spec = find(node.target) if node.op == "call_function" else None
        annotation = node.meta.get(ANNOTATION)
        rule = None if spec is None else spec.rule(node)
        if rule is None or annotation is None or not rule.joins:
            continue
        end = node
        while is_absorbed(end):
            (end,) = end.users
        qspec = end.meta[ANNOTATION].output_qspec if ANNOTATION in end.meta else None
        if type(qspec) is not QuantizationSpec:
            continue
        sources = [_find_source(arg, node) for arg in annotation.input_qspec_map]
        alike = not rule.selects and len({part for part, _ in sources}) == 1  # views or pooled values of one tensor
        parts = {part for part, alone in sources if part and (alone or alike)}
        group = {end} | {part for part in parts if _qspec(part) == qspec and not (rule.selects and part in others)}
        for overlapping in [members for members in groups if members & group]:
            group |= overlapping
            groups.remove(overlapping)
        groups.append(group)
        if not rule.selects or group & others:
            others |= group
    place: dict[Edge, int] = {}  # positions of the members in torchao's order
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
    if isinstance(part, Node):
        return part.meta[ANNOTATION].output_qspec
    return part[1].meta[ANNOTATION].input_qspec_map[part[0]]


def _find_source(value: Node, reader: Node) -> tuple[Edge | None, bool]:
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
