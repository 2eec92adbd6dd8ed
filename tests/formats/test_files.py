"""Folders are written completely or not at all, whatever fails."""

from __future__ import annotations

import errno
import os
import resource
import threading
from pathlib import Path

import pytest

from ethorch.formats import files
from ethorch.formats.files import write_folder

FIRST = {"model.pte": b"first", "delegates/delegate_0.tosa": b"a", "delegates/delegate_1.tosa": b"b"}
SECOND = {"model.pte": b"second", "delegates/delegate_0.tosa": b"c", "new/deep/settings.toml": b"d"}
OBSOLETE = ["delegates/delegate_*"]


def tree(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files in a folder, hidden ones too, and its empty folders."""
    paths = [path for path in folder.rglob("*") if path.is_file() or not any(path.iterdir())]
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"folder" for path in paths}


def test_files_are_replaced_and_others_stay(tmp_path: Path) -> None:
    target = tmp_path / "not" / "there"
    write_folder(target, FIRST)
    assert tree(tmp_path) == {f"not/there/{path}": content for path, content in FIRST.items()}
    (target / "notes.txt").write_bytes(b"mine")
    write_folder(target, SECOND, OBSOLETE)
    assert tree(target) == {**SECOND, "notes.txt": b"mine"}
    write_folder(target, FIRST)
    assert tree(target) == {**SECOND, **FIRST, "notes.txt": b"mine"}


def test_a_relative_folder_and_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(".", FIRST)
    write_folder("inner", SECOND)
    assert tree(tmp_path) == {**FIRST, **{f"inner/{path}": content for path, content in SECOND.items()}}


@pytest.mark.parametrize("exists", [True, False])
def test_a_full_disk_changes_nothing(tmp_path: Path, exists: bool) -> None:
    """The limit on a file's size stands for it: the write fails in its middle."""
    target = tmp_path / "above" / "program"
    if exists:
        write_folder(target, FIRST)
    before = tree(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            write_folder(target, {**SECOND, "last": bytes(2000)}, OBSOLETE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert tree(tmp_path) == before


@pytest.mark.parametrize("exists", [True, False])
def test_whichever_call_fails_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool) -> None:
    """Each rename, new folder and written file fails once, as on a disk that becomes full there."""
    names = [(os, "rename"), (Path, "mkdir"), (Path, "write_bytes")]
    calls, failing = 0, 0

    def guarded(original):
        def call(*args, **options):
            nonlocal calls
            calls += 1
            if calls == failing:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(*args, **options)

        return call

    originals = {name: getattr(owner, name) for owner, name in names}
    while True:
        failing, calls = failing + 1, 1 << 30
        folder = tmp_path / str(failing)
        folder.mkdir()
        if exists:
            write_folder(folder / "program", FIRST)
        before = tree(folder)
        with monkeypatch.context() as patch:
            for owner, name in names:
                patch.setattr(owner, name, guarded(originals[name]))
            calls = 0
            try:
                write_folder(folder / "program", SECOND, OBSOLETE)
            except OSError:
                calls = 1 << 30
                assert tree(folder) == before, f"call {failing}"
                continue
        break
    assert failing > (15 if exists else 6)
    assert tree(folder / "program") == SECOND


def test_what_is_in_the_way_is_not_removed(tmp_path: Path) -> None:
    target = tmp_path / "program"
    (target / "model.pte").mkdir(parents=True)
    (target / "model.pte" / "notes.txt").write_bytes(b"mine")
    (target / "delegates").write_bytes(b"a file")
    before = tree(tmp_path)
    for contents in ({"model.pte": b""}, {"a": b"", "delegates/delegate_0.tosa": b""}):
        with pytest.raises(OSError):
            write_folder(target, contents)
        assert tree(tmp_path) == before


def test_threads_that_write_one_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    rename = os.rename
    monkeypatch.setattr(files.os, "rename", lambda *paths: (both.wait(20) if paths[0].name == "new" else None, rename(*paths)))
    threads = [threading.Thread(target=write_folder, args=(tmp_path / "program", FIRST)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tree(tmp_path / "program") == FIRST and len(list(tmp_path.iterdir())) == 1
