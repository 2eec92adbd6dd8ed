"""Phrases of messages: counts, shortened values, similar names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


def count_noun(count: int, noun: str, plural: str = "") -> str:
    """Format a count and its noun, e.g. ``1,200 samples``. ``plural`` is required only for irregular nouns."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def shorten(value: Any, most: int = 60) -> str:
    """Format a value from a file in at most ``most`` characters. Long dicts and lists become ``a table`` and ``a list``."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with thousands of digits, or a deeply nested list
        return f"a huge {type(value).__name__}"
    if len(text) <= most:
        return text
    return "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else text[: most - 3] + "..."


def near(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Return up to ``most`` names similar to ``name``, ignoring case."""
    by_lower: dict[str, str] = {}
    for candidate in names:
        by_lower.setdefault(candidate.lower(), candidate)
    longer = [candidate for lower, candidate in by_lower.items() if len(name) > 2 and name.lower() in lower]
    return longer[:most] or [by_lower[match] for match in get_close_matches(name.lower(), by_lower, n=most, cutoff=0.6)]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `` Did you mean 'int8'?`` to append to a sentence, or an empty string if no name is similar."""
    similar = near(name, names)
    return f" Did you mean {' or '.join(map(repr, similar))}?" if similar else ""


def kib(size: int | None) -> str:
    """Format a size in bytes or KiB, or return ``unknown`` for None."""
    if size is None:
        return "unknown"
    return count_noun(size, "byte") if abs(size) < 1024 else f"{size / 1024:,.1f} KiB"
