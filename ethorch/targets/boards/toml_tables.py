"""TOML that is read strictly: every key is known, of its type and in its range, and an error names its line.

``tomllib`` says the line of a syntax error only. Where each key stands is found by a second look at the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ethorch.support.errors import BoardError, FormatError
from ethorch.support.text_files import parse_toml
from ethorch.support.wording import near, shown

Where = tuple[str | int, ...]  # ("memory", 1, "base"): key base of the second [[memory]]
_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\-\"' ]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_\-]+|\"[^\"]*\"|'[^']*')\s*(\.\s*[A-Za-z0-9_\-\"']+\s*)*=")


@dataclass(frozen=True)
class Key:
    """What a key may hold.

    Attributes:
        check: the value as the program wants it; ValueError with what is allowed for a wrong one.
        required: is a file without it wrong?
        number: does it want a source?
    """

    check: Callable[[Any], Any]
    required: bool = False
    number: bool = False


def integer(low: int, high: int, what: str = "") -> Callable[[Any], int]:
    """A whole number low..high, in decimal or hexadecimal."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            shown = (f"{low:#x}", f"{high:#x}") if high > 1 << 16 else (str(low), str(high))
            raise ValueError(f"a whole number {shown[0]}..{shown[1]}{what}")
        return value

    return check


def positive(value: Any) -> float:
    """A number above 0, an integer or not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e15:
        raise ValueError("a number above 0 and below 1e15")
    return float(value)


def not_negative(value: Any) -> float:
    """A number of 0 or above."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        raise ValueError("a number from 0, below 1e15")
    return float(value)


def text(value: Any) -> str:
    """A text of one line that is not empty."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("a text of one line that is not empty")
    return value


def name(value: Any) -> str:
    """A short name: lower-case letters, digits, ``-``, ``_`` and ``.``."""
    if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9][a-z0-9_.\-]{0,39}", value):
        raise ValueError("a name of lower-case letters, digits, '-', '_' and '.', at most 40 of them")
    return value


def one_of(*allowed: str) -> Callable[[Any], str]:
    """One of these words."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"one of {', '.join(map(repr, allowed))}")
        return value

    return check


def many(of: Callable[[Any], Any], least: int = 0) -> Callable[[Any], tuple[Any, ...]]:
    """A list of different values, at least so many of them."""

    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) < least:
            raise ValueError(f"a list of at least {least}" if least else "a list")
        try:
            found = tuple(of(item) for item in value)
        except ValueError as error:
            raise ValueError(f"a list, each {error}") from None
        if len(set(found)) != len(found):
            raise ValueError("a list without repetitions")
        return found

    return check


class Document:
    """The tables of a TOML file, and the line of each key.

    Args:
        content: the file.
        label: what messages call it.

    Raises:
        BoardError: it is no TOML, or not text.
    """

    def __init__(self, content: bytes, label: str):
        self.label = label
        try:
            decoded = content.decode()
        except UnicodeDecodeError as error:
            raise BoardError(f"{label}: byte {error.start} is not UTF-8; a board file is TOML, which is UTF-8 text.") from None
        try:
            self.root = parse_toml(decoded, label)
        except FormatError as error:
            raise BoardError(str(error)) from None
        self._lines = _lines(decoded)

    def wrong(self, where: Where, found: str, allowed: str) -> BoardError:
        """An error that says line, key, what was found, and what is allowed."""
        line = next((self._lines[where[:n]] for n in range(len(where), 0, -1) if where[:n] in self._lines), None)
        place = f"{self.label}, line {line}" if line else self.label
        return BoardError(f"{place}: {_place(where)}: {found}; allowed is {allowed}.")

    def table(self, value: Any, where: Where, keys: Mapping[str, Key]) -> dict[str, Any]:
        """The values of a table, each checked; what is absent is left out.

        A table with numbers wants ``source`` for all of them, or ``sources.KEY`` for single ones; the result has them under
        ``sources``, one for each number.
        """
        if not isinstance(value, dict):
            raise self.wrong(where, f"found {shown(value)}", "a table")
        numbers = [key for key, row in keys.items() if row.number]
        allowed = [*keys, *(("source", "sources") if numbers else ())]
        result: dict[str, Any] = {}
        for key, found in value.items():
            if key not in allowed:
                meant = near(key, allowed, most=1)
                hint = f"{meant[0]!r}, or another of " if meant else ""
                raise self.wrong((*where, key), "no such key", f"{hint}{', '.join(allowed)}")
            if key in keys:
                try:
                    result[key] = keys[key].check(found)
                except ValueError as error:
                    raise self.wrong((*where, key), f"found {shown(found)}", str(error)) from None
        for key, row in keys.items():
            if row.required and key not in value:
                raise self.wrong((*where, key), "it is missing", f"a file with {key!r} in this table")
        if numbers:
            result["sources"] = self._sources(value, where, numbers)
        return result

    def _sources(self, value: dict[str, Any], where: Where, numbers: list[str]) -> dict[str, str]:
        general, single = value.get("source"), value.get("sources", {})
        if general is not None and (not isinstance(general, str) or not general.strip()):
            raise self.wrong(
                (*where, "source"), f"found {shown(general)}", "a text: where the numbers of this table are from, or 'assumed'"
            )
        if not isinstance(single, dict):
            raise self.wrong((*where, "sources"), f"found {shown(single)}", "a table: key = 'where its number is from'")
        for key, said in single.items():
            if key not in numbers:
                raise self.wrong((*where, "sources", key), "no number of this table", ", ".join(numbers))
            if not isinstance(said, str) or not said.strip():
                raise self.wrong((*where, "sources", key), f"found {shown(said)}", "a text, or 'assumed'")
        result = {}
        for key in numbers:
            said = single.get(key, general)
            if key in value and said is None:
                allowed = "a number with a 'source' in its table, or a row of its 'sources': a document, or 'assumed'"
                raise self.wrong((*where, key), "nothing says where it is from", allowed)
            if said is not None and key in value:
                result[key] = said
        return result


def _place(where: Where) -> str:
    """``memory 2, base`` for ("memory", 1, "base")."""
    said = ""
    for part in where:
        said += f" {part + 1}" if isinstance(part, int) else f"{', ' if said else ''}{part}"
    return said or "the file"


def _lines(content: str) -> dict[Where, int]:
    """The line of every table and key, counted from 1; what stands inside an inline table has that of its key."""
    lines: dict[Where, int] = {}
    counts: dict[Where, int] = {}
    table: Where = ()
    quote = ""  # of the text over several lines that the line is in
    for number, line in enumerate(content.splitlines(), 1):
        if not quote:
            header = _HEADER.match(line)
            if header:
                table = _table(_parts(header[2]), header[1] == "[[", counts)
                lines.setdefault(table, number)
            elif found := _KEY.match(line):
                parts = _parts(found[0].rstrip()[:-1])
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
    """The place of a table: [[memory]] begins a new one, [memory.sources] belongs to the last."""
    where: Where = ()
    for at, part in enumerate(parts):
        where = (*where, part)
        if at == len(parts) - 1 and repeated:
            counts[where] = counts.get(where, -1) + 1
        if where in counts:
            where = (*where, counts[where])
    return where
