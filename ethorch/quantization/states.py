"""State: a buffer that the model changes is one quantized value, whoever reads it and whatever is written to it.

A cache that is read in one scale and written in another would be requantized in every step, and its old entries with it. So the
observer that sees a buffer's first reader sees all its readers, and what is written back to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set

from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    QuantizationSpecBase,
    SharedQuantizationSpec,
)

from ethorch.lower.fx.node import is_float
from ethorch.lower.fx.states import writes_of
from ethorch.lower.ops.spec import find
from ethorch.quantization.specs import ANNOTATION, dtype_of

#: What torchao annotates: an operator's result, or (argument, operator that reads it).
Place = Node | tuple[Node, Node]


def share_states(model: GraphModule, nodes: Sequence[Node]) -> None:
    """Let all readers of a buffer that the model changes share one observer with what is written to it.

    So do the values between the two that hold its elements: a cache with one row replaced, and then another. Where they differ in
    dtype, or the value that is written is not quantized, the buffer is left as it is. An input of the program that is written as it
    is (a frame that the next call looks back at) is quantized for it.

    Args:
        model: the annotated graph; its writes are ``copy_`` nodes.
        nodes: of the graph, in order.
    """
    numbers = {node: number for number, node in enumerate(nodes)}

    def order(place: Place) -> tuple[int, int]:
        """Torchao makes observers in this order, and shares only those that it has made."""
        return (numbers[place], 1) if isinstance(place, Node) else (numbers[place[1]], 0)

    for name, write in writes_of(model.graph).items():
        written = write.args[1]
        assert isinstance(written, Node)
        readers = [node for node in nodes if node.op == "get_attr" and str(node.target) == name]
        places: list[Place] = [
            (buffer, user)
            for buffer in readers
            for user in buffer.users
            if ANNOTATION in user.meta and buffer in user.meta[ANNOTATION].input_qspec_map
        ]
        if written.op == "placeholder" and is_float(written) and ANNOTATION not in written.meta and places:
            written.meta[ANNOTATION] = QuantizationAnnotation(output_qspec=_spec(places[0]), _annotated=True)
        if not places or _leader(written) is None:
            continue
        places += _on_the_way(written, set(readers))
        leaders = sorted({place for place in map(_leader, [*places, written]) if place is not None}, key=order)
        specs = [_spec(place) for place in leaders]
        plain = next((spec for spec in specs if type(spec) is QuantizationSpec), None)
        if plain is None or plain.is_dynamic or len({dtype_of(spec) for spec in specs if spec is not None}) > 1:
            continue
        first, *rest = leaders
        _annotate(first, dataclasses.replace(plain))
        for place in rest:
            _annotate(place, SharedQuantizationSpec(first))


def _on_the_way(written: Node, buffers: Set[Node]) -> list[Place]:
    """The values between a buffer and what is written to it that hold its elements, some of them replaced or moved on."""
    reaches: dict[Node, bool] = {}
    found: list[Place] = []

    def follow(node: Node) -> bool:
        """Whether ``node`` holds elements of the buffer. Sources come before what reads them, so that nothing is asked twice."""
        stack = [node]
        while stack:
            at = stack[-1]
            sources = _holders(at)
            waiting = [source for source in sources if source not in reaches]
            if at in reaches or at in buffers or not waiting:
                stack.pop()
                if at not in reaches:
                    held = [source for source in sources if reaches.get(source)]
                    reaches[at] = at in buffers or bool(held)
                    found.extend([at, *((source, at) for source in held)] if held else [])
            else:
                stack += waiting
        return reaches[node]

    follow(written)
    return found


def _holders(node: Node) -> list[Node]:
    """The operands whose elements an operator passes on as they are."""
    spec = find(node.target) if node.op == "call_function" else None
    if spec is None or not is_float(node):
        return []
    rule = spec.rule(node)
    if rule.output == "same" or rule.replaces:
        return [node.args[0]] if node.args and isinstance(node.args[0], Node) else []
    return [arg for arg in node.all_input_nodes if is_float(arg)] if rule.joins else []


def _spec(place: Place) -> QuantizationSpecBase | None:
    node = place if isinstance(place, Node) else place[1]
    annotation = node.meta.get(ANNOTATION)
    if annotation is None:
        return None
    return annotation.output_qspec if isinstance(place, Node) else annotation.input_qspec_map.get(place[0])


def _annotate(place: Place, spec: QuantizationSpecBase) -> None:
    if isinstance(place, Node):
        place.meta[ANNOTATION].output_qspec = spec
    else:
        place[1].meta[ANNOTATION].input_qspec_map[place[0]] = spec


def _leader(place: Place) -> Place | None:
    """The place whose observer this one shares, itself where it has one of its own; None where nothing observes it."""
    spec = _spec(place)
    while isinstance(spec, SharedQuantizationSpec):
        place = spec.edge_or_node
        spec = _spec(place)
    return None if spec is None else place
