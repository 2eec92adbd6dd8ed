"""Save programs to files."""

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
from ethorch.targets.boards.loading import FOLDER
from ethorch.vela import artifacts
from ethorch.vela.lowered import Lowered

#: Name of the program in a saved folder.
PROGRAM = "model.pte"
#: Name of the ETRecord in a saved folder, for ExecuTorch's Inspector.
ETRECORD = "etrecord.bin"
ENDINGS = (".pte", ".bpte", ".tosa")


def check_writable(path: Path) -> None:
    """Raise EthorchError if a program cannot be saved to the path."""
    if path.suffix not in (*ENDINGS, ""):
        raise EthorchError(f"cannot write {path}: expected one of the suffixes {', '.join(ENDINGS)}, or no suffix for a folder.")
    if path.suffix and path.is_dir():
        raise EthorchError(f"cannot write {path}: expected a file, got a folder. Remove the folder, or use another path.")
    if not path.suffix and path.is_file():
        raise EthorchError(
            f"cannot write {path}: expected a folder, got a file. Use one of the suffixes {', '.join(ENDINGS)} to write a file."
        )
    check_folder(path)


def check_folder(path: Path) -> None:
    """Raise EthorchError if the parent folder is not writable. For a path without a suffix, check the nearest existing parent."""
    folder = path.absolute().parent
    while not path.suffix and not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise EthorchError(f"cannot write {path}: {folder} is not a writable folder.")


def check_file(path: Path) -> None:
    """Raise EthorchError if a file cannot be written."""
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        why = "expected a file, got a folder" if path.is_dir() else f"{folder} is not a writable folder"
        raise EthorchError(f"cannot write {path}: {why}.")


def tosa_of(build: Build | None) -> bytes:
    """Return the TOSA flatbuffer of a method with one delegate.

    Raises:
        EthorchError: The program was loaded from a file, or the method does not have exactly one delegate.
    """
    if build is None:
        raise EthorchError(
            "a .tosa file requires the TOSA graph, which a .pte does not contain. Save a program returned by ethorch.compile."
        )
    if len(build.delegates) != 1:
        raise EthorchError(f"a .tosa file requires exactly one delegate, got {len(build.delegates)}. Save the program as a folder.")
    return build.delegates[0].tosa


def write_program(folder: Path, record: Record) -> None:
    """Atomically write a folder that ``load`` can read.

    The folder contains ``model.pte``, ``program.json``, ``comparison.json`` and, if known, ``settings.toml``, ``delegates/`` and
    ``etrecord.bin``. A custom board is copied to ``board.toml``, so that the folder can be loaded on other computers.
    """
    methods = [record[name] for name in (record.method, *(name for name in record.methods if name != record.method))]
    data = write_methods_data([plain_data(method) for method in methods])
    contents = {
        PROGRAM: record.pte,
        IN_FOLDER: (json.dumps(data, indent=2) + "\n").encode(),
        comparison_file.NAME: comparison_file.write_comparisons(comparisons_to_save(record)),
    }
    settings = record.settings
    builds = [method_record.build for method_record in record.methods_by_name.values() if method_record.build is not None]
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
    """Return a line with the saved path, and a line for each reason why a comparison was omitted."""
    if not path.is_dir():
        return f"Saved {path}"
    names = (PROGRAM, "settings.toml", "board.toml", IN_FOLDER, comparison_file.NAME, ETRECORD, "delegates")
    existing = [f"{name}/" if (path / name).is_dir() else name for name in names if (path / name).exists()]
    missing = {comparison.missing: None for comparison in comparison_file.read_comparisons(path).values() if not comparison.samples}
    return "\n".join([f"Saved {path}/: {', '.join(existing)}", *missing])


def delegate_files(delegates: Sequence[Lowered]) -> dict[str, bytes]:
    """Return the contents of the files for each delegate (TOSA graph, payload, sources), by file name."""
    contents: dict[str, bytes] = {}
    for number, delegate in enumerate(delegates):
        files = artifacts.contents(delegate.graph, delegate.tosa, delegate.payload, delegate.sources)
        contents |= {f"delegate_{number}{suffix}": content for suffix, content in files.items()}
    return contents


def save_etrecord(record: Any, path: Path) -> None:
    """Atomically write an ``executorch.devtools.etrecord.ETRecord`` to a file."""
    write_whole(path, _etrecord_bytes(record))


def _etrecord_bytes(record: Any) -> bytes:
    written = BytesIO()
    record.save(written)
    return written.getvalue()
