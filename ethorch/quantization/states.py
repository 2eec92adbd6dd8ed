"""Share one observer between all reads and writes of a mutable buffer.

With different scales, every call would requantize the old entries of a cache.
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

#: A position that torchao annotates: a node's result, or an edge (argument, reader).
Place = Node | tuple[Node, Node]


def share_states(model: GraphModule, nodes: Sequence[Node]) -> None:
    """Share one observer between the readers of a written buffer, the written value, and the intermediate values between them.

    A buffer is skipped if its reads and writes have different dtypes, if ranges are dynamic, or if the written value is not
    quantized. A program input written unmodified to a buffer is quantized like that buffer.

    Args:
        model: Annotated graph in which ``copy_`` nodes write the buffers.
    """
    numbers = {node: number for number, node in enumerate(nodes)}

    def order(place: Place) -> tuple[int, int]:
        # torchao creates observers in this order. Only existing observers can be shared.
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
        places += _find_carriers(written, set(readers))
        leaders = sorted({place for place in map(_leader, [*places, written]) if place is not None}, key=order)
        specs = [_spec(place) for place in leaders]
        plain = next((spec for spec in specs if type(spec) is QuantizationSpec), None)
        if plain is None or plain.is_dynamic or len({dtype_of(spec) for spec in specs if spec is not None}) > 1:
            continue
        first, *rest = leaders
        _annotate(first, dataclasses.replace(plain))
        for place in rest:
            _annotate(place, SharedQuantizationSpec(first))


def _find_carriers(written: Node, buffers: Set[Node]) -> list[Place]:
    reaches: dict[Node, bool] = {}
    carriers: list[Place] = []

    def follow(node: Node) -> bool:
        stack = [node]
        while stack:
            at = stack[-1]
            sources = _holders(at)
            waiting = [source for source in sources if source not in reaches]
            if at in reaches or at in buffers or not waiting:
                stack.pop()
                if at not in reaches:
                    matches = [source for source in sources if reaches.get(source)]
                    reaches[at] = at in buffers or bool(matches)
                    carriers.extend([at, *((source, at) for source in matches)] if matches else [])
            else:
                stack += waiting
        return reaches[node]

    follow(written)
    return carriers


def _holders(node: Node) -> list[Node]:
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
    spec = _spec(place)
    while isinstance(spec, SharedQuantizationSpec):
        place = spec.edge_or_node
        spec = _spec(place)
    return None if spec is None else place
