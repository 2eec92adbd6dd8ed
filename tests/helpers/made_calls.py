"""Handwritten programs with calls of operators, including those that ``to_edge`` decomposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ethorch.formats.pte_types import Call, Chain, Method, Program, Value


class T:
    """A tensor argument of a call."""

    def __init__(self, dtype: str, *shape: int):
        self.dtype, self.shape = dtype, shape


@dataclass
class Made:
    """A method under construction. Each tensor has its own memory.

    Attributes:
        inputs, outputs: Indices of tensors.
    """

    values: list[Value] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    used: int = 0

    def call(self, operator: str, arguments: Sequence[object], outputs: int = 1, in_place: bool = False) -> None:
        """Add a call that writes its last ``outputs`` arguments, or its first one. All others are inputs of the method."""
        args = [self._argument(argument) for argument in arguments]
        split = len(args) - outputs
        read, written = (args, args[:1]) if in_place else (args[:split], args[split:])
        self.inputs += [index for arg in read for index in self._tensors(arg)]
        self.outputs += [index for arg in written for index in self._tensors(arg)]
        self.calls.append(Call(operator, None, (*args, written[-1])))

    def method(self) -> Method:
        """Return the method, named ``forward``."""
        names = tuple(dict.fromkeys(call.operator for call in self.calls))
        chains = (Chain(tuple(self.calls)),)
        memories = (0, max(self.used, 16))
        return Method("forward", tuple(self.values), tuple(self.inputs), tuple(self.outputs), names, (), chains, memories)

    def program(self) -> Program:
        """Return a program with this method."""
        return Program({"forward": self.method()})

    def _tensors(self, index: int) -> list[int]:
        value = self.values[index]
        items = value.items if value.kind in ("tensor[]", "tensor?[]") else (index,) if value.kind == "tensor" else ()
        return [item for item in items if self.values[item].kind == "tensor"]

    def _add(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _argument(self, argument: object) -> int:
        if isinstance(argument, T):
            shape = argument.shape
            value = Value("tensor", argument.dtype, shape, tuple(range(len(shape))), place=(1, self.used))
            self.used += -(-value.nbytes // 16) * 16
            return self._add(value)
        if argument is None:
            return self._add(Value("none"))
        if isinstance(argument, bool):
            return self._add(Value("bool", number=argument))
        if isinstance(argument, (int, float)):
            return self._add(Value("int" if isinstance(argument, int) else "double", number=argument))
        if isinstance(argument, str):
            return self._add(Value("string", text=argument))
        assert isinstance(argument, (tuple, list))
        if any(isinstance(item, float) for item in argument):
            return self._add(Value("double[]", numbers=tuple(argument)))
        kind = "tensor?[]" if isinstance(argument, list) else "tensor[]" if any(isinstance(i, T) for i in argument) else "int[]"
        return self._add(Value(kind, items=tuple(self._argument(item) for item in argument)))
