"""What the README shows works when pasted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", [code for language, code in BLOCKS if language == "python"])
def test_python(code: str, tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("line", [line for language, code in BLOCKS if language == "sh" for line in code.splitlines()])
def test_shell_lines_name_what_exists(line: str) -> None:
    words = line.partition("#")[0].split()
    if words[0] == "make":
        run = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
    else:
        assert words[0] == "ethorch", f"{line!r}: neither make nor ethorch"
        run = subprocess.run([sys.executable, "-m", "ethorch.cli", words[1], "--help"], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr


def test_names_files_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    for module in re.findall(r"python -m ([\w.]+)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
