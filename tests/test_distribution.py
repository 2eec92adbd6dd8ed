"""What is published: metadata, and what wheel and sdist hold."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import ethorch

ROOT = Path(__file__).resolve().parent.parent


def test_the_version_is_that_of_the_metadata() -> None:
    assert ethorch.__version__ == version("ethorch")


def test_the_changelog_starts_with_this_version() -> None:
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0].startswith(f"## [{declared_version()}]")


def declared_version() -> str:
    """The version in pyproject.toml; an installed ethorch may be an older one."""
    return next(line.split('"')[1] for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version = "))


def tracked() -> list[str]:
    """Paths of the files under version control."""
    if not (ROOT / ".git").exists():
        pytest.skip("no version control here to say which files are the project's")
    return subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], set[str]]:
    """The wheel's files with the text of its metadata, and the sdist's files, built from the tracked files without network."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("out")
    for path in tracked():
        if (ROOT / path).is_file():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, source / path)
    build = f"from setuptools import build_meta as b; b.build_sdist({str(out)!r}); b.build_wheel({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name: archive.read(name).decode() if name.endswith("METADATA") else "" for name in archive.namelist()}
    with tarfile.open(sdist) as archive:
        return in_wheel, {name.partition("/")[2] for name in archive.getnames()}


def test_the_wheel_holds_the_package_alone(published: tuple[dict[str, str], set[str]]) -> None:
    wheel, _ = published
    folders = {name.split("/")[0] for name in wheel}
    assert folders == {"ethorch", f"ethorch-{declared_version()}.dist-info"}
    assert {name for name in wheel if name.startswith("ethorch/")} == {path for path in tracked() if path.startswith("ethorch/")}


def test_the_license_is_named_by_its_identifier(published: tuple[dict[str, str], set[str]]) -> None:
    (text,) = (text for text in published[0].values() if text)
    assert {"License-Expression: BSD-3-Clause", "License-File: LICENSE"} <= set(text.splitlines())


def test_the_sdist_holds_what_is_tracked(published: tuple[dict[str, str], set[str]]) -> None:
    _, sdist = published
    assert {path for path in tracked() if (ROOT / path).is_file()} - {".gitignore", ".git-blame-ignore-revs"} <= sdist
