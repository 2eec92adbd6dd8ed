"""Sources: which operator of a model each command of a stream works for, from Vela's database.

A command belongs to the first scheduled operation that ends at the command or behind it: register writes, transfers and
helper operations come before an operation's last NPU_OP (npu-reference 10).
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ethorch.errors import FormatError


class Scheduled(Protocol):
    """A row of Vela's schedule: ``vela.ScheduledOp``."""

    @property
    def name(self) -> str: ...
    @property
    def operator(self) -> str: ...
    @property
    def op_cycles(self) -> int: ...
    @property
    def npu_cycles(self) -> int: ...
    @property
    def macs(self) -> int: ...
    @property
    def command_offsets(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Source:
    """An operation of Vela's schedule.

    Attributes:
        name: the tensor it writes.
        operator: Vela's name for it: Conv2D, Add, MemoryCopy.
        op_cycles, npu_cycles: Vela's estimates, with and without waiting for memory.
        macs: as Vela counts them.
        origin: the operator, module and line of the user's model it comes from, where known.
    """

    name: str
    operator: str
    op_cycles: int
    npu_cycles: int
    macs: int
    origin: str = ""

    def __str__(self) -> str:
        return f"{self.operator} {self.name}" + (f", {self.origin}" if self.origin else "")


class Sources:
    """Byte offsets of commands to Sources."""

    def __init__(self, ends: Iterable[tuple[int, Source]]):
        entries = sorted(ends, key=lambda entry: entry[0])
        self._offsets = [offset for offset, _ in entries]
        self._sources = [source for _, source in entries]

    @classmethod
    def from_schedule(cls, rows: Iterable[Scheduled], origins: Mapping[str, str] | None = None) -> Sources:
        """From ``vela.CompiledModel.rows()``; ``origins`` says where a tensor of the TOSA graph comes from."""
        ends = []
        for row in rows:
            origin = (origins or {}).get(row.name, "")
            source = Source(row.name, row.operator, row.op_cycles, row.npu_cycles, row.macs, origin)
            ends += [(offset, source) for offset in row.command_offsets]
        return cls(ends)

    def at(self, offset: int) -> Source | None:
        """The operator that the command at this byte offset works for; None behind the last."""
        index = bisect_left(self._offsets, offset)
        return self._sources[index] if index < len(self._sources) else None

    def all(self) -> list[Source]:
        """Each operator once, in the order of its last command."""
        return list({id(source): source for source in self._sources}.values())

    def to_json(self) -> str:
        numbers: dict[int, int] = {}
        unique = [numbers.setdefault(id(s), len(numbers)) for s in self._sources]
        first = dict(zip(unique, self._sources, strict=True))
        rows = [asdict(first[number]) for number in range(len(numbers))]
        return json.dumps({"sources": rows, "ends": list(zip(self._offsets, unique, strict=True))})

    @classmethod
    def from_json(cls, text: str) -> Sources:
        """What ``to_json`` wrote; FormatError for anything else."""
        try:
            data: dict[str, Any] = json.loads(text)
            sources = [Source(**row) for row in data["sources"]]
            return cls([(int(offset), sources[number]) for offset, number in data["ends"]])
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise FormatError(f"not a table of sources: {error}") from None
