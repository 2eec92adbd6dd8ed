"""The documentation: every code block runs, what it shows is what comes, and the site builds without a warning."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ethorch import cli

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs"
BLOCK = re.compile(r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A code block of a page: ``python`` (a file, where it has a title), ``sh``, or ``text``: how the output before begins."""

    language: str
    title: str | None
    code: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in BLOCK.finditer(text):
        yield Block(match["language"], match["title"], match["code"], text[: match.start()].count("\n") + 2)


PAGES = [page for page in sorted(FOLDER.rglob("*.md")) if any(block.language in ("python", "sh") for block in blocks(page))]
NET = next(block.code for block in blocks(FOLDER / "tutorial.md") if block.title == "net.py")


def test_there_are_pages() -> None:
    assert len(PAGES) > 12


def _marked(page: Path) -> Any:
    """A page as a parameter; stories compile for a minute."""
    marks = [pytest.mark.long] if page.parent.name == "stories" else []
    return pytest.param(page, id=str(page.relative_to(FOLDER)), marks=marks)


@pytest.mark.parametrize("page", map(_marked, PAGES))
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name == "net"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "net.py").write_text(NET)
    np.save(tmp_path / "example.npy", torch.rand(1, 3, 48, 48).numpy())
    namespace: dict[str, object] = {"__name__": "__main__"}
    capsys.readouterr()
    for block in blocks(page):
        if block.language == "python" and block.title:
            (tmp_path / block.title).write_text(block.code)
            runpy.run_path(block.title)
        elif block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)
        elif block.language == "sh":
            for line in block.code.splitlines():
                words = shlex.split(line, comments=True)
                if words and words[0] == "ethorch":
                    assert cli.main(words[1:]) == 0, f"{line}\n{capsys.readouterr().err}"
                elif words and words[0] == "pytest":
                    plugin = ["-p", "no:ethorch", "-p", "ethorch.testing.pytest_plugin"]  # whether or not it is installed
                    assert pytest.main([*plugin, "-p", "no:cacheprovider", *words[1:]]) == 0, capsys.readouterr().out
                    sys.modules.pop("test_net")
                elif words and words[0] == "python":
                    run = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True)
                    assert run.returncode == 0, run.stdout + run.stderr
                    print(run.stdout)
                else:
                    assert not words or words[0] in ("pip", "make"), line
        elif block.language == "text":
            wanted = block.code.splitlines()[0]
            assert wanted in capsys.readouterr().out, f"{page.name}:{block.line}"
    sys.modules.pop("net", None)


def test_the_site_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=FOLDER.parent, capture_output=True, text=True, env=environment, timeout=600)
    assert run.returncode == 0, run.stderr
    assert "Compile PyTorch models" in (tmp_path / "site" / "index.html").read_text()
    assert "fonts.googleapis.com" not in (tmp_path / "site" / "index.html").read_text(), "nothing comes from the network"
