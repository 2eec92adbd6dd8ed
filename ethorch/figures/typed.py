"""Values of dataclasses that were read from a file, held against their annotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ethorch.support.errors import FormatError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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
