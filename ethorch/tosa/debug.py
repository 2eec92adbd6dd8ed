"""Debug records of a TOSA graph, in the formats of ExecuTorch's Arm backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ethorch.tosa.ir import Graph, Op, Value

Record = dict[str, Any]


def event_of(op: Op, number: int) -> Record:
    """Return the debug record of an operator, with ``number`` as the ``event_id``."""
    origin = op.result.origin
    return {
        "event_id": number,
        "aten_info": {"node_name": origin.node, "operator_name": origin.target},
        "torch_info": {"stack_trace": [origin.source] if origin.source else [], "nn_module_stack": origin.module},
    }


def events(graph: Graph, start: int = 0) -> list[Record]:
    """Return the debug record of each operator of a graph and its regions, with the TOSA operator as ``tosa_info``.

    ``start`` is the first ``event_id``.
    """
    ops = [op for region in graph.regions() for op in region.ops]
    return [
        event_of(op, number) | {"tosa_info": {"node_name": op.result.name, "operator_name": op.name}}
        for number, op in enumerate(ops, start)
    ]


def as_data(graph: Graph) -> Record:
    """Return the graph as dicts and lists, nested as in a TOSA flatbuffer."""
    return {"regions": [{"name": region.name, "blocks": [_block(region)]} for region in graph.regions()]}


def _block(graph: Graph) -> Record:
    tensors = {value.name: value for value in _values(graph)}
    return {
        "name": graph.name,
        "inputs": [value.name for value in graph.inputs],
        "outputs": [value.name for value in graph.outputs],
        "tensors": [{"name": name, "shape": list(value.shape), "type": value.dtype} for name, value in tensors.items()],
        "operators": [_operator(op) for op in graph.ops],
    }


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    for op in graph.ops:
        yield from (*op.operands, *op.results)


def _operator(op: Op) -> Record:
    return {
        "op": op.name,
        "inputs": [value.name for value in op.operands],
        "outputs": [value.name for value in op.results],
        "attributes": {key: value.name if isinstance(value, Graph) else value for key, value in op.attrs.items()},
    }
