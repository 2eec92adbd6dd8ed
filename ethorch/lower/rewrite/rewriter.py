"""``Rewriter``: edits a TOSA graph in place and knows at all times who makes a value and who reads it.

A pass asks it for operators, says where new ones go and what they replace; shapes and dtypes follow from the opset, names are
given. What nothing reads any more stays until ``drop_dead``, so that a pass may still look at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy.typing as npt

from ethorch.tosa.ir import Graph, Op, Origin, Value
from ethorch.tosa.opset import OPSET

T = TypeVar("T")
#: Emits operators that read a value at a place, and returns the result of the last.
Emit = Callable[["Place", Value], Value]


class Names:
    """The names that are taken in a graph and its regions."""

    def __init__(self, graph: Graph):
        regions = list(graph.regions())
        made = (value for region in regions for op in region.ops for value in (*op.operands, *op.results))
        self._taken = {value.name for values in (made, *(region.inputs for region in regions)) for value in values}
        self._counts: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        """``base``, or ``base_1``, ``base_2``... where it is taken."""
        name = base
        while name in self._taken:
            self._counts[base] = count = self._counts.get(base, 0) + 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


class Rewriter:
    """``graph`` while it is changed. ``graph.ops`` is as it was until ``finish``.

    Args:
        graph: a graph or one region; its own regions are left alone.
        names: those taken in the whole graph, which a region shares; None: of ``graph``.
        is_region: the graph belongs to a COND_IF or WHILE_LOOP.
    """

    def __init__(self, graph: Graph, names: Names | None = None, *, is_region: bool = False):
        self.graph, self.is_region = graph, is_region
        self.names = names or Names(graph)
        self.changes = 0  # how many operators were placed, changed or taken out
        self._known: dict[Callable[[Rewriter], Any], tuple[int, Any]] = {}
        self._outputs = set(graph.outputs)
        self._producers: dict[Value, Op] = {}
        self._readers: dict[Value, list[Op]] = {}
        # Operators as a ring, with None between the last and the first.
        self._next: dict[Op | None, Op | None] = {None: None}
        self._previous: dict[Op | None, Op | None] = {None: None}
        for op in graph.ops:
            self._place(op, None)
        self.changes = 0

    def finish(self) -> Graph:
        """Write the operators back, in order; the graph."""
        self.graph.ops = list(self)
        return self.graph

    # --- what there is ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Op]:
        """The operators there are now, in order, without those that are taken out before their turn."""
        ops: list[Op] = []
        op = self._next[None]
        while op is not None:
            ops.append(op)
            op = self._next[op]
        return (op for op in ops if op in self._next)

    def named(self, *names: str) -> Iterator[Op]:
        """As iteration, of the operators with one of these names."""
        return (op for op in self if op.name in names)

    def producer(self, value: Value, *names: str, sole: bool = False) -> Op | None:
        """The operator that makes ``value``; None for inputs, for constants, and where it is none of ``names``.

        Args:
            sole: it must have one reader only, an output of the graph counted as one.
        """
        op = self._producers.get(value)
        fits = op is not None and (not names or op.name in names) and (not sole or self.uses(value) == 1)
        return op if fits else None

    def readers(self, value: Value) -> Sequence[Op]:
        """The operators that read ``value``, one twice that reads it twice."""
        return tuple(self._readers.get(value, ()))

    def is_output(self, value: Value) -> bool:
        return value in self._outputs

    def uses(self, value: Value) -> int:
        """How often operators read ``value`` and outputs of the graph are it."""
        return len(self._readers.get(value, ())) + (self.graph.outputs.count(value) if value in self._outputs else 0)

    def known(self, compute: Callable[[Rewriter], T]) -> T:
        """Return what ``compute`` finds in the graph as it is now; it is called again only after a change."""
        found = self._known.get(compute)
        if found is None or found[0] != self.changes:
            found = self._known[compute] = self.changes, compute(self)
        return cast("T", found[1])

    # --- what is changed ----------------------------------------------------------------------------------------------

    def before(self, op: Op, *, of: Value | None = None) -> Place:
        """Operators go in front of ``op``, one behind the other, named after ``of`` or else the result of ``op``."""
        of = of or op.results[0]
        return Place(self, op, of.name, of.origin)

    def after(self, op: Op) -> Place:
        """Operators go behind ``op``, one behind the other, in front of what follows it now."""
        return Place(self, self._next[op], op.results[0].name, op.results[0].origin)

    def read(self, op: Op, index: int, value: Value) -> None:
        """``op`` reads ``value`` as its operand ``index``."""
        self._readers[op.operands[index]].remove(op)
        self._readers.setdefault(value, []).append(op)
        op.operands = (*op.operands[:index], value, *op.operands[index + 1 :])
        self.changes += 1

    def replace(self, op: Op, value: Value) -> None:
        """The operator that makes ``value``, which nothing reads, makes what ``op`` makes instead; ``op`` is taken out.

        The result of ``op`` keeps its name, its readers, and its place among the outputs of the graph.
        """
        assert not self.uses(value), f"{value}, which is to become {op.result}, has readers"
        result = op.result
        self.erase(op)
        self._makes(self._producers[value], result)

    def bypass(self, op: Op, value: Value) -> None:
        """Who reads what ``op`` makes reads ``value`` instead; ``op``, whose result is no output of the graph, is taken out."""
        result = op.result
        assert not self.is_output(result), f"output {result} needs an operator of its own"
        self.erase(op)
        for reader in self.readers(result):
            self.read(reader, reader.operands.index(result), value)

    def insert_before(self, op: Op, index: int, emit: Emit) -> None:
        """What ``op`` reads as its operand ``index`` passes through ``emit`` first."""
        self.read(op, index, emit(self.before(op), op.operands[index]))

    def insert_after(self, op: Op, emit: Emit, index: int = 0) -> None:
        """What ``op`` makes as its result ``index`` passes through ``emit`` on its way to all who read it."""
        result = op.results[index]
        inside = Value(self.names.fresh(f"{result.name}_inside"), result.shape, result.dtype, result.origin)
        self._makes(op, inside, index)
        self._makes(self._producers[emit(self.after(op), inside)], result)

    def erase(self, op: Op) -> None:
        """Take ``op`` out of the graph."""
        following, preceding = self._next.pop(op), self._previous.pop(op)
        self._next[preceding], self._previous[following] = following, preceding
        for value in op.operands:
            self._readers[value].remove(op)
        for value in op.results:
            del self._producers[value]
        self.changes += 1

    def drop_dead(self) -> None:
        """Take out the operators that no output depends on."""
        for op in reversed(list(self)):
            if not any(self.uses(value) for value in op.results):
                self.erase(op)

    def _makes(self, op: Op, value: Value, index: int = 0) -> None:
        """``op`` makes ``value`` as its result ``index``."""
        self._producers.pop(op.results[index], None)
        op.results = (*op.results[:index], value, *op.results[index + 1 :])
        self._producers[value] = op

    def _place(self, op: Op, following: Op | None) -> None:
        """Put ``op`` in front of ``following``; at the end for None."""
        preceding = self._previous[following]
        self._next[preceding] = self._previous[following] = op
        self._next[op], self._previous[op] = following, preceding
        for value in op.operands:
            self._readers.setdefault(value, []).append(op)
        self._producers.update((value, op) for value in op.results)
        self.changes += 1


@dataclass(frozen=True)
class Place:
    """Where operators are put, and after what their results are named.

    Attributes:
        rewriter: of the graph.
        following: the operator in front of which they go; None: at the end.
        name: the beginning of their names.
        origin: where in the user's code they come from.
    """

    rewriter: Rewriter
    following: Op | None
    name: str
    origin: Origin

    def emit(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """Put an operator here, and return its result."""
        row = OPSET[name]
        expected = {*row.const_operands, *row.attrs}
        assert set(attrs) == expected, f"{name} has attributes {sorted(expected)}, got {sorted(attrs)}"
        ((shape, dtype),) = row.infer(operands, attrs)
        result = Value(self.rewriter.names.fresh(f"{self.name}_{name.lower()}"), shape, dtype, self.origin)
        self.rewriter._place(Op(name, operands, attrs, (result,)), self.following)
        return result

    def again(self, op: Op, *operands: Value, **changed: Any) -> Value:
        """``op`` once more here, with its first operands and some attributes changed; the result comes from where its own does."""
        place = Place(self.rewriter, self.following, self.name, op.result.origin)
        return place.emit(op.name, *operands, *op.operands[len(operands) :], **{**op.attrs, **changed})

    def reshape(self, value: Value, *shape: int) -> Value:
        """A RESHAPE, also to the shape that ``value`` has."""
        return self.emit("RESHAPE", value, shape=shape)

    def constant(self, data: npt.NDArray[Any], dtype: str) -> Value:
        """A constant; as it is no operator, it has no place."""
        return Value(self.rewriter.names.fresh(f"{self.name}_const"), data.shape, dtype, self.origin, data)
