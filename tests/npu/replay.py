"""A plan as a file, for ``replay.cpp`` to run on another CPU: every array and struct, and which of their words are pointers."""

from __future__ import annotations

import bisect
import ctypes
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ethorch.npu import Machine
from ethorch.npu.plan.plan import Native
from ethorch.npu.plan.planned import Planned


class Blocks:
    """Memory that does not move: a block for each array or struct, and what points where.

    The order in the file is steps, machine, then what they need; the regions are last.
    """

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.spans: list[tuple[int, int]] = []
        self.structs: list[tuple[int, Any]] = []

    def add(self, what: Any) -> None:
        """A NumPy array, or a ctypes struct or array of structs."""
        array = isinstance(what, np.ndarray)
        span = (what.ctypes.data, what.nbytes) if array else (ctypes.addressof(what), ctypes.sizeof(what))
        if not array:
            self.structs.append((len(self.spans), what))
        self.kept.append(what)
        self.spans.append(span)

    def write(self, path: Path, regions: int) -> None:
        """The file, whose last blocks are the regions.

        Raises:
            AssertionError: a pointer points at nothing that is here.
        """
        order = sorted(range(len(self.spans)), key=lambda k: self.spans[k])
        starts = [self.spans[k][0] for k in order]
        fixed = []
        for block, what in self.structs:
            for at, address in pointers(what):
                k = order[bisect.bisect_right(starts, address) - 1]
                start, size = self.spans[k]
                assert start <= address <= start + size, f"a pointer of {type(what).__name__} at {at} points at nothing known"
                fixed += [block, at, k, address - start]
        numbers = [len(self.spans), len(fixed) // 4, 0, 1, regions, *(size for _, size in self.spans)]
        content = [ctypes.string_at(*span) for span in self.spans]
        path.write_bytes(b"".join([struct.pack(f"<{len(numbers)}q", *numbers), *content, struct.pack(f"<{len(fixed)}q", *fixed)]))


def pointers(what: Any, at: int = 0) -> Iterator[tuple[int, int]]:
    """(offset, address) of each pointer in a struct or an array that is not null."""
    if isinstance(what, ctypes.Array):
        for k, element in enumerate(what):
            size = ctypes.sizeof(what._type_)
            if what._type_ is ctypes.c_void_p:
                yield from ((at + k * size, element) for _ in (0,) if element)
            elif issubclass(what._type_, ctypes.Structure):
                yield from pointers(element, at + k * size)
        return
    for name, kind in what._fields_:
        value, offset = getattr(what, name), at + getattr(type(what), name).offset
        if kind is ctypes.c_void_p:
            if value:
                yield offset, value
        elif isinstance(value, (ctypes.Structure, ctypes.Array)):
            yield from pointers(value, offset)


def write_plan(machine: Machine, planned: Planned, path: Path) -> list[int]:
    """Write a machine as it stands, with its whole plan; the regions' numbers, in the order of the results."""
    plan = planned.plan
    (part,) = plan.parts
    assert isinstance(part, Native) and plan.is_whole
    blocks = Blocks()
    blocks.add(part.structs)
    place = planned.machine()
    blocks.add(place)
    for kept in plan._kept_alive:
        for one in kept if isinstance(kept, list) else [kept]:
            blocks.add(one)
    blocks.add(planned._own)
    numbers = sorted(machine.regions)
    for number in numbers:
        blocks.add(machine.regions[number])
    blocks.write(path, len(numbers))
    return numbers
