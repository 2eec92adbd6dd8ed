"""The TOSA graph: Graph, Op, Value; verified after every stage; a text form that is printed and read back."""

from __future__ import annotations

import ast
import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

#: TOSA 1.0 dtypes and how NumPy holds them. INT48 has no NumPy type of its own; INT4 is held one value a byte.
DTYPES: Mapping[str, type[np.generic]] = {
    "BOOL": np.bool_, "INT4": np.int8, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT48": np.int64,
    "FP16": np.float16, "FP32": np.float32, "BF16": ml_dtypes.bfloat16,
}  # fmt: skip
FLOATS = ("FP32", "FP16", "BF16")
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
    data: np.ndarray | None = None

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
    """One TOSA operator. What TOSA wants as constant operands (zero points, shapes, ...) is in ``attrs``.

    An attribute that is a Graph is a region: what COND_IF and WHILE_LOOP run. It reads its own inputs and constants only.
    """

    name: str
    operands: tuple[Value, ...]
    attrs: dict[str, Any]
    results: tuple[Value, ...]

    @property
    def result(self) -> Value:
        return self.results[0]

    @property
    def regions(self) -> dict[str, Graph]:
        """The attributes that are regions; none of most operators."""
        return {key: value for key, value in self.attrs.items() if isinstance(value, Graph)}


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

    def verify(self) -> None:
        """Raise AssertionError unless operators are known, operands defined before use, shapes and dtypes as the row says."""
        names: set[str] = set()
        graphs = [graph.name for graph in self.regions()]
        assert len(set(graphs)) == len(graphs), f"two regions have one name: {graphs}"
        for graph in self.regions():
            graph._verify(names)

    def _verify(self, names: set[str]) -> None:
        """Verify this graph without its regions; ``names`` are those of values found so far."""
        from ethorch.tosa.opset import OPSET

        defined = {id(value) for value in self.inputs}
        for value in self.inputs:
            assert value.name not in names, f"two values are called %{value.name}"
            names.add(value.name)
        for op in self.ops:
            row = OPSET[op.name]
            for value in op.operands:
                assert value.is_const or id(value) in defined, f"{op.name} reads {value} before it is defined"
            inferred = row.infer(op.operands, op.attrs)
            found = [(value.shape, value.dtype) for value in op.results]
            assert inferred == found, f"{op.name} from {op.result.origin}: row says {inferred}, found {found}"
            for value in op.results:
                assert value.name not in names, f"two values are called %{value.name}"
                names.add(value.name)
                defined.add(id(value))
        for value in self.outputs:
            assert value.is_const or id(value) in defined, f"output {value} is never computed"

    def to_text(self, *, constants: bool = False, origins: bool = True) -> str:
        """The graph as text. With ``constants`` their bytes are included and ``from_text`` gives the same graph back."""
        return "\n".join(_lines(self, constants, origins)) + "\n"

    @staticmethod
    def from_text(text: str) -> Graph:
        """Read ``to_text(constants=True)`` back.

        Raises:
            ValueError: a line is not of that form; the line is quoted.
        """
        return _parse(text)


def _lines(graph: Graph, constants: bool, origins: bool) -> Iterator[str]:
    yield f"graph {graph.name}"
    yield from _body(graph, constants, origins)
    for region in list(graph.regions())[1:]:
        yield f"region {region.name}"
        yield from (f"  {line}" for line in _body(region, constants, origins))


def _body(graph: Graph, constants: bool, origins: bool) -> Iterator[str]:
    for value in graph.inputs:
        yield f"input {value!r}"
    for value in graph.constants():
        assert value.data is not None
        yield f"const {value!r}" + (f" = {_encode(value.data)}" if constants else _digest(value.data))
    for op in graph.ops:
        plain = {key: value.name if isinstance(value, Graph) else value for key, value in op.attrs.items()}
        attrs = ", ".join(f"{key}={value!r}" for key, value in plain.items())
        left = ", ".join(repr(value) for value in op.results)
        right = ", ".join(f"%{value.name}" for value in op.operands)
        place = f"  # {op.result.origin}" if origins and op.result.origin != NOWHERE else ""
        yield f"{left} = {op.name} {right} {{{attrs}}}{place}"
    for value in graph.outputs:
        yield f"output %{value.name}"


def _digest(data: np.ndarray) -> str:
    if data.size <= 8:
        return f"  # {data.ravel().tolist()}"
    return f"  # {data.min()}..{data.max()}, sum {data.sum(dtype=np.float64 if data.dtype.kind == 'f' else np.int64)}"


def _encode(data: np.ndarray) -> str:
    return f"{data.dtype.name}:{base64.b64encode(np.ascontiguousarray(data).tobytes()).decode()}"


_VALUE = re.compile(r"%([^\s:,]+): ([A-Z0-9]+)\[([\d, ]*)\]")
_OP = re.compile(r"^(%.+?) = ([A-Z0-9_]+) ([^{]*)\{(.*?)\}(?:  # .*)?$")


def _value(text: str) -> Value:
    match = _VALUE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"not a value: {text!r}; expected %name: DTYPE[shape]")
    name, dtype, shape = match.groups()
    return Value(name, tuple(int(extent) for extent in shape.split(",") if extent.strip()), dtype)


def _parse(text: str) -> Graph:
    main = graph = Graph()
    regions: dict[str, Graph] = {}
    values: dict[str, Value] = {}

    def define(value: Value) -> Value:
        values[value.name] = value
        return value

    for line in text.splitlines():
        if not line.strip():
            continue
        line = line.strip()
        word, _, rest = line.partition(" ")
        if word == "graph":
            graph.name = rest
        elif word == "region":
            graph = regions[rest] = Graph(rest)
            values = {}
        elif word == "input":
            graph.inputs.append(define(_value(rest)))
        elif word == "const":
            left, separator, data = rest.partition(" = ")
            if not separator:
                raise ValueError(f"constant without data, print with constants=True: {line!r}")
            value = define(_value(left))
            dtype, _, payload = data.partition(":")
            value.data = np.frombuffer(base64.b64decode(payload), np.dtype(dtype)).reshape(value.shape)
        elif word == "output":
            graph.outputs.append(values[rest.strip()[1:]])
        else:
            match = _OP.match(line)
            if not match:
                raise ValueError(f"not an operator: {line!r}")
            left, name, right, attr_text = match.groups()
            operands = tuple(values[part.strip()[1:]] for part in right.split(",") if part.strip())
            results = tuple(define(_value(part)) for part in re.findall(r"%[^\s:,]+: [A-Z0-9]+\[[\d, ]*\]", left))
            graph.ops.append(Op(name, operands, _attrs(attr_text), results))
    for op in (op for graph in (main, *regions.values()) for op in graph.ops if op.name in REGIONS):
        op.attrs.update({key: regions[op.attrs[key]] for key in REGIONS[op.name]})
    return main


def _attrs(text: str) -> dict[str, Any]:
    call = ast.parse(f"f({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}


def fresh_names(values: Iterable[Value]) -> None:
    """Give the values distinct names, keeping the first of each."""
    taken: set[str] = set()
    for value in values:
        base, number = value.name, 1
        while value.name in taken:
            value.name, number = f"{base}_{number}", number + 1
        taken.add(value.name)
