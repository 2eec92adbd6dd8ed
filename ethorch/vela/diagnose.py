"""Find the operators that cause Vela to reject a graph, and their source locations."""

from __future__ import annotations

from collections.abc import Iterator

from ethorch import vela
from ethorch.support.errors import VelaError
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.tosa.ir import NOWHERE, Graph, Op, Value
from ethorch.tosa.serialize import serialize

#: Error text of Vela 5.2 if a command stream exceeds 16 MiB.
STREAM_TOO_LONG = "command stream exceeds the hardware limit"


def isolate(op: Op) -> Graph:
    """Return a graph that contains only ``op``, with its non-constant operands as inputs."""
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


def find_refused(graph: Graph, spec: EthosUCompileSpec) -> Iterator[tuple[Op, str]]:
    """Yield each operator that Vela rejects in isolation, with Vela's message. Compile identical operators only once."""
    verdicts: dict[str, str] = {}
    for op in graph.ops:
        operands = [(value.shape, value.dtype, value.is_const) for value in op.operands]
        kind = f"{op.name} {operands} {sorted(op.attrs.items())}"
        if kind not in verdicts:
            verdicts[kind] = ""
            try:
                vela.compile(serialize(isolate(op)), spec)
            except VelaError as error:
                verdicts[kind] = str(error)
        if verdicts[kind]:
            yield op, verdicts[kind]


def find_first_refused(graph: Graph, spec: EthosUCompileSpec) -> tuple[Op, str] | None:
    """Find the first operator that makes Vela reject the graph, by bisection.

    Returns:
        The operator and Vela's message, or None if Vela accepts the graph.
    """

    def refusal(count: int) -> str:
        ops = graph.ops[:count]
        read = {id(value) for op in ops for value in op.operands}
        ends = [value for op in ops for value in op.results if id(value) not in read or value in graph.outputs]
        inputs = [value for value in graph.inputs if id(value) in read]
        try:
            vela.compile(serialize(Graph(inputs=inputs, outputs=ends, ops=ops)), spec)
        except VelaError as error:
            return str(error)
        return ""

    low, high, words = 0, len(graph.ops), refusal(len(graph.ops))  # accepts the first ``low`` operators, rejects the first ``high``
    while words and high - low > 1:
        middle = (low + high) // 2
        message = refusal(middle)
        low, high, words = (low, middle, message) if message else (middle, high, words)
    return (graph.ops[high - 1], words) if words else None


def explain_refusal(error: VelaError, graph: Graph, spec: EthosUCompileSpec) -> VelaError:
    """Return a copy of ``error`` whose message lists the rejected operators.

    The copy's attribute ``declined`` maps the operators' source locations to Vela's messages.
    """
    operators, too_long = list(find_refused(graph, spec)), None
    names = "; ".join(sorted({f"{op.name} of {op.result.origin}" for op, _ in operators}))
    text = f"{error} Vela rejects these operators individually: {names}."
    if not operators:
        text = f"{error} Vela accepts each operator of the graph individually, but not their combination."
        last = find_first_refused(graph, spec)
        if last is not None:
            operators = [last]
            too_long = last[0].result.origin if STREAM_TOO_LONG in str(error) and last[0].result.origin != NOWHERE else None
            text += f" It accepts the operators before {last[0].name} of {last[0].result.origin}."
    text += " Keep an operator on the CPU with EthosUPartitioner(..., additional_checks=[...])."
    return VelaError(text, {op.result.origin: words for op, words in operators if op.result.origin != NOWHERE}, too_long)
