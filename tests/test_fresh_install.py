"""The wheel and the sdist in fresh environments, outside the checkout: the start page works as it is written."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_site import FOLDER, blocks

pytestmark = pytest.mark.long
ROOT = FOLDER.parent


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """``wheel`` and ``sdist``, built from the tracked files."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("out")
    if not (ROOT / ".git").exists():
        pytest.skip("no version control here to say which files are the project's")
    for path in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / path).is_file():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, source / path)
    build = f"from setuptools import build_meta as b; b.build_sdist({str(out)!r}); b.build_wheel({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    return {"wheel": next(out.glob("*.whl")), "sdist": next(out.glob("*.tar.gz"))}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_the_start_page(kind: str, distributions: dict[str, Path], tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    binaries = tmp_path / "venv" / "bin"
    install = [binaries / "python", "-m", "pip", "install", "--quiet", distributions[kind]]
    subprocess.run(install, check=True, timeout=1800, env=environment)
    work = tmp_path / "work"
    work.mkdir()
    for block in blocks(FOLDER / "index.md"):
        if block.language == "python" and block.title:
            (work / block.title).write_text(block.code)
            continue
        commands = [["python", "-c", block.code]] if block.language == "python" else []
        if block.language == "sh":
            commands = [words for line in block.code.splitlines() if (words := shlex.split(line, comments=True))]
        for words in commands:
            if words[0] != "pip":
                run = subprocess.run(
                    [binaries / words[0], *words[1:]], cwd=work, capture_output=True, text=True, timeout=600, env=environment
                )
                assert run.returncode == 0, f"{words}\n{run.stdout}\n{run.stderr}"
    assert (work / "net.pte").stat().st_size > 1000
