"""Escape untrusted text, such as names in a .pte or a YAML file, for generated files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

#: Reserved words in a linker script's MEMORY command.
_LINKER_WORDS = {"ORIGIN", "ORG", "O", "LENGTH", "LEN", "L", "MEMORY", "SECTIONS", "INCLUDE"}


def line(value: object) -> str:
    """Escape text for a line comment. Nonprintable characters become spaces, and backslashes become slashes."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(value)).replace("\\", "/").split())


def c_comment(value: object) -> str:
    """Escape text for a one-line comment in C or in a linker script."""
    return re.sub(r"(?<=\*)(?=/)|(?<=/)(?=\*)", " ", line(value))


def c_string(value: object) -> str:
    """Escape text for a string literal in any C standard."""
    safe = (chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?%' else f"\\{byte:03o}" for byte in str(value).encode())
    return "".join(safe)


def markdown(value: object) -> str:
    """Escape text for a line or a table cell of Markdown."""
    escaped = re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", line(value))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def linker_labels(names: Iterable[str]) -> dict[str, str]:
    """Return a distinct upper-case linker script name for each memory."""
    labels: dict[str, str] = {}
    for name in names:
        label = re.sub(r"\W", "_", name.upper(), flags=re.ASCII)
        if not label[:1].isalpha() or label in _LINKER_WORDS:
            label = f"MEMORY_{label}"
        while label in labels.values():
            label += "_"
        labels[name] = label
    return labels


FILTERS: dict[str, Callable[[object], str]] = {"line": line, "c_comment": c_comment, "c_string": c_string, "markdown": markdown}
