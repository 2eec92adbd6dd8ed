"""The plain data of a program from a file: what ``--json`` printed, or a folder that ``Program.save`` wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ethorch.errors import EthorchError, FormatError

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
        EthorchError: it cannot be read.
        FormatError: it is something else.
    """
    file = Path(path)
    if file.is_dir():
        file = file / IN_FOLDER
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise EthorchError(f"cannot read {file}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise FormatError(f"{file} is no JSON; what `ethorch compile --json` prints is wanted.") from None
    wanted = {"target", "layers", "memory", "versions"}
    if not isinstance(data, dict) or not wanted <= data.keys():
        missing = wanted - (data.keys() if isinstance(data, dict) else set())
        raise FormatError(f"{file} is not the data of a program: it has no {', '.join(sorted(missing))}.")
    return data
