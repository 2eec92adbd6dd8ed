"""Convert dataclasses to and from JSON-compatible data, with type checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeVar

from ethorch.support.errors import FormatError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Row = TypeVar("_Row")
#: Floats that JSON cannot represent.
_NOT_FINITE = ("inf", "-inf", "nan")


def _is_int(x: Any) -> bool:
    return type(x) is int


def _is_tuple_of(x: Any, check: Callable[[Any], bool]) -> bool:
    return isinstance(x, tuple) and all(check(entry) for entry in x)


#: Function that checks a value, for each annotation.
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "bool": lambda x: isinstance(x, bool),
    "float": lambda x: _is_int(x) or isinstance(x, float),
    "str": lambda x: isinstance(x, str),
    "int | None": lambda x: x is None or _is_int(x),
    "float | None": lambda x: x is None or _is_int(x) or isinstance(x, float),
    "tuple[str, ...]": lambda x: _is_tuple_of(x, lambda entry: isinstance(entry, str)),
    "tuple[int, ...]": lambda x: _is_tuple_of(x, _is_int),
    "tuple[tuple[int, ...], ...]": lambda x: _is_tuple_of(x, lambda entry: _is_tuple_of(entry, _is_int)),
    "Mapping[str, int]": lambda x: isinstance(x, Mapping) and all(isinstance(k, str) and _is_int(v) for k, v in x.items()),
}


def check_types(instance: DataclassInstance) -> None:
    """Check the fields of a dataclass against their annotations, which must be in ``_CHECKS``.

    Raises:
        FormatError: A value does not have the type of its field.
    """
    for field in fields(instance):
        value = getattr(instance, field.name)
        if not _CHECKS[str(field.type)](value):
            kind = type(instance).__name__
            raise FormatError(f"{kind}.{field.name}: expected {field.type}, got {value!r:.60}.")


def read_row(kind: type[_Row], row: Mapping[str, Any]) -> _Row:
    """Create a dataclass instance from the result of ``write_row`` or ``dataclasses.asdict``.

    Raises:
        FormatError: A value is missing, or does not have the type of its field.
    """
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in row:
            value = row[field.name]
            if isinstance(value, list):
                value = tuple(value)
            elif str(field.type).startswith("float") and isinstance(value, str) and value in _NOT_FINITE:
                value = float(value)
            values[field.name] = value
        elif field.default is MISSING and field.default_factory is MISSING:
            raise FormatError(f"{kind.__name__}.{field.name}: expected {field.type}, got no value.")
    instance = kind(**values)
    check_types(instance)  # type: ignore[arg-type]
    return instance


def write_row(instance: DataclassInstance) -> dict[str, Any]:
    """Return JSON-compatible data for ``read_row``. Non-finite floats become strings."""
    values = {field.name: getattr(instance, field.name) for field in fields(instance)}
    return {name: str(x) if isinstance(x, float) and not math.isfinite(x) else x for name, x in values.items()}
