"""Buffers of a command stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ethorch.npu.ir.stream import Op
from ethorch.npu.runs import Run


@dataclass
class Buffer:
    """A byte range [low, high) that can be moved only as a whole."""

    region: int
    low: int
    high: int
    writers: list[int] = field(default_factory=list)  # positions of the operations, in order
    readers: list[int] = field(default_factory=list)
    is_input: bool = False  # the host writes it
    is_output: bool = False  # the host reads it

    @property
    def size_bytes(self) -> int:
        return self.high - self.low

    @property
    def first(self) -> int:
        """The position of the first write, or of the first read if nothing writes the bytes. It is -1 for a host input."""
        return -1 if self.is_input else min(self.writers or self.readers)


@dataclass(eq=False)
class _Value:
    buffer: int
    region: int
    low: int
    high: int


class _Union:
    def __init__(self) -> None:
        self.parents: list[int] = []

    def add(self) -> int:
        self.parents.append(len(self.parents))
        return len(self.parents) - 1

    def find(self, number: int) -> int:
        while self.parents[number] != number:
            self.parents[number] = self.parents[self.parents[number]]
            number = self.parents[number]
        return number

    def join(self, first: int, second: int) -> int:
        first, second = self.find(first), self.find(second)
        self.parents[max(first, second)] = min(first, second)
        return min(first, second)


def find_buffers(
    ops: Sequence[Op], inputs: Sequence[tuple[int, int, int]] = (), outputs: Sequence[tuple[int, int, int]] = ()
) -> list[Buffer]:
    """Return the buffers of a stream in the order of their first accesses.

    Args:
        inputs, outputs: (region, first address, end address) of each host tensor.
    """
    union = _Union()
    values: list[_Value] = []
    buffers: dict[int, Buffer] = {}

    def create(region: int, low: int, high: int) -> _Value:
        number = union.add()
        buffers[number] = Buffer(region, low, high)
        return _Value(number, region, low, high)

    def merge(first: int, second: int) -> int:
        a, b = union.find(first), union.find(second)
        if a == b:
            return a
        root = union.join(a, b)
        removed = buffers.pop(b if root == a else a)
        merged = buffers[root]
        merged.low, merged.high = min(merged.low, removed.low), max(merged.high, removed.high)
        merged.writers = sorted({*merged.writers, *removed.writers})
        merged.readers = sorted({*merged.readers, *removed.readers})
        merged.is_input, merged.is_output = merged.is_input or removed.is_input, merged.is_output or removed.is_output
        return root

    def access(run: Run) -> int:
        hit = [value for value in values if value.region == run.region and value.low < run.high and run.low < value.high]
        if not hit:
            values.append(create(run.region, run.low, run.high))
            return values[-1].buffer
        root = union.find(hit[0].buffer)
        for value in hit[1:]:
            root = merge(root, value.buffer)
        return root

    for region, low, high in inputs:
        value = create(region, low, high)
        buffers[value.buffer].is_input = True
        values.append(value)
    for position, op in enumerate(ops):
        for run in op.reads:
            root = access(run)
            buffer = buffers[root]
            buffer.low, buffer.high = min(buffer.low, run.low), max(buffer.high, run.high)
            if not buffer.readers or buffer.readers[-1] != position:
                buffer.readers.append(position)
        for run in op.writes:
            values = [v for v in values if not (v.region == run.region and run.low <= v.low and v.high <= run.high)]
            partial = [v for v in values if v.region == run.region and v.low < run.high and run.low < v.high]
            value = create(run.region, run.low, run.high)
            buffers[value.buffer].writers.append(position)
            values.append(value)
            for old in partial:
                merge(value.buffer, old.buffer)
    for region, low, high in outputs:
        buffers[access(Run("", region, low, low, high))].is_output = True
    return sorted(buffers.values(), key=lambda buffer: (buffer.first, buffer.region, buffer.low))
