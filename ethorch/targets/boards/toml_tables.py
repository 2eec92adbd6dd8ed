"""Strict TOML parsing with defined keys, types and ranges. Error messages contain line numbers.

``tomllib`` reports line numbers only for syntax errors, so the text is scanned again for the line numbers of keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ethorch.support.errors import BoardError, FormatError
from ethorch.support.text_files import parse_toml
from ethorch.support.wording import near, shorten

Where = tuple[str | int, ...]  # ("memory", 1, "base") is the key base of the second [[memory]]
_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\-\"' ]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_\-]+|\"[^\"]*\"|'[^']*')\s*(\.\s*[A-Za-z0-9_\-\"']+\s*)*=")


@dataclass(frozen=True)
class Key:
    """The definition of a key.

    Attributes:
        check: Function that converts a value, or raises ValueError with the expected values.
        number: Whether the key requires a source.
    """

    check: Callable[[Any], Any]
    required: bool = False
    number: bool = False


def integer(low: int, high: int, what: str = "") -> Callable[[Any], int]:
    """Return a check that accepts integers from ``low`` to ``high``. ``what`` is appended to the error message."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            limits = (f"{low:#x}", f"{high:#x}") if high > 1 << 16 else (str(low), str(high))
            raise ValueError(f"an integer in {limits[0]}..{limits[1]}{what}")
        return value

    return check


def positive(value: Any) -> float:
    """Check that the value is a positive number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e15:
        raise ValueError("a number above 0 and below 1e15")
    return float(value)


def not_negative(value: Any) -> float:
    """Check that the value is a nonnegative number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        raise ValueError("a nonnegative number below 1e15")
    return float(value)


def text(value: Any) -> str:
    """Check that the value is a nonempty single-line string."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("a nonempty single-line string")
    return value


def name(value: Any) -> str:
    """Check that the value has at most 40 lowercase letters, digits, ``-``, ``_`` and ``.``, and starts with a letter or digit."""
    if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9][a-z0-9_.\-]{0,39}", value):
        raise ValueError("a name of at most 40 lower-case letters, digits, '-', '_' and '.' that starts with a letter or digit")
    return value


def one_of(*allowed: str) -> Callable[[Any], str]:
    """Return a check that accepts one of the ``allowed`` strings."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"one of {', '.join(map(repr, allowed))}")
        return value

    return check


def many(of: Callable[[Any], Any], least: int = 0) -> Callable[[Any], tuple[Any, ...]]:
    """Return a check that accepts a list of distinct values. ``of`` checks each value, and ``least`` is the minimum length."""

    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) < least:
            raise ValueError(f"a list of at least {least}" if least else "a list")
        try:
            checked = tuple(of(item) for item in value)
        except ValueError as error:
            raise ValueError(f"a list in which each element is {error}") from None
        if len(set(checked)) != len(checked):
            raise ValueError("a list without repeated values")
        return checked

    return check


class Document:
    """The tables of a TOML file, with the line number of each key.

    Args:
        label: File name in error messages.

    Raises:
        BoardError: The content is not TOML or not UTF-8.
    """

    def __init__(self, content: bytes, label: str):
        self.label = label
        try:
            decoded = content.decode()
        except UnicodeDecodeError as error:
            raise BoardError(f"{label}: byte {error.start} is not UTF-8; expected a TOML file.") from None
        try:
            self.root = parse_toml(decoded, label)
        except FormatError as error:
            raise BoardError(str(error)) from None
        self._lines = _lines(decoded)

    def wrong(self, where: Where, problem: str, allowed: str) -> BoardError:
        """Create an error that contains the line number, the key, the problem and the expected values."""
        line = next((self._lines[where[:n]] for n in range(len(where), 0, -1) if where[:n] in self._lines), None)
        place = f"{self.label}, line {line}" if line else self.label
        return BoardError(f"{place}: {_place(where)}: {problem}; expected {allowed}.")

    def table(self, value: Any, where: Where, keys: Mapping[str, Key]) -> dict[str, Any]:
        """Check a table and return its converted values. Absent optional keys are omitted.

        Each number requires a source: the table's ``source``, or an entry of ``sources``. The returned ``sources`` contain
        an entry for each number.
        """
        if not isinstance(value, dict):
            raise self.wrong(where, f"found {shorten(value)}", "a table")
        numbers = [key for key, row in keys.items() if row.number]
        allowed = [*keys, *(("source", "sources") if numbers else ())]
        checked: dict[str, Any] = {}
        for key, raw in value.items():
            if key not in allowed:
                meant = near(key, allowed, most=1)
                hint = f"{meant[0]!r}, or another of " if meant else ""
                raise self.wrong((*where, key), "no such key", f"{hint}{', '.join(allowed)}")
            if key in keys:
                try:
                    checked[key] = keys[key].check(raw)
                except ValueError as error:
                    raise self.wrong((*where, key), f"found {shorten(raw)}", str(error)) from None
        for key, row in keys.items():
            if row.required and key not in value:
                raise self.wrong((*where, key), "the key is missing", f"a table with {key!r}")
        if numbers:
            checked["sources"] = self._sources(value, where, numbers)
        return checked

    def _sources(self, value: dict[str, Any], where: Where, numbers: list[str]) -> dict[str, str]:
        general, single = value.get("source"), value.get("sources", {})
        if general is not None and (not isinstance(general, str) or not general.strip()):
            raise self.wrong(
                (*where, "source"),
                f"found {shorten(general)}",
                "a string that names the source of this table's numbers, or 'assumed'",
            )
        if not isinstance(single, dict):
            raise self.wrong((*where, "sources"), f"found {shorten(single)}", "a table with entries KEY = 'source of the number'")
        for key, source in single.items():
            if key not in numbers:
                raise self.wrong((*where, "sources", key), "the table has no number with this key", ", ".join(numbers))
            if not isinstance(source, str) or not source.strip():
                raise self.wrong(
                    (*where, "sources", key), f"found {shorten(source)}", "a string that names the source, or 'assumed'"
                )
        result = {}
        for key in numbers:
            source = single.get(key, general)
            if key in value and source is None:
                allowed = f"the name of a document, or 'assumed', as source of the table or as sources.{key}"
                raise self.wrong((*where, key), "the source is missing", allowed)
            if source is not None and key in value:
                result[key] = source
        return result


def _place(where: Where) -> str:
    words = ""
    for part in where:
        words += f" {part + 1}" if isinstance(part, int) else f"{', ' if words else ''}{part}"
    return words or "the file"


def _lines(content: str) -> dict[Where, int]:
    lines: dict[Where, int] = {}
    counts: dict[Where, int] = {}
    table: Where = ()
    quote = ""  # delimiter of the multi-line string that contains the line, if any
    for number, line in enumerate(content.splitlines(), 1):
        if not quote:
            header = _HEADER.match(line)
            if header:
                table = _table(_parts(header[2]), header[1] == "[[", counts)
                lines.setdefault(table, number)
            elif match := _KEY.match(line):
                parts = _parts(match[0].rstrip()[:-1])
                for n in range(1, len(parts) + 1):
                    lines.setdefault((*table, *parts[:n]), number)
        for mark in ('"""', "'''"):
            if (not quote or quote == mark) and line.count(mark) % 2:
                quote = "" if quote else mark
                break
    return lines


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _table(parts: tuple[str, ...], repeated: bool, counts: dict[Where, int]) -> Where:
    where: Where = ()
    for at, part in enumerate(parts):
        where = (*where, part)
        if at == len(parts) - 1 and repeated:
            counts[where] = counts.get(where, -1) + 1
        if where in counts:
            where = (*where, counts[where])
    return where
