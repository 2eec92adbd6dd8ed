"""Read a program's plain data from the JSON of ``--json``, or from a folder of ``Program.save``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ethorch.support.errors import FormatError
from ethorch.support.text_files import read_json

IN_FOLDER = "program.json"
#: Key of the other methods in ``program.json``: for each, the values that differ from those of the first method.
OTHERS = "other_methods"


def is_program_data(path: str | os.PathLike[str]) -> bool:
    """Return True for JSON and for a saved folder with JSON, but not for a ``.pte``."""
    file = Path(path)
    return file.suffix == ".json" or (file / IN_FOLDER).is_file()


def read_program_data(path: str | os.PathLike[str], method: str | None = None) -> dict[str, Any]:
    """Return the data of ``Program.to_json``.

    Args:
        path: See :func:`read_methods_data`.
        method: Name of a method. Defaults to the first method, also if the file does not contain this one.

    Raises:
        FormatError: The file cannot be read, or has other contents.
    """
    methods = read_methods_data(path)
    return methods[method] if method in methods else next(iter(methods.values()))


def read_methods_data(path: str | os.PathLike[str]) -> dict[str | None, dict[str, Any]]:
    """Return the data of each method by its name, the saved program's method first.

    Args:
        path: A ``.json`` file, or a folder with ``program.json``.

    Raises:
        FormatError: The file cannot be read, or has other contents.
    """
    file = Path(path)
    if file.is_dir():
        file = file / IN_FOLDER
    data = read_json(file, "Name a file that `ethorch compile --json` wrote.")
    if data.get("format", 1) != 1:
        raise FormatError(f"{file} has format {data['format']!r}; this ethorch reads format 1. Install a newer one.")
    if missing := {"target", "layers", "memory", "versions"} - data.keys():
        raise FormatError(f"{file} is not the data of a program: it has no {', '.join(sorted(missing))}.")
    others = data.pop(OTHERS, {})
    if not isinstance(others, dict) or not all(isinstance(values, dict) for values in others.values()):
        raise FormatError(f"{file} is not the data of a program: {OTHERS} is not a table for each method.")
    if not isinstance(method := data.get("method"), str | None):
        raise FormatError(f"{file} is not the data of a program: method is {method!r:.60}; expected a name.")
    return {method: data, **{name: {**data, **values} for name, values in others.items()}}


def write_methods_data(methods: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the contents of ``program.json`` for the data of each method."""
    first, *others = methods
    differing = {data["method"]: {key: value for key, value in data.items() if value != first[key]} for data in others}
    return {**first, OTHERS: differing} if others else dict(first)
