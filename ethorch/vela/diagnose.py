"""When Vela declines a graph: which of its operators it declines on their own, and where they come from."""

from __future__ import annotations

from collections.abc import Iterator

from ethorch import vela
from ethorch.support.errors import VelaError
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.tosa.ir import NOWHERE, Graph, Op, Value
from ethorch.tosa.serialize import serialize

#: Vela 5.2's words for a delegate of more than 16 MiB of commands, which the NPU cannot address.
STREAM_TOO_LONG = "command stream exceeds the hardware limit"


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


def first_refused(graph: Graph, spec: EthosUCompileSpec) -> tuple[Op, str] | None:
    """(operator, Vela's words): Vela takes the graph as far as before this operator, and no further. Found by halving."""

    def refusal(count: int) -> str:
        """Vela's words for the first ``count`` operators, or nothing."""
        ops = graph.ops[:count]
        read = {id(value) for op in ops for value in op.operands}
        ends = [value for op in ops for value in op.results if id(value) not in read or value in graph.outputs]
        inputs = [value for value in graph.inputs if id(value) in read]
        try:
            vela.compile(serialize(Graph(inputs=inputs, outputs=ends, ops=ops)), spec)
        except VelaError as error:
            return str(error)
        return ""

    low, high, words = 0, len(graph.ops), refusal(len(graph.ops))  # taken with ``low`` operators, refused with ``high``
    while words and high - low > 1:
        middle = (low + high) // 2
        found = refusal(middle)
        low, high, words = (low, middle, found) if found else (middle, high, words)
    return (graph.ops[high - 1], words) if words else None


def explained(error: VelaError, graph: Graph, spec: EthosUCompileSpec) -> VelaError:
    """The error with the user's operators named, in its text and in ``declined``, as far as they can be told."""
    found, too_long = list(refused(graph, spec)), None
    names = "; ".join(sorted({f"{op.name} of {op.result.origin}" for op, _ in found}))
    text = f"{error} Vela declines these by themselves: {names}."
    if not found:
        text = f"{error} Vela takes each operator of the graph by itself; it is their combination."
        last = first_refused(graph, spec)
        if last is not None:
            found = [last]
            too_long = last[0].result.origin if STREAM_TOO_LONG in str(error) and last[0].result.origin != NOWHERE else None
            text += f" It takes what is before {last[0].name} of {last[0].result.origin}."
    text += " Keep an operator on the CPU with EthosUPartitioner(..., additional_checks=[...])."
    return VelaError(text, {op.result.origin: words for op, words in found if op.result.origin != NOWHERE}, too_long)
