"""Concatenations: what only a concatenation reads gets the concatenation's qparams.

It would be rounded twice otherwise, once to qparams of its own and once to those of the result, by a RESCALE that is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.fx import Node
from torchao.quantization.pt2e.quantizer import QuantizationSpec, SharedQuantizationSpec

from ethorch.ops.spec import find
from ethorch.quantizer.specs import ANNOTATION


def join(nodes: Sequence[Node], is_absorbed: Callable[[Node], bool]) -> None:
    """Let what only a concatenation reads share its observer. All nodes of a group share the observer of the first one.

    Args:
        nodes: of the graph, in order; annotated.
        is_absorbed: is a node's result observed one node later, behind a clamp?
    """
    groups: list[set[Node]] = []
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
        found = [_observed(arg) for arg in annotation.input_qspec_map]
        alike = len({part for part, _ in found}) == 1  # one tensor and what was moved or pooled of it
        parts = {part for part, alone in found if part and (alone or alike)}
        group = {whole} | {part for part in parts if part.meta[ANNOTATION].output_qspec == qspec}
        for other in [other for other in groups if other & group]:
            group |= other
            groups.remove(other)
        groups.append(group)
    place = {node: number for number, node in enumerate(nodes)}
    for group in groups:
        first, *rest = sorted(group, key=place.__getitem__)
        for node in rest:
            node.meta[ANNOTATION].output_qspec = SharedQuantizationSpec(first)


def _observed(value: Node) -> tuple[Node | None, bool]:
    """(the node whose observer gives ``value`` its qparams, followed through moved data; does nobody else read it?)"""
    alone = True
    while ANNOTATION in value.meta:
        alone = alone and len(value.users) == 1
        qspec = value.meta[ANNOTATION].output_qspec
        if not isinstance(qspec, SharedQuantizationSpec):
            return (value if qspec is not None else None), alone
        shared = qspec.edge_or_node
        if not isinstance(shared, tuple) or shared[1] is not value:
            break
        value = shared[0]
    return None, False
