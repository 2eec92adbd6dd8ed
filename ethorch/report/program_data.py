"""The plain data of a program from a file: what ``--json`` printed, or a folder that ``Program.save`` wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ethorch.support.errors import FormatError
from ethorch.support.text_files import read_json

IN_FOLDER = "program.json"


def is_program_data(path: str | os.PathLike[str]) -> bool:
    """Is it JSON, or a saved folder with its JSON? A ``.pte`` is not."""
    file = Path(path)
    return file.suffix == ".json" or (file / IN_FOLDER).is_file()


def read_program_data(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The data of ``Program.to_json``.

    Args:
        path: a ``.json`` file, or a folder with ``program.json``.

    Raises:
        FormatError: it cannot be read, or is something else.
    """
    file = Path(path)
    if file.is_dir():
        file = file / IN_FOLDER
    data = read_json(file, "Name a file that `ethorch compile --json` wrote.")
    if data.get("format", 1) != 1:
        raise FormatError(f"{file} has format {data['format']!r}; this ethorch reads format 1. Install a newer one.")
    if missing := {"target", "layers", "memory", "versions"} - data.keys():
        raise FormatError(f"{file} is not the data of a program: it has no {', '.join(sorted(missing))}.")
    return data
