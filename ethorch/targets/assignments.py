from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ethorch.support.errors import FormatError, SpecError, unknown_name
from ethorch.support.text_files import parse_toml
from ethorch.targets.npus import TARGETS
from ethorch.targets.settings import Settings

#: Table fields. ``FIELD.KEY=VALUE`` sets one entry.
TABLES = ("modules", "samples")
_LATENCY = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>ms|fps|)", re.IGNORECASE)


def parse_assignments(words: Sequence[str]) -> dict[str, Any]:
    """Convert ``FIELD=VALUE`` assignments to a dict of settings.

    VALUE is a string unless it is valid TOML. ``modules.head=float`` sets one entry of a table.

    Raises:
        SpecError: An assignment is malformed, a field is unknown, or a field is set to two values.
    """
    names = [entry.name for entry in fields(Settings)]
    changes: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        field, dot, entry = key.strip().partition(".")
        if not equals or (dot and not entry):
            raise SpecError(f"--set {word!r}: expected FIELD=VALUE, such as arena=64K or modules.head=float.")
        if field not in names:
            raise unknown_name("setting", field, names)
        if dot and field not in TABLES:
            raise SpecError(f"--set {word!r}: expected a setting that is a table ({' or '.join(TABLES)}), got {field}.")
        value = _parse_value(text.strip())
        if not dot:
            if field in changes and changes[field] != value:
                raise SpecError(f"--set assigns two values to {field}: {changes[field]!r} and {value!r}. Use one.")
            changes[field] = value
            continue
        table = changes.setdefault(field, {})
        entry = entry.strip("\"'")
        if not isinstance(table, dict) or table.get(entry, value) != value:
            raise SpecError(f"--set assigns two values to {field}.{entry}. Use one.")
        table[entry] = value
    return changes


def with_assignments(settings: Settings, words: Sequence[str]) -> Settings:
    """Return a copy of the settings with the assignments applied. Table entries are added to existing tables.

    Raises:
        SpecError: An assignment is malformed, or a field or value is invalid.
        BoardError: The board file is invalid.
    """
    changes = parse_assignments(words)
    for field in TABLES:
        if isinstance(changes.get(field), dict):
            changes[field] = {**getattr(settings, field), **changes[field]}
    return settings.with_(**changes)


def parse_axes(words: Sequence[str]) -> dict[str, list[Any]]:
    """Parse ``FIELD=A,B,C`` assignments (``--vary``). ``target=all`` selects every NPU.

    Raises:
        SpecError: An assignment is malformed, or a field occurs twice.
    """
    axes: dict[str, list[Any]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        values = [part.strip() for part in text.split(",") if part.strip()]
        if not equals or not values:
            raise SpecError(f"--vary {word!r}: expected FIELD=A,B,C, such as scheme=int8,a16w8.")
        if name in axes:
            raise SpecError(f"{name} occurs in two --vary options. List all its values in one option.")
        axes[name] = list(TARGETS) if (name, values) == ("target", ["all"]) else values
    return axes


def parse_latency(text: str) -> float:
    """Convert a latency such as ``5ms``, ``5`` or ``30fps`` to milliseconds. Raise SpecError if it is malformed or not positive."""
    match = _LATENCY.fullmatch(text.strip())
    number = 0.0 if match is None else float(match["number"])
    if match is None or number <= 0:
        raise SpecError(f"--latency {text!r}: expected milliseconds, such as 5ms, or inferences per second, such as 30fps.")
    return 1000 / number if match["unit"].lower() == "fps" else number


def _parse_value(text: str) -> Any:
    try:
        return parse_toml(f"value = {text}", "--set")["value"]
    except (FormatError, KeyError):
        return text


def describe_fields() -> list[tuple[str, str, str]]:
    """Return the name, the default and the description of each field of ``Settings``."""
    attributes = (Settings.__doc__ or "").partition("Attributes:")[2].partition("Raises:")[0]
    meanings: dict[str, str] = {}
    for entry in re.split(r"\n {8}(?=\w)", attributes):
        names, _, meaning = entry.partition(":")
        for name in names.split(","):
            meanings[name.strip()] = " ".join(meaning.split())
    defaults = Settings().to_json()
    rows = []
    for entry in fields(Settings):
        default = defaults[entry.name]
        text = "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
        rows.append((entry.name, text, meanings.get(entry.name, "")))
    return rows
