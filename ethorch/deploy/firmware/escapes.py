"""Text from outside in generated files: names in a .pte, a board's title and what YAML says of a processor may be anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

#: Words that a linker script's MEMORY command gives a meaning.
_LINKER_WORDS = {"ORIGIN", "ORG", "O", "LENGTH", "LEN", "L", "MEMORY", "SECTIONS", "INCLUDE"}


def line(value: object) -> str:
    """Return text on one line, for a comment that ends with the line; what does not print becomes a space."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(value)).replace("\\", "/").split())


def c_comment(value: object) -> str:
    """Return text for a C comment or a linker script's: on one line, without the marks that begin or end a comment."""
    return re.sub(r"(?<=\*)(?=/)|(?<=/)(?=\*)", " ", line(value))


def c_string(value: object) -> str:
    """Return text for a C string literal, with escapes that are the same in every C standard."""
    safe = (chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?%' else f"\\{byte:03o}" for byte in str(value).encode())
    return "".join(safe)


def markdown(value: object) -> str:
    """Return text that Markdown takes for nothing but text, on one line, in a cell of a table, too."""
    escaped = re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", line(value))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def linker_labels(names: Iterable[str]) -> dict[str, str]:
    """Return a name for each memory that a linker script accepts: in capitals, different ones for different memories."""
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
