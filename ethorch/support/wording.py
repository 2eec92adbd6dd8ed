"""Words that messages have in common: a count with its noun, and what a mistyped name may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 sample``, ``2 samples``, ``1,200 samples``; ``plural`` of a noun that takes more than an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def shown(value: Any, most: int = 60) -> str:
    """Return a value from a file for a message: ``'int9'``, at most ``most`` characters, ``a table`` for a large table."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a deeply nested list
        return f"a huge {type(value).__name__}"
    if len(text) <= most:
        return text
    return "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else text[: most - 3] + "..."


def near(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known names nearest to a mistyped one, ignoring case: names that contain it, or else the most similar ones."""
    by_lower: dict[str, str] = {}
    for each in known:
        by_lower.setdefault(each.lower(), each)
    longer = [each for lower, each in by_lower.items() if len(name) > 2 and name.lower() in lower]
    return longer[:most] or [by_lower[found] for found in get_close_matches(name.lower(), by_lower, n=most, cutoff=0.6)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'int8'?``, to stand behind a sentence; nothing where no known name is near."""
    found = near(name, known)
    return f" Did you mean {' or '.join(map(repr, found))}?" if found else ""


def kib(size: int | None) -> str:
    """Return a size in KiB as text; ``unknown`` if there is none."""
    return "unknown" if size is None else f"{size / 1024:,.1f} KiB"
