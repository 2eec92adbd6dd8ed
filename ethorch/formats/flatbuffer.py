"""Read untrusted flatbuffers with checked offsets and a limited number of items."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator


class Buffer(ABC):
    """A base class for bytes that contain flatbuffer tables.

    Subclasses define the exception for malformed files. ``max_items`` limits the total length of all vectors except byte vectors.
    """

    def __init__(self, data: memoryview, max_items: int):
        self.data, self.max_items, self.budget = data, max_items, max_items

    @abstractmethod
    def error(self, what: str, problem: str) -> Exception:
        """Return the exception for ``problem``. ``what`` names the affected element of the file."""

    def check(self, position: int, size: int, what: str) -> None:
        if position < 0 or position + size > len(self.data):
            raise self.error(what, f"has {size} bytes at offset {position}, outside the {len(self.data)} bytes of the flatbuffer")

    def spend(self, items: int, what: str) -> None:
        self.budget -= items
        if self.budget < 0:
            raise self.error(what, f"exceeds the limit of {self.max_items} items in a file")

    def number(self, form: str, position: int, what: str) -> int:
        """Return the integer at ``position``. ``form`` is a format of the struct module, e.g. ``<I``."""
        self.check(position, struct.calcsize(form), what)
        return int(struct.unpack_from(form, self.data, position)[0])


class Table:
    """A flatbuffer table in ``reader.data``. An absent scalar has a default value. An absent required vector raises an error."""

    def __init__(self, reader: Buffer, position: int, what: str):
        self.reader, self.position, self.what = reader, position, what
        self.vtable = position - reader.number("<i", position, what)
        self.vtable_bytes = reader.number("<H", self.vtable, what)
        if self.vtable_bytes < 4 or self.vtable_bytes % 2:
            raise reader.error(what, f"has a vtable of {self.vtable_bytes} bytes")

    def _at(self, field: int) -> int:
        slot = 4 + 2 * field
        if slot + 2 > self.vtable_bytes:
            return 0
        offset = self.reader.number("<H", self.vtable + slot, self.what)
        return self.position + offset if offset else 0

    def number(self, field: int, form: str, default: int = 0) -> int:
        at = self._at(field)
        return self.reader.number(form, at, self.what) if at else default

    def double(self, field: int) -> float:
        if not (at := self._at(field)):
            return 0.0
        self.reader.check(at, 8, self.what)
        return float(struct.unpack_from("<d", self.reader.data, at)[0])

    def table(self, field: int, what: str) -> Table | None:
        at = self._at(field)
        return Table(self.reader, at + self.reader.number("<I", at, what), what) if at else None

    def require_table(self, field: int, what: str) -> Table:
        table = self.table(field, what)
        if table is None:
            raise self.reader.error(self.what, f"has no {what}")
        return table

    def _vector(self, field: int, item_bytes: int, what: str) -> tuple[int, int]:
        at = self._at(field)
        if not at:
            raise self.reader.error(what, "is missing")
        start = at + self.reader.number("<I", at, what)
        count = self.reader.number("<I", start, what)
        self.reader.check(start + 4, count * item_bytes, what)
        return start + 4, count

    def has(self, field: int) -> bool:
        return self._at(field) != 0

    def numbers(self, field: int, form: str, what: str) -> tuple[int, ...]:
        start, count = self._vector(field, struct.calcsize(f"<{form}"), what)
        self.reader.spend(count, what)
        return struct.unpack_from(f"<{count}{form}", self.reader.data, start) if count else ()

    def blob(self, field: int, what: str) -> bytes:
        start, count = self._vector(field, 1, what)
        return bytes(self.reader.data[start : start + count])

    def text(self, field: int, what: str) -> str:
        raw = self.blob(field, what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.reader.error(what, f"is not text: {raw[:40]!r}") from None

    def texts(self, field: int, what: str) -> list[str]:
        """Return a vector of strings, or an empty list if the field is absent."""
        if not self.has(field):
            return []
        start, count = self._vector(field, 4, what)
        self.reader.spend(count, what)
        return [self._text_at(start + 4 * index, what) for index in range(count)]

    def _text_at(self, at: int, what: str) -> str:
        start = at + self.reader.number("<I", at, what)
        size = self.reader.number("<I", start, what)
        self.reader.check(start + 4, size, what)
        return bytes(self.reader.data[start + 4 : start + 4 + size]).decode(errors="replace")

    def length(self, field: int, what: str) -> int:
        return self._vector(field, 4, what)[1]

    def tables(self, field: int, what: str, optional: bool = False) -> Iterator[Table]:
        if optional and not self.has(field):
            return
        start, count = self._vector(field, 4, what)
        self.reader.spend(count, what)
        for index in range(count):
            at = start + 4 * index
            name = f"{what} {index}"
            yield Table(self.reader, at + self.reader.number("<I", at, name), name)
