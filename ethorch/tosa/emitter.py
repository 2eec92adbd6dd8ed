"""Check TOSA operators against the opset and the target's limits, and emit them into a graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ethorch.support.errors import Reason, Unsupported
from ethorch.tosa.fold import evaluate, is_foldable
from ethorch.tosa.ir import DTYPES, NOWHERE, Graph, Op, Origin, Value
from ethorch.tosa.limits import Limits
from ethorch.tosa.opset import OPSET

E = TypeVar("E", bound="Emitter")
T = TypeVar("T")


class Emitter:
    """A builder of a TOSA graph.

    Args:
        limits: Limits of the target, keyed by operator. An operator without an entry has no limits.
        target: Name of the target, used in refusals.

    Attributes:
        origin: Origin recorded for the operators emitted next.
    """

    def __init__(self, limits: Mapping[str, Limits] | None = None, *, target: str = ""):
        self.graph = Graph()
        self.limits: Mapping[str, Limits] = limits or {}
        self.target = target
        self.origin: Origin = NOWHERE
        self._names: dict[str, int] = {}
        self._cached: dict[Hashable, Any] = {}

    def copy_empty(self: E) -> E:
        """Return an emitter with an empty graph for the same target."""
        return type(self)(self.limits, target=self.target)

    def region(self: E, name: str) -> E:
        """Return an emitter for a region of this graph. Value names are unique across the graph and the region."""
        inner = self.copy_empty()
        inner.graph.name, inner._names = self.name(name), self._names
        return inner

    def name(self, base: str) -> str:
        """Return a unique name: ``base``, ``base_1``, ``base_2``, ..."""
        count = self._names.get(base, 0)
        self._names[base] = count + 1
        return self.name(f"{base}_{count}") if count else base

    def input(self, name: str, shape: Sequence[int], dtype: str) -> Value:
        value = Value(self.name(name), tuple(shape), dtype, self.origin)
        self.graph.inputs.append(value)
        return value

    def const(self, data: npt.ArrayLike, dtype: str | None = None, name: str = "const") -> Value:
        """Return a constant. By default, its TOSA dtype follows from the array's dtype (int8: INT8, int64: INT48)."""
        array = np.asarray(data)
        if dtype is None:
            dtype = next(tosa for tosa, numpy_type in DTYPES.items() if array.dtype == numpy_type and tosa != "INT4")
        return Value(self.name(name), array.shape, dtype, self.origin, array)

    def const_like(self, value: Value, number: float, dtype: str = "INT32", name: str = "const") -> Value:
        """Return a constant with one element and the rank of ``value``."""
        return self.const(np.full((1,) * value.rank, number, DTYPES[dtype]), dtype, name)

    def emit(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """Append an operator and return its first result. If the operator is foldable, return a constant instead.

        Args:
            attrs: All attributes and constant operands that ``OPSET`` lists for the operator.

        Raises:
            Unsupported: TOSA does not define the operator for the first operand's dtype, or the target does not support
                the operands.
        """
        row = OPSET[name]
        assert row.operands is None or len(operands) == len(row.operands), f"{name}: expected {row.operands}, got {operands}"
        expected = {*row.const_operands, *row.attrs}
        assert set(attrs) == expected, f"{name}: expected attributes {sorted(expected)}, got {sorted(attrs)}"
        if row.dtypes is not None and operands[0].dtype not in row.dtypes:
            allowed = ", ".join(sorted(row.dtypes))
            text = f"TOSA 1.0 does not define {name} for {operands[0].dtype}; expected {allowed}"
            raise self.refuse(f"{name}.dtype", text, "Cast the operand in the model, or quantize the module to int8.")
        inferred = row.infer(operands, attrs)
        if is_foldable(name, operands, attrs):
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
        """Return the result of ``make()``, cached under ``key``. The cache discards results of a failed ``attempt`` block."""
        if key not in self._cached:
            self._cached[key] = make()
        cached: T = self._cached[key]
        return cached

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """If the ``with`` block raises Unsupported, remove the operators emitted in it, and re-raise."""
        op_count, cached_count = len(self.graph.ops), len(self._cached)
        try:
            yield
        except Unsupported:
            del self.graph.ops[op_count:]
            while len(self._cached) > cached_count:
                self._cached.popitem()  # removes the latest entry
            raise

    def accepts(self, operator: str, dtype: str) -> bool:
        """Return True if the target supports the operator for a first operand of this dtype."""
        limits = self.limits.get(operator)
        return limits is None or (limits.present and (limits.dtypes is None or dtype in limits.dtypes))

    def refuse(self, id: str, text: str, remedy: str) -> Unsupported:
        return Unsupported(Reason(id, text, remedy))
