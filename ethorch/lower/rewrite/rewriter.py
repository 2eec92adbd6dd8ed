"""An editor of TOSA graphs that tracks the producer and readers of each value.

Unused operators remain until ``drop_dead`` is called, so that a rewrite can still read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy.typing as npt

from ethorch.tosa.ir import Graph, Op, Origin, Value
from ethorch.tosa.opset import OPSET

T = TypeVar("T")
#: Function that inserts operators that read a value, and returns the last result.
Emit = Callable[["Place", Value], Value]


class Names:
    def __init__(self, graph: Graph):
        regions = list(graph.regions())
        values_of_ops = (value for region in regions for op in region.ops for value in (*op.operands, *op.results))
        self._used = {value.name for values in (values_of_ops, *(region.inputs for region in regions)) for value in values}
        self._counts: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        """Return ``base`` if it is unused, or the first unused name among ``base_1``, ``base_2``, ..."""
        name = base
        while name in self._used:
            self._counts[base] = count = self._counts.get(base, 0) + 1
            name = f"{base}_{count}"
        self._used.add(name)
        return name


class Rewriter:
    """An editor of ``graph``. The list ``graph.ops`` changes only in ``finish``.

    Args:
        graph: Graph or region, excluding nested regions.
        names: Names used in the whole graph. Default: the names of ``graph``.
        is_region: Whether ``graph`` is a region of a COND_IF or WHILE_LOOP.
    """

    def __init__(self, graph: Graph, names: Names | None = None, *, is_region: bool = False):
        self.graph, self.is_region = graph, is_region
        self.names = names or Names(graph)
        self.changes = 0  # number of insertions, changes and removals
        self._analyses: dict[Callable[[Rewriter], Any], tuple[int, Any]] = {}
        self._outputs = set(graph.outputs)
        self._producers: dict[Value, Op] = {}
        self._readers: dict[Value, list[Op]] = {}
        # Circular linked list of operators, with None between the last and the first.
        self._next: dict[Op | None, Op | None] = {None: None}
        self._previous: dict[Op | None, Op | None] = {None: None}
        for op in graph.ops:
            self._place(op, None)
        self.changes = 0

    def finish(self) -> Graph:
        """Write the operators to the graph, and return it."""
        self.graph.ops = list(self)
        return self.graph

    # --- queries ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Op]:
        """Iterate over the operators in order. Skip operators erased during the iteration."""
        ops: list[Op] = []
        op = self._next[None]
        while op is not None:
            ops.append(op)
            op = self._next[op]
        return (op for op in ops if op in self._next)

    def select(self, *names: str) -> Iterator[Op]:
        return (op for op in self if op.name in names)

    def producer(self, value: Value, *names: str, sole: bool = False) -> Op | None:
        """Return the operator named in ``names`` that computes ``value``, or None. Empty ``names`` match all operators.

        If ``sole`` is True, ``value`` must have only one use, as an operand or graph output.
        """
        op = self._producers.get(value)
        fits = op is not None and (not names or op.name in names) and (not sole or self.uses(value) == 1)
        return op if fits else None

    def readers(self, value: Value) -> Sequence[Op]:
        """Return the operators that read ``value``, with one entry per operand that is ``value``."""
        return tuple(self._readers.get(value, ()))

    def is_output(self, value: Value) -> bool:
        return value in self._outputs

    def uses(self, value: Value) -> int:
        """Count the operands and graph outputs that are ``value``."""
        return len(self._readers.get(value, ())) + (self.graph.outputs.count(value) if value in self._outputs else 0)

    def analyze(self, compute: Callable[[Rewriter], T]) -> T:
        """Return ``compute(self)``, cached until the graph changes."""
        cached = self._analyses.get(compute)
        if cached is None or cached[0] != self.changes:
            cached = self._analyses[compute] = self.changes, compute(self)
        return cast("T", cached[1])

    # --- changes ------------------------------------------------------------------------------------------------------

    def before(self, op: Op, *, of: Value | None = None) -> Place:
        """Return the position before ``op``.

        Args:
            of: Value whose name prefixes the names of inserted values. Default: the first result of ``op``.
        """
        of = of or op.results[0]
        return Place(self, op, of.name, of.origin)

    def after(self, op: Op) -> Place:
        return Place(self, self._next[op], op.results[0].name, op.results[0].origin)

    def read(self, op: Op, index: int, value: Value) -> None:
        self._readers[op.operands[index]].remove(op)
        self._readers.setdefault(value, []).append(op)
        op.operands = (*op.operands[:index], value, *op.operands[index + 1 :])
        self.changes += 1

    def replace(self, op: Op, value: Value) -> None:
        """Erase ``op``, and let the producer of ``value`` compute the result of ``op``. ``value`` must be unused."""
        assert not self.uses(value), f"expected an unused value to replace {op.result}, got {value}"
        result = op.result
        self.erase(op)
        self._makes(self._producers[value], result)

    def bypass(self, op: Op, value: Value) -> None:
        """Erase ``op``. The readers of its result then read ``value``."""
        result = op.result
        assert not self.is_output(result), f"expected a result that is not an output, got {result}"
        self.erase(op)
        for reader in self.readers(result):
            self.read(reader, reader.operands.index(result), value)

    def insert_before(self, op: Op, index: int, emit: Emit) -> None:
        """Insert operators between ``op`` and one of its operands."""
        self.read(op, index, emit(self.before(op), op.operands[index]))

    def insert_after(self, op: Op, emit: Emit, index: int = 0) -> None:
        """Insert operators between a result of ``op`` and its readers."""
        result = op.results[index]
        inside = Value(self.names.fresh(f"{result.name}_inside"), result.shape, result.dtype, result.origin)
        self._makes(op, inside, index)
        self._makes(self._producers[emit(self.after(op), inside)], result)

    def erase(self, op: Op) -> None:
        following, preceding = self._next.pop(op), self._previous.pop(op)
        self._next[preceding], self._previous[following] = following, preceding
        for value in op.operands:
            self._readers[value].remove(op)
        for value in op.results:
            del self._producers[value]
        self.changes += 1

    def drop_dead(self) -> None:
        """Erase the operators that no output depends on."""
        for op in reversed(list(self)):
            if not any(self.uses(value) for value in op.results):
                self.erase(op)

    def _makes(self, op: Op, value: Value, index: int = 0) -> None:
        self._producers.pop(op.results[index], None)
        op.results = (*op.results[:index], value, *op.results[index + 1 :])
        self._producers[value] = op

    def _place(self, op: Op, following: Op | None) -> None:
        preceding = self._previous[following]
        self._next[preceding] = self._previous[following] = op
        self._next[op], self._previous[op] = following, preceding
        for value in op.operands:
            self._readers.setdefault(value, []).append(op)
        self._producers.update((value, op) for value in op.results)
        self.changes += 1


@dataclass(frozen=True)
class Place:
    """A position for inserting operators.

    Attributes:
        following: Next operator, or None at the end.
        name: Prefix of inserted values' names.
    """

    rewriter: Rewriter
    following: Op | None
    name: str
    origin: Origin

    def emit(self, name: str, *operands: Value, **attrs: Any) -> Value:
        row = OPSET[name]
        expected = {*row.const_operands, *row.attrs}
        assert set(attrs) == expected, f"{name}: expected attributes {sorted(expected)}, got {sorted(attrs)}"
        ((shape, dtype),) = row.infer(operands, attrs)
        result = Value(self.rewriter.names.fresh(f"{self.name}_{name.lower()}"), shape, dtype, self.origin)
        self.rewriter._place(Op(name, operands, attrs, (result,)), self.following)
        return result

    def again(self, op: Op, *operands: Value, **changed: Any) -> Value:
        """Insert a copy of ``op`` with ``operands`` as its first operands, and with ``changed`` attributes."""
        place = Place(self.rewriter, self.following, self.name, op.result.origin)
        return place.emit(op.name, *operands, *op.operands[len(operands) :], **{**op.attrs, **changed})

    def reshape(self, value: Value, *shape: int) -> Value:
        """Insert a RESHAPE, even if ``value`` already has the shape."""
        return self.emit("RESHAPE", value, shape=shape)

    def constant(self, data: npt.NDArray[Any], dtype: str) -> Value:
        return Value(self.rewriter.names.fresh(f"{self.name}_const"), data.shape, dtype, self.origin, data)
