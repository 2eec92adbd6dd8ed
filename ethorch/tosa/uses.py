"""Who makes a value and who reads it, while a graph is changed."""

from __future__ import annotations

from ethorch.tosa.ir import Graph, Op, Value


class Context:
    """Who produces a value and how many read it, while rules run."""

    def __init__(self, graph: Graph):
        self.producer = {id(value): op for op in graph.ops for value in op.results}
        self.uses: dict[int, int] = {}
        for value in [*(v for op in graph.ops for v in op.operands), *graph.outputs]:
            self.uses[id(value)] = self.uses.get(id(value), 0) + 1

    def before(self, value: Value, name: str, *, sole: bool = True) -> Op | None:
        """The operator ``name`` that makes ``value``, if there is one, and if it has this reader only."""
        op = self.producer.get(id(value))
        return op if op and op.name == name and (not sole or self.uses[id(value)] == 1) else None


def drop_dead(graph: Graph) -> None:
    """Remove the operators that no output depends on."""
    live = {id(value) for value in graph.outputs}
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if any(id(value) in live for value in op.results):
            kept.append(op)
            live.update(id(value) for value in op.operands)
    graph.ops = kept[::-1]
