"""The TOSA graph: Graph, Op and Value. ``verify``, ``text`` and ``serialize`` have files of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

#: TOSA 1.0 dtypes and how NumPy holds them. INT48 has no NumPy type of its own; INT4 is held one value a byte.
DTYPES: Mapping[str, type[np.generic]] = {
    "BOOL": np.bool_, "INT4": np.int8, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT48": np.int64,
    "FP16": np.float16, "FP32": np.float32, "BF16": ml_dtypes.bfloat16,
}  # fmt: skip
FLOATS = ("FP32", "FP16", "BF16")
#: Float dtype -> its largest finite number.
FLOAT_MAX: Mapping[str, float] = {"FP32": float(np.finfo(np.float32).max), "FP16": 65504.0, "BF16": (2 - 2.0**-7) * 2.0**127}
#: Operator -> its attributes that are regions (TOSA 1.0, control flow operators).
REGIONS: Mapping[str, tuple[str, ...]] = {"COND_IF": ("then_graph", "else_graph"), "WHILE_LOOP": ("cond_graph", "body_graph")}


@dataclass(frozen=True)
class Origin:
    """Where a value comes from: the FX node, its operator, the module path and the user's source line."""

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
    """A tensor: an input, the result of an operator, or a constant (``data`` is set). Identity is equality."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    origin: Origin = NOWHERE
    data: npt.NDArray[Any] | None = None

    @property
    def is_const(self) -> bool:
        """Is its content known?"""
        return self.data is not None

    @property
    def rank(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"%{self.name}: {self.dtype}{list(self.shape)}"


@dataclass(eq=False)
class Op:
    """One TOSA operator. What TOSA wants as constant operands (zero points, shapes, ...) is in ``attrs``.

    An attribute that is a Graph is a region: what COND_IF and WHILE_LOOP run. It reads its own inputs and constants only.
    """

    name: str
    operands: tuple[Value, ...]
    attrs: dict[str, Any]
    results: tuple[Value, ...]

    @property
    def result(self) -> Value:
        """Its first result, the only one of most operators."""
        return self.results[0]

    @property
    def regions(self) -> dict[str, Graph]:
        """The attributes that are regions; none of most operators."""
        return {key: self.attrs[key] for key in REGIONS.get(self.name, ())}


@dataclass
class Graph:
    """Operators in execution order between ``inputs`` and ``outputs``."""

    name: str = "main"
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def regions(self) -> Iterator[Graph]:
        """The graph itself, then every region in it and inside those, each before its own."""
        yield self
        for op in self.ops:
            for region in op.regions.values():
                yield from region.regions()

    def copy(self) -> Graph:
        """A copy with operators and values of its own, which shares the contents of constants."""
        values: dict[int, Value] = {}

        def copied(value: Value) -> Value:
            if id(value) not in values:
                values[id(value)] = Value(value.name, value.shape, value.dtype, value.origin, value.data)
            return values[id(value)]

        def of_op(op: Op) -> Op:
            attrs = {**op.attrs, **{key: region.copy() for key, region in op.regions.items()}}
            return Op(op.name, tuple(map(copied, op.operands)), attrs, tuple(map(copied, op.results)))

        inputs = list(map(copied, self.inputs))
        ops = list(map(of_op, self.ops))
        return Graph(self.name, inputs, list(map(copied, self.outputs)), ops)

    def constants(self) -> list[Value]:
        """Every constant in use outside of regions, in order of first use."""
        seen: dict[int, Value] = {}
        for value in [*(v for op in self.ops for v in op.operands), *self.outputs]:
            if value.is_const:
                seen.setdefault(id(value), value)
        return list(seen.values())

    def users(self) -> dict[int, list[Op]]:
        """id(value) -> the operators that read it."""
        users: dict[int, list[Op]] = {}
        for op in self.ops:
            for value in op.operands:
                users.setdefault(id(value), []).append(op)
        return users
