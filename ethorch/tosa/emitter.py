"""Emitter: appends TOSA operators to a graph, one at a time, each checked against its row of the opset and the target's limits."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ethorch.support.errors import Reason, Unsupported
from ethorch.tosa.fold import evaluate, foldable
from ethorch.tosa.ir import DTYPES, NOWHERE, Graph, Op, Origin, Value
from ethorch.tosa.limits import Limits
from ethorch.tosa.opset import OPSET

E = TypeVar("E", bound="Emitter")
T = TypeVar("T")


class Emitter:
    """Appends to ``graph``.

    Args:
        limits: what the target can run of each operator; an operator without a row has no limit.
        target: its name, for refusals.

    Attributes:
        graph: what was emitted.
        origin: the user's code that what is emitted next belongs to.
    """

    def __init__(self, limits: Mapping[str, Limits] | None = None, *, target: str = ""):
        self.graph = Graph()
        self.limits: Mapping[str, Limits] = limits or {}
        self.target = target
        self.origin: Origin = NOWHERE
        self._names: dict[str, int] = {}
        self._made: dict[Hashable, Any] = {}

    def copy_empty(self: E) -> E:
        """Another of the same target, with an empty graph."""
        return type(self)(self.limits, target=self.target)

    def region(self: E, name: str) -> E:
        """Another of the same target, for a region of this graph. No value of one is named as a value of the other."""
        inner = self.copy_empty()
        inner.graph.name, inner._names = self.name(name), self._names
        return inner

    def name(self, base: str) -> str:
        """``base``, or ``base_1``, ``base_2``... where it is taken."""
        count = self._names.get(base, 0)
        self._names[base] = count + 1
        return self.name(f"{base}_{count}") if count else base

    def input(self, name: str, shape: Sequence[int], dtype: str) -> Value:
        """An input of the graph, of TOSA dtype ``dtype``."""
        value = Value(self.name(name), tuple(shape), dtype, self.origin)
        self.graph.inputs.append(value)
        return value

    def const(self, data: npt.ArrayLike, dtype: str | None = None, name: str = "const") -> Value:
        """A constant. Its TOSA dtype follows from the array's unless it is given (INT4, INT48, BF16)."""
        array = np.asarray(data)
        if dtype is None:
            dtype = next(tosa for tosa, numpy_type in DTYPES.items() if array.dtype == numpy_type and tosa != "INT4")
        return Value(self.name(name), array.shape, dtype, self.origin, array)

    def emit(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """Append one operator and return its first result; it is evaluated now if all its operands are constants.

        Args:
            attrs: the row's attributes and constant operands, by name; all of them.

        Raises:
            Unsupported: TOSA has no such operator of that dtype, or the target's limits do not allow these operands.
        """
        row = OPSET[name]
        assert row.operands is None or len(operands) == len(row.operands), f"{name} takes {row.operands}, got {operands}"
        expected = {*row.const_operands, *row.attrs}
        assert set(attrs) == expected, f"{name} has attributes {sorted(expected)}, got {sorted(attrs)}"
        if row.dtypes is not None and operands[0].dtype not in row.dtypes:
            allowed = ", ".join(sorted(row.dtypes))
            text = f"{name} of {operands[0].dtype}; TOSA 1.0 allows {allowed}"
            raise self.refuse(f"{name}.dtype", text, "Cast it in the model, or quantize the module to int8.")
        inferred = row.infer(operands, attrs)
        if foldable(name, operands, attrs):
            data = evaluate(name, [value.data for value in operands if value.data is not None], attrs)
            return Value(self.name("folded"), inferred[0][0], inferred[0][1], self.origin, data)
        if name in self.limits:
            features = row.features(operands, attrs, inferred) if row.features else {}
            reason = self.limits[name].refuse(name, operands[0].dtype, features, self.target)
            if reason:
                raise Unsupported(reason)
        base = self.origin.node or name.lower()
        results = tuple(Value(self.name(base), shape, dtype, self.origin) for shape, dtype in inferred)
        self.graph.ops.append(Op(name, operands, dict(attrs), results))
        return results[0]

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make()`` returned when it was called for ``key``: the first time, or the first after an attempt failed."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """What is emitted inside is taken back if that ends in a refusal, which is passed on."""
        emitted, made = len(self.graph.ops), len(self._made)
        try:
            yield
        except Unsupported:
            del self.graph.ops[emitted:]
            while len(self._made) > made:
                self._made.popitem()  # the latest
            raise

    def accepts(self, operator: str, dtype: str) -> bool:
        """Return True if the target has the operator for a first operand of this dtype."""
        limits = self.limits.get(operator)
        return limits is None or (limits.present and (limits.dtypes is None or dtype in limits.dtypes))

    def refuse(self, id: str, text: str, way_out: str) -> Unsupported:
        """The exception to raise for a refusal of the current operator."""
        return Unsupported(Reason(id, text, way_out))
