"""The table of values of a method in the making, and a plan of where its tensors lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from ethorch.formats.pte_merge import SHARED_MEMORY
from ethorch.formats.pte_types import DTYPES, ITEM_BYTES, Extra, Value
from ethorch.formats.pte_writer import TENSOR_ALIGNMENT

#: torch's name of a dtype -> ScalarType number.
CODES = {name: code for code, (name, _) in DTYPES.items()}


def plan(tensors: dict[int, tuple[int, int, int]]) -> tuple[dict[int, int], int]:
    """Where each tensor lies and how many bytes all take: one after the other, each as low as those alive with it leave room.

    The largest come first; or what takes most room for most time, or what is written first, if that takes fewer bytes.

    Args:
        tensors: number -> (bytes, instruction that writes it, last one that reads it).
    """
    orders: tuple[Callable[[tuple[int, tuple[int, int, int]]], tuple[int, ...]], ...] = (
        lambda item: (-item[1][0], item[0]),
        lambda item: (-item[1][0] * (item[1][2] - item[1][1] + 1), item[0]),
        lambda item: (item[1][1], -item[1][0], item[0]),
    )
    return min((_placed(tensors, sorted(tensors.items(), key=order)) for order in orders), key=lambda found: found[1])


def _placed(
    tensors: dict[int, tuple[int, int, int]], ordered: Iterable[tuple[int, tuple[int, int, int]]]
) -> tuple[dict[int, int], int]:
    """As ``plan``, in one order."""
    placed: dict[int, int] = {}
    total = 0
    for number, (size, first, last) in ordered:
        others = sorted((placed[k], tensors[k][0]) for k in placed if tensors[k][1] <= last and first <= tensors[k][2])
        at = 0
        for start, length in others:
            if at + size <= start:
                break
            at = max(at, aligned(start + length))
        placed[number] = at
        total = max(total, at + size)
    return placed, aligned(total)


def aligned(size: int) -> int:
    """``size``, or the next multiple of what tensors are aligned to."""
    return -(-size // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT


class Values:
    """A method's table of values; equal numbers share an entry."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[tuple[Value, str], int] = {}

    def tensor(self, node: Node) -> int:
        return self.like(node.meta["val"])

    def like(self, tensor: torch.Tensor, contents: int = 0) -> int:
        """A tensor of that dtype and shape, row by row; ``contents`` is the number of its bytes among the program's constants."""
        shape = tuple(int(extent) for extent in tensor.shape)
        self.values.append(Value("tensor", _name(tensor.dtype), shape, tuple(range(len(shape))), data=contents))
        return len(self.values) - 1

    def state(self, node: Node, name: str, contents: int, offset: int) -> int:
        """A buffer of codes: kept from run to run, and begun with those contents."""
        number = self.tensor(node)
        self.values[number] = replace(self.values[number], place=(SHARED_MEMORY, offset), data=contents, extra=Extra(name=name))
        return number

    def inside(self, whole: int, node: Node, start: int) -> int:
        """A tensor that is a part of another one, from its element ``start`` on."""
        number = self.tensor(node)
        memory, offset = self.values[whole].place or (SHARED_MEMORY, 0)
        place = memory, offset + start * ITEM_BYTES[self.values[number].dtype]
        self.values[number] = replace(self.values[number], place=place)
        return number

    def seen_as(self, whole: int, shape: tuple[int, ...]) -> int:
        """A tensor in another shape, in the same place."""
        value = self.values[whole]
        if value.shape == shape:
            return whole
        return self.simple(replace(value, shape=shape, dim_order=tuple(range(len(shape))), data=0, extra=None))

    def order(self, node: Node) -> int:
        """The dimensions of a tensor that lies row by row, as a list of ints."""
        return self.integers(range(node.meta["val"].dim()))

    def integers(self, numbers: Iterable[int]) -> int:
        """A list of ints."""
        return self.simple(Value("int[]", items=tuple(self.simple(Value("int", number=int(x))) for x in numbers)))

    def tensors(self, items: tuple[int, ...]) -> int:
        """A list of tensors, -1 for none of them."""
        return self.simple(Value("tensor?[]", items=items))

    def simple(self, value: Value) -> int:
        key = value, f"{value.number} {value.numbers}"  # 0.0 and -0.0 are equal, and not the same
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]

    def none(self) -> int:
        return self.simple(Value("none"))

    def parameters(self, node: Node) -> tuple[int, ...]:
        """Scale, zero point, lowest and highest code, and the codes' dtype, of a quantize or dequantize node."""
        scale, zero, low, high, dtype = node.args[1:6]
        kinds: list[tuple[str, Callable[[Any], float], Any]] = [
            ("double", float, scale),
            *(("int", int, x) for x in (zero, low, high)),
        ]
        numbers = [self.simple(Value(kind, number=convert(x))) for kind, convert, x in kinds]
        return (*numbers, self.simple(Value("int", number=CODES[_name(dtype)])))

    def placed(self, number: int, offsets: dict[int, int]) -> Value:
        value = self.values[number]
        return replace(value, place=(1, offsets[number])) if number in offsets else value


def _name(dtype: Any) -> str:
    assert isinstance(dtype, torch.dtype)
    return str(dtype).removeprefix("torch.")
