"""Check the invariants of TOSA graphs after rewrites and lowerings."""

from __future__ import annotations

from ethorch.tosa.ir import Graph
from ethorch.tosa.opset import OPSET


def verify(graph: Graph) -> None:
    """Raise AssertionError unless names are unique, operands are defined before use, and shapes and dtypes match the opset."""
    names: set[str] = set()
    graphs = [region.name for region in graph.regions()]
    assert len(set(graphs)) == len(graphs), f"two regions have the same name: {graphs}"
    for region in graph.regions():
        _verify_region(region, names)


def _verify_region(graph: Graph, names: set[str]) -> None:
    defined = {id(value) for value in graph.inputs}
    for value in graph.inputs:
        assert value.name not in names, f"two values have the name %{value.name}"
        names.add(value.name)
    for op in graph.ops:
        row = OPSET[op.name]
        for value in op.operands:
            assert value.is_const or id(value) in defined, f"{op.name} reads {value} before it is defined"
        inferred = row.infer(op.operands, op.attrs)
        declared = [(value.shape, value.dtype) for value in op.results]
        assert inferred == declared, f"{op.name} from {op.result.origin}: the opset infers {inferred}, got {declared}"
        for value in op.results:
            assert value.name not in names, f"two values have the name %{value.name}"
            names.add(value.name)
            defined.add(id(value))
    for value in graph.outputs:
        assert value.is_const or id(value) in defined, f"output {value} is never computed"
