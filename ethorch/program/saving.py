"""Files that a program is saved to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from ethorch.backend.emit.build import Build
from ethorch.formats.files import write_folder, write_whole
from ethorch.support.errors import EthorchError
from ethorch.support.wording import counted
from ethorch.targets.boards.loading import FOLDER
from ethorch.targets.settings import Settings
from ethorch.vela import artifacts
from ethorch.vela.lowered import Lowered

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


def write_program(folder: Path, pte: bytes, data: Mapping[str, Any], settings: Settings | None, builds: Sequence[Build]) -> None:
    """Write a program's folder, which ``load`` reads, completely or not at all.

    It has ``model.pte``, ``program.json`` and, as far as they are known, ``settings.toml``, ``delegates/`` and ``etrecord.bin``.

    The delegates are those of all methods. A board of the user's is kept as ``board.toml``: the folder says all on any computer.
    """
    contents = {"model.pte": pte, "program.json": (json.dumps(data, indent=2) + "\n").encode()}
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
