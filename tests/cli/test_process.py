"""The command as a process: interrupted, on a terminal, piped."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MODEL = """
import sys, time, torch

def net():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    samples = torch.nn.functional.interpolate(torch.rand(4, 3, 8, 8), (32, 32), mode="bilinear")
    return model, samples[:1], samples

def slow():
    print("ready", file=sys.stderr, flush=True)
    time.sleep(600)
"""
COMMAND = [sys.executable, "-m", "ethorch.cli"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("process")
    (folder / "net.py").write_text(MODEL)
    return folder


def test_an_interruption_leaves_nothing_behind(folder: Path) -> None:
    command = [*COMMAND, "compile", f"{folder}/net.py:slow", "-o", f"{folder}/slow.pte"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stderr is not None
    while "ready" not in child.stderr.readline():
        assert child.poll() is None
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130 and out == "" and err.strip() == "interrupted"
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["net.py"]


def test_progress_on_a_terminal_alone(folder: Path) -> None:
    command = [*COMMAND, "compile", f"{folder}/net.py:net", "-o", f"{folder}/net.pte"]
    piped = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert piped.returncode == 0 and piped.stderr == "", piped.stderr
    assert "\x1b" not in piped.stdout and "of 2 PyTorch operators" in piped.stdout
    ours, theirs = pty.openpty()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    shown, deadline = b"", time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            found = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not found:
            break
        shown += found
    assert child.wait(timeout=60) == 0
    for stage in (b"export", b"calibrate", b"compile"):
        assert stage in shown
    quiet = subprocess.run([*command, "--quiet"], capture_output=True, text=True, timeout=300)
    assert quiet.returncode == 0 and quiet.stderr == ""
