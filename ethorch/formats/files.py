"""Atomic writes of files and folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically: write a temporary file and rename it."""
    target = Path(path)
    partial = _temporary(target.parent, target.name)
    try:
        partial.write_bytes(content)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def write_folder(folder: str | os.PathLike[str], contents: Mapping[str, bytes], obsolete: Iterable[str] = ()) -> None:
    """Write files to a folder, and remove only obsolete files. If a write fails, undo all changes.

    Args:
        contents: Bytes of each file, keyed by path relative to the folder.
        obsolete: Glob patterns of files to remove, such as files from an earlier write.

    Raises:
        OSError: A write fails.
    """
    target = Path(folder)
    with contextlib.ExitStack() as undo:
        for parent in reversed([path for path in target.absolute().parents if not path.exists()]):
            parent.mkdir(exist_ok=True)
            undo.callback(_remove_empty, parent)
        exists = target.exists()
        temporary = _temporary(target if exists else target.parent, target.name)
        try:
            for path, content in contents.items():
                (temporary / "new" / path).parent.mkdir(parents=True, exist_ok=True)
                (temporary / "new" / path).write_bytes(content)
            try:
                if not exists:
                    os.rename(temporary / "new", target)
            except OSError:
                exists = target.is_dir()  # another process created the folder first
                if not exists:
                    raise
            if exists:
                _move_files(temporary, target, contents, obsolete)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        undo.pop_all()


def _move_files(temporary: Path, target: Path, contents: Iterable[str], obsolete: Iterable[str]) -> None:
    with contextlib.ExitStack() as undo:

        def move(source: Path, destination: Path) -> None:
            for parent in reversed([path for path in destination.parents if not path.exists()]):
                parent.mkdir(exist_ok=True)
                undo.callback(_remove_empty, parent)
            os.rename(source, destination)
            undo.callback(os.rename, destination, source)

        replaced = {path.relative_to(target) for pattern in obsolete for path in target.glob(pattern)}
        for name in sorted(replaced | {Path(path) for path in contents if (target / path).is_file()}):
            move(target / name, temporary / "old" / name)
        for path in contents:
            move(temporary / "new" / path, target / path)
        undo.pop_all()


def _temporary(folder: Path, name: str) -> Path:
    return folder / f".{name}.{os.getpid()}.{threading.get_ident()}"


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
