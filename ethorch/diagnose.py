"""When Vela declines a graph: which of its operators it declines on their own, and where they come from."""

from __future__ import annotations

from collections.abc import Iterator

from ethorch import vela
from ethorch.compile_spec import EthosUCompileSpec
from ethorch.errors import VelaError
from ethorch.tosa.flatbuffer import serialize
from ethorch.tosa.ir import Graph, Op, Value


def alone(op: Op) -> Graph:
    """A graph of this operator only: its constants as they are, its other operands as inputs."""
    graph = Graph()
    operands: list[Value] = []
    seen: dict[int, Value] = {}
    for operand in op.operands:
        if not operand.is_const and id(operand) not in seen:
            seen[id(operand)] = Value(operand.name, operand.shape, operand.dtype)
            graph.inputs.append(seen[id(operand)])
        operands.append(operand if operand.is_const else seen[id(operand)])
    results = tuple(Value(value.name, value.shape, value.dtype) for value in op.results)
    graph.ops.append(Op(op.name, tuple(operands), op.attrs, results))
    graph.outputs += results
    return graph


def refused(graph: Graph, spec: EthosUCompileSpec) -> Iterator[tuple[Op, str]]:
    """(operator, Vela's words) for each operator of the graph that Vela declines by itself; each kind is tried once."""
    verdicts: dict[str, str] = {}
    for op in graph.ops:
        operands = [(value.shape, value.dtype, value.is_const) for value in op.operands]
        kind = f"{op.name} {operands} {sorted(op.attrs.items())}"
        if kind not in verdicts:
            verdicts[kind] = ""
            try:
                vela.compile(serialize(alone(op)), spec)
            except VelaError as error:
                verdicts[kind] = str(error)
        if verdicts[kind]:
            yield op, verdicts[kind]


def explained(error: VelaError, graph: Graph, spec: EthosUCompileSpec) -> VelaError:
    """The error with the user's operators named, as far as they can be told."""
    found = {f"{op.name} of {op.result.origin}" for op, _ in refused(graph, spec)}
    if found:
        names = "; ".join(sorted(found))
        text = f"{error} Vela declines these by themselves: {names}."
    else:
        text = f"{error} Vela takes each operator of the graph by itself; it is their combination."
    return VelaError(f"{text} Keep an operator on the CPU with EthosUPartitioner(..., additional_checks=[...]).")
