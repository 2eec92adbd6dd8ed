"""Read text, JSON and TOML files."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from ethorch.support.errors import FormatError
from ethorch.support.wording import shorten

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a UTF-8 file.

    Raises:
        FormatError: The file cannot be read, or is not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"cannot read {path}: byte {error.start} is not UTF-8. Save the file as UTF-8 text.") from None
    except (OSError, ValueError) as error:  # ValueError: the path contains a zero byte
        raise FormatError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from None


def read_json(path: str | os.PathLike[str], remedy: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Args:
        remedy: Sentence that states how to create a valid file.

    Raises:
        FormatError: The file cannot be read, or is not a JSON object.
    """
    return parse_json(read_text(path), str(path), remedy)


def parse_json(text: str, label: str, remedy: str) -> dict[str, Any]:
    """Parse the text of a JSON object, called ``label`` in messages. See :func:`read_json`."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise FormatError(f"{label} cannot be read as JSON: it is nested too deeply. {remedy}") from None
    except ValueError as error:  # also raised for an integer with too many digits
        raise FormatError(f"{label} is not JSON: {str(error).partition(';')[0]}. {remedy}") from None
    if not isinstance(content, dict):
        raise FormatError(f"{label} contains {shorten(content)}; expected an object with keys. {remedy}")
    return content


def check_format(version: Any, expected: int, label: str, remedy: str) -> None:
    """Raise FormatError if a file's format is not ``expected``. ``remedy`` is for malformed values."""
    if version != expected:
        newer = isinstance(version, int) and version > expected
        remedy = "Install a newer ethorch." if newer else remedy
        raise FormatError(f"{label}: expected format {expected}, got {shorten(version)}. {remedy}")


def finite(data: Any) -> Any:
    """Replace infinite and nan values with None, because JSON does not support them."""
    if isinstance(data, dict):
        return {key: finite(data[key]) for key in data}
    if isinstance(data, (list, tuple)):
        return list(map(finite, data))
    return None if isinstance(data, float) and not math.isfinite(data) else data


def parse_toml(text: str, label: str) -> dict[str, Any]:
    """Parse TOML text, called ``label`` in messages, or raise FormatError."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise FormatError(f"{label} cannot be read as TOML: it is nested too deeply.") from None
    except ValueError as error:  # also raised for an integer with too many digits
        raise FormatError(f"{label} is not TOML: {str(error).partition(';')[0].rstrip('.')}.") from None
