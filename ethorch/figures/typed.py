"""Values of dataclasses that were read from a file, held against their annotations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from ethorch.support.errors import FormatError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Row = TypeVar("_Row")
#: Floats that JSON has no numbers for.
_NOT_FINITE = ("inf", "-inf", "nan")


def _int(x: Any) -> bool:
    return type(x) is int


def _each(x: Any, check: Callable[[Any], bool]) -> bool:
    return isinstance(x, tuple) and all(check(entry) for entry in x)


#: Annotation, as it is written -> does a value keep it?
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "int": _int,
    "bool": lambda x: isinstance(x, bool),
    "float": lambda x: _int(x) or isinstance(x, float),
    "str": lambda x: isinstance(x, str),
    "int | None": lambda x: x is None or _int(x),
    "float | None": lambda x: x is None or _int(x) or isinstance(x, float),
    "tuple[str, ...]": lambda x: _each(x, lambda entry: isinstance(entry, str)),
    "tuple[int, ...]": lambda x: _each(x, _int),
    "tuple[tuple[int, ...], ...]": lambda x: _each(x, lambda entry: _each(entry, _int)),
    "Mapping[str, int]": lambda x: isinstance(x, Mapping) and all(isinstance(k, str) and _int(v) for k, v in x.items()),
}


def check_types(instance: DataclassInstance) -> None:
    """FormatError for the first field whose value is not what its annotation says; each annotation has to be known here."""
    for entry in fields(instance):
        value = getattr(instance, entry.name)
        if not _CHECKS[str(entry.type)](value):
            kind = type(instance).__name__
            raise FormatError(f"not a {kind} of ethorch's: {entry.name} is {value!r:.60}; {entry.type} is wanted.")


def read_row(kind: type[_Row], row: Mapping[str, Any]) -> _Row:
    """Return the dataclass instance with the values of plain data, as ``write_row`` or ``dataclasses.asdict`` returned them.

    Raises:
        FormatError: A value does not have the type of its field.
        TypeError: A value is missing.
    """
    values = {}
    for entry in fields(kind):  # type: ignore[arg-type]
        if entry.name in row:
            value = row[entry.name]
            if isinstance(value, list):
                value = tuple(value)
            elif str(entry.type).startswith("float") and isinstance(value, str) and value in _NOT_FINITE:
                value = float(value)
            values[entry.name] = value
    found = kind(**values)
    check_types(found)  # type: ignore[arg-type]
    return found


def write_row(instance: DataclassInstance) -> dict[str, Any]:
    """Return plain data for ``read_row``: without a loss, floats that are not finite as strings."""
    values = {entry.name: getattr(instance, entry.name) for entry in fields(instance)}
    return {name: str(x) if isinstance(x, float) and not math.isfinite(x) else x for name, x in values.items()}
