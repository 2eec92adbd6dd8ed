"""Files by ExecuTorch's own Arm backend."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

MAKER = Path(__file__).parent.parent / "helpers" / "arm_backend.py"


@pytest.fixture(scope="session")
def incumbent(tmp_path_factory) -> Path:
    """A folder of .pte files by executorch.backends.arm; see tests/helpers/arm_backend.py. Made once, in some 25 s."""
    return made_once(tmp_path_factory, "incumbent", make)


@pytest.fixture(scope="session")
def cortex_m_operators(incumbent) -> Path:
    """A folder with the file of tests/helpers/cortex_m.py that calls each operator in several ways, made by the same process."""
    return incumbent / "cortex_m"


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], str]) -> Path:
    """Return a folder that one of xdist's workers fills, while the others wait; ``make`` returns what went wrong."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / name
    done = folder / "done"
    try:
        folder.mkdir()
    except FileExistsError:  # another worker makes them
        for _ in range(3000):
            if done.exists():
                break
            time.sleep(0.1)
        assert done.read_text() == "", done.read_text()
        return folder
    problem = make(folder)
    done.write_text(problem)
    assert not problem, problem
    return folder


def make(folder: Path, *names: str) -> str:
    """Run tests/helpers/arm_backend.py, in a process of its own; what it said if it failed."""
    return _run(MAKER, folder, *names)


def make_cortex_m(folder: Path, *names: str) -> str:
    """Run tests/helpers/cortex_m.py, in a process of its own; what it said if it failed."""
    return _run(MAKER.with_name("cortex_m.py"), folder, *names)


def _run(script: Path, folder: Path, *names: str) -> str:
    command = [sys.executable, str(script), str(folder), *names]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    return child.stderr if child.returncode else ""
