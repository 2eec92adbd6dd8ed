"""The value table of a method, and its memory plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from ethorch.formats.pte_merge import SHARED_MEMORY
from ethorch.formats.pte_types import DTYPES, ITEM_BYTES, Extra, Value
from ethorch.formats.pte_writer import TENSOR_ALIGNMENT

#: Torch dtype name -> ScalarType number.
CODES = {name: code for code, (name, _) in DTYPES.items()}


def plan_memory(tensors: dict[int, tuple[int, int, int]]) -> tuple[dict[int, int], int]:
    """Place tensors in memory. Return their byte offsets and the total number of bytes.

    Each tensor is placed at the lowest offset that is free during its lifetime. Tensors are placed in order of size, size
    times lifetime, or first write, whichever requires the fewest bytes.

    Args:
        tensors: (size in bytes, index of the instruction that writes the tensor, index of the last instruction that reads it),
            keyed by value index.
    """
    orders: tuple[Callable[[tuple[int, tuple[int, int, int]]], tuple[int, ...]], ...] = (
        lambda item: (-item[1][0], item[0]),
        lambda item: (-item[1][0] * (item[1][2] - item[1][1] + 1), item[0]),
        lambda item: (item[1][1], -item[1][0], item[0]),
    )
    return min((_place(tensors, sorted(tensors.items(), key=order)) for order in orders), key=lambda placement: placement[1])


def _place(
    tensors: dict[int, tuple[int, int, int]], ordered: Iterable[tuple[int, tuple[int, int, int]]]
) -> tuple[dict[int, int], int]:
    offsets: dict[int, int] = {}
    total = 0
    for number, (size, first, last) in ordered:
        occupied = sorted((offsets[k], tensors[k][0]) for k in offsets if tensors[k][1] <= last and first <= tensors[k][2])
        offset = 0
        for start, length in occupied:
            if offset + size <= start:
                break
            offset = max(offset, align(start + length))
        offsets[number] = offset
        total = max(total, offset + size)
    return offsets, align(total)


def align(size: int) -> int:
    return -(-size // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT


class Values:
    """The value table of a program's method. Equal numbers, strings and lists share an entry.

    Functions that add a value return its index.
    """

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[tuple[Value, str], int] = {}

    def tensor(self, node: Node) -> int:
        return self.like(node.meta["val"])

    def like(self, tensor: torch.Tensor, contents: int = 0) -> int:
        """Add a contiguous tensor. ``contents`` is the index of its initial value in the program, or 0 if it is uninitialized."""
        shape = tuple(int(extent) for extent in tensor.shape)
        self.values.append(Value("tensor", _name(tensor.dtype), shape, tuple(range(len(shape))), data=contents))
        return len(self.values) - 1

    def state(self, node: Node, name: str, contents: int, offset: int) -> int:
        """Add a mutable buffer at byte ``offset`` of ``SHARED_MEMORY``. ``contents`` is the index of the initial value."""
        number = self.tensor(node)
        self.values[number] = replace(self.values[number], place=(SHARED_MEMORY, offset), data=contents, extra=Extra(name=name))
        return number

    def inside(self, tensor: int, node: Node, start: int) -> int:
        """Add a tensor located inside ``tensor``, starting at element ``start``."""
        number = self.tensor(node)
        memory, offset = self.values[tensor].place or (SHARED_MEMORY, 0)
        place = memory, offset + start * ITEM_BYTES[self.values[number].dtype]
        self.values[number] = replace(self.values[number], place=place)
        return number

    def view(self, tensor: int, shape: tuple[int, ...]) -> int:
        """Add a view of ``tensor`` with shape ``shape``, at the same address."""
        value = self.values[tensor]
        if value.shape == shape:
            return tensor
        return self.simple(replace(value, shape=shape, dim_order=tuple(range(len(shape))), data=0, extra=None))

    def order(self, node: Node) -> int:
        return self.integers(range(node.meta["val"].dim()))

    def integers(self, numbers: Iterable[int]) -> int:
        return self.simple(Value("int[]", items=tuple(self.simple(Value("int", number=int(x))) for x in numbers)))

    def tensors(self, items: tuple[int, ...]) -> int:
        """Add a list of optional tensors. Index -1 represents ``None``."""
        return self.simple(Value("tensor?[]", items=items))

    def simple(self, value: Value) -> int:
        key = value, f"{value.number} {value.numbers}"  # distinguishes 0.0 and -0.0
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]

    def none(self) -> int:
        return self.simple(Value("none"))

    def parameters(self, node: Node) -> tuple[int, ...]:
        """Add the scale, zero point, limits and dtype of a quantize or dequantize node to the table."""
        scale, zero, low, high, dtype = node.args[1:6]
        kinds: list[tuple[str, Callable[[Any], float], Any]] = [
            ("double", float, scale),
            *(("int", int, x) for x in (zero, low, high)),
        ]
        numbers = [self.simple(Value(kind, number=convert(x))) for kind, convert, x in kinds]
        return (*numbers, self.simple(Value("int", number=CODES[_name(dtype)])))

    def with_offset(self, number: int, offsets: dict[int, int]) -> Value:
        value = self.values[number]
        return replace(value, place=(1, offsets[number])) if number in offsets else value


def _name(dtype: Any) -> str:
    assert isinstance(dtype, torch.dtype)
    return str(dtype).removeprefix("torch.")
