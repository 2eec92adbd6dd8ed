"""Map commands of a stream to operators of a model, using Vela's database."""

# A command belongs to the first scheduled operation that ends at or after the command, because register writes, transfers and
# helper operations precede the last NPU_OP of an operation (npu-reference 10).

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from ethorch.support.errors import FormatError
from ethorch.support.text_files import parse_json
from ethorch.support.wording import count_noun, shorten


class Scheduled(Protocol):
    """A row of Vela's schedule."""

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
    """An operation in Vela's schedule.

    Attributes:
        name: Name of the output tensor.
        operator: Vela's operator name, e.g. Conv2D or MemoryCopy.
        op_cycles, npu_cycles: Vela's cycle estimates, with and without memory stalls.
        origin: PyTorch operator, module and source line, or "" if unknown.
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
    """A map from the byte offset of each command to its ``Source``."""

    def __init__(self, ends: Iterable[tuple[int, Source]]):
        entries = sorted(ends, key=lambda entry: entry[0])
        self._offsets = [offset for offset, _ in entries]
        self._sources = [source for _, source in entries]

    @classmethod
    def from_schedule(cls, rows: Iterable[Scheduled], origins: Mapping[str, str] | None = None) -> Sources:
        """Convert the result of ``vela.CompiledModel.rows()``. ``origins`` is keyed by the TOSA tensor's name."""
        ends = []
        for row in rows:
            origin = (origins or {}).get(row.name, "")
            source = Source(row.name, row.operator, row.op_cycles, row.npu_cycles, row.macs, origin)
            ends += [(offset, source) for offset in row.command_offsets]
        return cls(ends)

    def at(self, offset: int) -> Source | None:
        """Return the operator of the command at a byte offset, or None after the last operator."""
        index = bisect_left(self._offsets, offset)
        return self._sources[index] if index < len(self._sources) else None

    def all(self) -> list[Source]:
        """Return the operators in stream order, without duplicates."""
        return list({id(source): source for source in self._sources}.values())

    def to_json(self) -> str:
        numbers: dict[int, int] = {}
        unique = [numbers.setdefault(id(s), len(numbers)) for s in self._sources]
        first = dict(zip(unique, self._sources, strict=True))
        rows = [asdict(first[number]) for number in range(len(numbers))]
        return json.dumps({"sources": rows, "ends": list(zip(self._offsets, unique, strict=True))})

    @classmethod
    def from_json(cls, text: str, label: str = "the table of sources") -> Sources:
        """Parse the output of ``to_json``. Raise FormatError if ``text`` is malformed. ``label`` names the file in the message."""
        data = parse_json(text, label, _REMEDY)
        for key in ("sources", "ends"):
            if not isinstance(data.get(key), list):
                raise FormatError(f"{label}: {key} is {shorten(data.get(key))}; expected a list. {_REMEDY}")
        sources = [_source(row, f"{label}: sources[{number}]") for number, row in enumerate(data["sources"])]
        for end in data["ends"]:
            is_pair = isinstance(end, list) and len(end) == 2 and all(type(number) is int for number in end)
            if not is_pair or end[0] < 0 or not 0 <= end[1] < len(sources):
                raise FormatError(
                    f"{label}: ends has {shorten(end)}; expected [command offset, index into "
                    f"{count_noun(len(sources), 'source')}]. {_REMEDY}"
                )
        return cls((offset, sources[number]) for offset, number in data["ends"])


_REMEDY = "Save the program again to write it."
_TYPES = {entry.name: {"str": str, "int": int}[str(entry.type)] for entry in fields(Source)}


def _source(row: Any, label: str) -> Source:
    if not isinstance(row, dict) or row.keys() - _TYPES.keys() or _TYPES.keys() - row.keys() - {"origin"}:
        raise FormatError(f"{label} is {shorten(row)}; expected an object with the keys {', '.join(_TYPES)}. {_REMEDY}")
    for key, value in row.items():
        if type(value) is not _TYPES[key]:
            expected = "an integer" if _TYPES[key] is int else "a string"
            raise FormatError(f"{label}.{key} is {shorten(value)}; expected {expected}. {_REMEDY}")
    return Source(**row)
