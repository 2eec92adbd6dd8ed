"""Files that a program is saved to."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from ethorch.backend.emit.build import Build
from ethorch.formats.files import write_folder, write_whole
from ethorch.program import comparison_file
from ethorch.program.measure.example_comparison import comparisons_to_save
from ethorch.program.plain_data import plain_data
from ethorch.program.record import Record
from ethorch.report.program_data import IN_FOLDER, write_methods_data
from ethorch.support.errors import EthorchError
from ethorch.support.wording import counted
from ethorch.targets.boards.loading import FOLDER
from ethorch.vela import artifacts
from ethorch.vela.lowered import Lowered

#: The program in a saved folder.
PROGRAM = "model.pte"
#: The file of a saved folder that ExecuTorch's Inspector takes.
ETRECORD = "etrecord.bin"
ENDINGS = (".pte", ".bpte", ".tosa")


def check_writable(path: Path) -> None:
    """EthorchError, before anything is computed, when a program cannot be saved there."""
    if path.suffix not in (*ENDINGS, ""):
        raise EthorchError(f"cannot write {path}: a program is saved as {', '.join(ENDINGS)} or, without an ending, as a folder.")
    if path.suffix and path.is_dir():
        raise EthorchError(f"cannot write {path}: it is a folder.")
    if not path.suffix and path.is_file():
        raise EthorchError(f"cannot write {path}: it is a file, and a name without an ending stands for a folder.")
    check_folder(path)


def check_folder(path: Path) -> None:
    """EthorchError when no file can be written there; the folders of a name without an ending may be missing."""
    folder = path.absolute().parent
    while not path.suffix and not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise EthorchError(f"cannot write {path}: {folder} is not a directory one may write to.")


def check_file(path: Path) -> None:
    """EthorchError when no file of this very name can be written."""
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        why = "it is a folder" if path.is_dir() else f"{folder} is not a directory one may write to"
        raise EthorchError(f"cannot write {path}: {why}.")


def tosa_of(build: Build | None) -> bytes:
    """The TOSA flatbuffer of a program with one delegate.

    Raises:
        EthorchError: it was read from a file, or has not one delegate.
    """
    if build is None:
        raise EthorchError("a .pte does not hold the TOSA graph it was made from: save a program that ethorch.compile returned.")
    if len(build.delegates) != 1:
        raise EthorchError(
            f"the program has {counted(len(build.delegates), 'delegate')} and so as many TOSA graphs: save it as a folder."
        )
    return build.delegates[0].tosa


def write_program(folder: Path, record: Record) -> None:
    """Write a program's folder, which ``load`` reads, completely or not at all.

    It has ``model.pte``, ``program.json``, ``comparison.json`` and, if they are known, ``settings.toml``, ``delegates/`` and
    ``etrecord.bin``. All files are about all methods. A board of the user's is copied to ``board.toml``, so that the folder is
    complete on any computer.
    """
    methods = [record[name] for name in (record.method, *(name for name in record.methods if name != record.method))]
    data = write_methods_data([plain_data(method) for method in methods])
    contents = {
        PROGRAM: record.pte,
        IN_FOLDER: (json.dumps(data, indent=2) + "\n").encode(),
        comparison_file.NAME: comparison_file.write_comparisons(comparisons_to_save(record)),
    }
    settings = record.settings
    builds = [known.build for known in record.methods_by_name.values() if known.build is not None]
    if settings is not None:
        board = None
        path = settings.described.path if settings.described else None
        if path is not None and path.parent != FOLDER:
            board = "board.toml"
            contents[board] = path.read_bytes()
        contents["settings.toml"] = settings.to_toml(board).encode()
    delegates = [delegate for build in builds for delegate in build.delegates]
    contents |= {f"delegates/{name}": content for name, content in delegate_files(delegates).items()}
    for record in (build.etrecord for build in builds if build.etrecord is not None):
        contents[ETRECORD] = _etrecord_bytes(record)
    write_folder(folder, contents, obsolete=["settings.toml", "board.toml", ETRECORD, "delegates/delegate_*"])


def describe_saved(path: Path) -> str:
    """Return a line about a program that was saved: the file, or the folder with its files; and a line if data is left out."""
    if not path.is_dir():
        return f"Saved {path}"
    names = (PROGRAM, "settings.toml", "board.toml", IN_FOLDER, comparison_file.NAME, ETRECORD, "delegates")
    found = [f"{name}/" if (path / name).is_dir() else name for name in names if (path / name).exists()]
    missing = {known.missing: None for known in comparison_file.read_comparisons(path).values() if not known.samples}
    return "\n".join([f"Saved {path}/: {', '.join(found)}", *missing])


def delegate_files(delegates: Sequence[Lowered]) -> dict[str, bytes]:
    """Return the TOSA graph, payload and sources of each delegate by file name."""
    found: dict[str, bytes] = {}
    for number, delegate in enumerate(delegates):
        files = artifacts.contents(delegate.graph, delegate.tosa, delegate.payload, delegate.sources)
        found |= {f"delegate_{number}{suffix}": content for suffix, content in files.items()}
    return found


def save_etrecord(record: Any, path: Path) -> None:
    """Write an ``executorch.devtools.etrecord.ETRecord``, whole or not at all."""
    write_whole(path, _etrecord_bytes(record))


def _etrecord_bytes(record: Any) -> bytes:
    written = BytesIO()
    record.save(written)
    return written.getvalue()
