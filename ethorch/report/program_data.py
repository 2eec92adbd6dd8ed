from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ethorch.support.errors import FormatError
from ethorch.support.text_files import check_format, read_json

IN_FOLDER = "program.json"
#: Key in ``program.json`` of all methods except the first. Each entry contains only values that differ from the first method's.
OTHERS = "other_methods"


def is_program_data(path: str | os.PathLike[str]) -> bool:
    """Return True if the path is a ``.json`` file, or a folder that contains ``program.json``."""
    file = Path(path)
    return file.suffix == ".json" or (file / IN_FOLDER).is_file()


def read_program_data(path: str | os.PathLike[str], method: str | None = None) -> dict[str, Any]:
    """Return the result of ``Program.to_json`` for one method.

    Args:
        path: See :func:`read_methods_data`.
        method: Name of a method. If the file does not contain this method, the first method is used.

    Raises:
        FormatError: The file cannot be read, or has an unexpected format.
    """
    methods = read_methods_data(path)
    return methods[method] if method in methods else next(iter(methods.values()))


def read_methods_data(path: str | os.PathLike[str]) -> dict[str | None, dict[str, Any]]:
    """Return the result of ``Program.to_json`` for each method, keyed by name, in the order of the file.

    Args:
        path: A ``.json`` file, or a folder that contains ``program.json``.

    Raises:
        FormatError: The file cannot be read, or has an unexpected format.
    """
    file = Path(path)
    if file.is_dir():
        file = file / IN_FOLDER
    remedy = "Use the output of `ethorch compile --json`."
    data = read_json(file, remedy)
    check_format(data.get("format", 1), 1, str(file), remedy)
    if missing := {"target", "layers", "memory", "versions"} - data.keys():
        raise FormatError(f"{file}: expected the result of Program.to_json, got data without {', '.join(sorted(missing))}.")
    program = file.with_name("model.pte")
    if Path(path).is_dir() and program.is_file() and data.get("pte_bytes") != (size := program.stat().st_size):
        raise FormatError(
            f"{file}: expected a file written by Program.save (it describes a .pte of {data.get('pte_bytes')!r:.20} bytes, but "
            f"{program.name} has {size} bytes). Save the program again."
        )
    others = data.pop(OTHERS, {})
    if not isinstance(others, dict) or not all(isinstance(values, dict) for values in others.values()):
        raise FormatError(f"{file}: expected an object for each method in {OTHERS}, got {others!r:.60}.")
    if not isinstance(method := data.get("method"), str | None):
        raise FormatError(f"{file}: expected a string or null as 'method', got {method!r:.60}.")
    return {method: data, **{name: {**data, **values} for name, values in others.items()}}


def write_methods_data(methods: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the contents of ``program.json``, given the result of ``Program.to_json`` for each method."""
    first, *others = methods
    differing = {data["method"]: {key: value for key, value in data.items() if value != first[key]} for data in others}
    return {**first, OTHERS: differing} if others else dict(first)
