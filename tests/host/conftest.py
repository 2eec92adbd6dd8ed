"""Files by ExecuTorch's own Arm backend."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

MAKER = Path(__file__).parent.parent / "support" / "arm_backend.py"


@pytest.fixture(scope="session")
def incumbent(tmp_path_factory) -> Path:
    """A folder of .pte files by executorch.backends.arm; see tests/support/arm_backend.py. Made once, in some 15 s."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "incumbent"
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
    """Run tests/support/arm_backend.py, in a process of its own; what it said if it failed."""
    command = [sys.executable, str(MAKER), str(folder), *names]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    return child.stderr if child.returncode else ""
