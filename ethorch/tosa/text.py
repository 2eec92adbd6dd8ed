"""Conversion of TOSA graphs to and from text."""

from __future__ import annotations

import ast
import base64
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.tosa.ir import NOWHERE, REGIONS, Graph, Op, Value


def to_text(graph: Graph, *, constants: bool = False, origins: bool = True) -> str:
    """Return the graph as text, by default with origins as comments. ``from_text`` requires ``constants=True``."""
    return "\n".join(_lines(graph, constants, origins)) + "\n"


def from_text(text: str) -> Graph:
    """Parse the output of ``to_text(constants=True)``. Raise ValueError if a line is malformed."""
    try:
        return _parse(text)
    except KeyError as error:
        raise ValueError(f"the graph does not define {error}") from None


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


def _digest(data: npt.NDArray[Any]) -> str:
    if data.size <= 8:
        return f"  # {data.ravel().tolist()}"
    return f"  # {data.min()}..{data.max()}, sum {data.sum(dtype=np.float64 if data.dtype.kind == 'f' else np.int64)}"


def _encode(data: npt.NDArray[Any]) -> str:
    return f"{data.dtype.name}:{base64.b64encode(np.ascontiguousarray(data).tobytes()).decode()}"


_VALUE = re.compile(r"%([^\s:,]+): ([A-Z0-9]+)\[([\d, ]*)\]")
_OP = re.compile(r"^(%.+?) = ([A-Z0-9_]+) ([^{]*)\{(.*?)\}(?:  # .*)?$")


def _value(text: str) -> Value:
    match = _VALUE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"expected a value such as '%x: INT8[1, 4]', got {text!r}")
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
                raise ValueError(f"expected a constant with data, got {line!r}. Print the graph with constants=True")
            value = define(_value(left))
            dtype, _, payload = data.partition(":")
            value.data = np.frombuffer(base64.b64decode(payload), np.dtype(dtype)).reshape(value.shape)
        elif word == "output":
            graph.outputs.append(values[rest.strip()[1:]])
        else:
            match = _OP.match(line)
            if not match:
                raise ValueError(f"expected an operator, got {line!r}")
            left, name, right, attr_text = match.groups()
            operands = tuple(values[part.strip()[1:]] for part in right.split(",") if part.strip())
            results = tuple(define(_value(part)) for part in re.findall(r"%[^\s:,]+: [A-Z0-9]+\[[\d, ]*\]", left))
            graph.ops.append(Op(name, operands, _attrs(attr_text), results))
    for op in (op for graph in (main, *regions.values()) for op in graph.ops if op.name in REGIONS):
        op.attrs.update({key: regions[op.attrs[key]] for key in REGIONS[op.name]})
    return main


def _attrs(text: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
    except (SyntaxError, AssertionError):
        raise ValueError(f"expected attributes such as 'axis=1, shape=[1, 4]', got {text!r}") from None
