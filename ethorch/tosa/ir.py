"""TOSA graphs: Graph, Op and Value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

#: TOSA 1.0 dtypes and their NumPy storage types. INT48 is stored in int64, INT4 as one value per byte.
DTYPES: Mapping[str, type[np.generic]] = {
    "BOOL": np.bool_, "INT4": np.int8, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT48": np.int64,
    "FP16": np.float16, "FP32": np.float32, "BF16": ml_dtypes.bfloat16,
}  # fmt: skip
FLOATS = ("FP32", "FP16", "BF16")
#: Float dtype -> its largest finite value.
FLOAT_MAX: Mapping[str, float] = {"FP32": float(np.finfo(np.float32).max), "FP16": 65504.0, "BF16": (2 - 2.0**-7) * 2.0**127}
#: Operator -> its region attributes (TOSA 1.0, control flow operators).
REGIONS: Mapping[str, tuple[str, ...]] = {"COND_IF": ("then_graph", "else_graph"), "WHILE_LOOP": ("cond_graph", "body_graph")}


@dataclass(frozen=True)
class Origin:
    """The origin of a value: FX node, operator, module path and source line."""

    node: str = ""
    target: str = ""
    module: str = ""
    source: str = ""

    def __str__(self) -> str:
        place = f" at {self.module}" if self.module else ""
        line = f" ({self.source})" if self.source else ""
        return f"{self.target or self.node}{place}{line}"


NOWHERE = Origin()


@dataclass(eq=False)
class Value:
    """A tensor: an input, a result, or a constant (if it has ``data``). Values are compared by identity."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    origin: Origin = NOWHERE
    data: npt.NDArray[Any] | None = None

    @property
    def is_const(self) -> bool:
        return self.data is not None

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"%{self.name}: {self.dtype}{list(self.shape)}"


@dataclass(eq=False)
class Op:
    """A TOSA operator. Constant operands (zero points, shapes, ...) are in ``attrs``.

    An attribute of type Graph is a region of COND_IF or WHILE_LOOP. Regions read only their own inputs and constants.
    """

    name: str
    operands: tuple[Value, ...]
    attrs: dict[str, Any]
    results: tuple[Value, ...]

    @property
    def result(self) -> Value:
        """The first result of the operator."""
        return self.results[0]

    @property
    def regions(self) -> dict[str, Graph]:
        """The regions of a COND_IF or WHILE_LOOP, keyed by attribute."""
        return {key: self.attrs[key] for key in REGIONS.get(self.name, ())}


@dataclass
class Graph:
    """A TOSA graph with operators in execution order."""

    name: str = "main"
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def regions(self) -> Iterator[Graph]:
        """Iterate over the graph and all nested regions, parents first."""
        yield self
        for op in self.ops:
            for region in op.regions.values():
                yield from region.regions()

    def copy(self) -> Graph:
        """Return a copy that shares only constant data with the original."""
        values: dict[int, Value] = {}

        def copy_value(value: Value) -> Value:
            if id(value) not in values:
                values[id(value)] = Value(value.name, value.shape, value.dtype, value.origin, value.data)
            return values[id(value)]

        def copy_op(op: Op) -> Op:
            attrs = {**op.attrs, **{key: region.copy() for key, region in op.regions.items()}}
            return Op(op.name, tuple(map(copy_value, op.operands)), attrs, tuple(map(copy_value, op.results)))

        inputs = list(map(copy_value, self.inputs))
        ops = list(map(copy_op, self.ops))
        return Graph(self.name, inputs, list(map(copy_value, self.outputs)), ops)

    def constants(self) -> list[Value]:
        """Return the constants used outside of regions, in order of first use."""
        seen: dict[int, Value] = {}
        for value in [*(v for op in self.ops for v in op.operands), *self.outputs]:
            if value.is_const:
                seen.setdefault(id(value), value)
        return list(seen.values())

    def users(self) -> dict[int, list[Op]]:
        """Return the operators that read each value, keyed by id(value)."""
        users: dict[int, list[Op]] = {}
        for op in self.ops:
            for value in op.operands:
                users.setdefault(id(value), []).append(op)
        return users
