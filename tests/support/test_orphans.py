"""Workers and children end with the process that started them, so that whoever reads its output reads its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

WORKERS = """
import os, time, joblib
from ethorch.support.worker import Task

def work(number):
    print(os.getpid(), flush=True)
    time.sleep(600)

joblib.Parallel(n_jobs=2)(joblib.delayed(Task.of(work))(number) for number in range(2))
"""

#: Vela compiles for about 20 seconds, and holds Python's lock.
INSIDE_VELA = """
import os, joblib
from ethorch import vela
from ethorch.support.worker import Task
from ethorch.targets.compile_spec import EthosUCompileSpec
from tests.helpers.npu_graphs import Graph

def work(number):
    graph = Graph(number)
    x = graph.input(1, 8, 8, 512)
    for _ in range(10):
        x = graph.conv(x, 512, pad=(1, 1, 1, 1))
    graph.output(x)
    tosa = graph.serialize()
    print(os.getpid(), flush=True)
    vela.compile(tosa, EthosUCompileSpec("ethos-u85-256"))

joblib.Parallel(n_jobs=2)(joblib.delayed(Task.of(work))(number) for number in range(2))
"""

#: The child waits for its input, as Vela may compile for minutes.
VELA = """
import os, subprocess, sys
from pathlib import Path
from ethorch.targets.compile_spec import EthosUCompileSpec
from ethorch.vela import child

def start(command, **options):
    (Path(command[3]) / "spec.json").unlink()
    os.mkfifo(Path(command[3]) / "spec.json")
    with subprocess.Popen(command) as process:
        with open(Path(command[3]) / "spec.json", "w"):  # it has opened its end
            print(process.pid, flush=True)
            process.wait()

child.subprocess = type("module", (), {"run": staticmethod(start), "TimeoutExpired": subprocess.TimeoutExpired})
child.compile_apart(b"", EthosUCompileSpec("ethos-u55-128"), 600.0)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("script", "count", "number", "seconds"),
    [
        pytest.param(INSIDE_VELA, 2, signal.SIGTERM, 5, id="inside-vela"),
        pytest.param(WORKERS, 2, signal.SIGTERM, 60, id="workers", marks=pytest.mark.long),
        pytest.param(VELA, 1, signal.SIGKILL, 60, id="vela"),
        pytest.param(WORKERS, 2, signal.SIGKILL, 60, id="workers-killed", marks=pytest.mark.long),
    ],
)
def test_they_end_and_close_the_pipe(script: str, count: int, number: int, seconds: int) -> None:
    children: list[int] = []
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children += [int(parent.stdout.readline()) for _ in range(count)]
        time.sleep(0.5)
        assert all(map(is_running, children)) and parent.pid not in children
        assert_all_end(parent, children, number, seconds)


def assert_all_end(parent: subprocess.Popen[str], children: Iterable[int], number: int = signal.SIGTERM, seconds: int = 60) -> None:
    """Send a signal to a process; it and its children end, and so does its output."""
    parent.send_signal(number)
    try:
        parent.communicate(timeout=seconds)  # until the last process has closed the pipe
        assert parent.returncode == -number
        end = time.monotonic() + seconds  # a process closes its files before it has ended
        while any(map(is_running, children)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not [pid for pid in children if is_running(pid)]
    finally:
        for pid in filter(is_running, [parent.pid, *children]):
            os.kill(pid, signal.SIGKILL)


MODEL = """
import torch

def model():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(1568, 4))
    return net.eval(), (torch.rand(1, 3, 16, 16),)
"""


def descendants(pid: int) -> set[int]:
    """Return the process numbers of all processes that a process has started, and those have."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    children = {child for child, parent in parents.items() if parent == pid}
    return children.union(*map(descendants, children))


@pytest.mark.long
@pytest.mark.parametrize("command", ["explore", "evaluate", "compile"])
def test_subcommands_end_with_all_their_processes(command: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    words = {
        "explore": ["explore", "net.py:model", "--vary", "target=all", "--jobs", "2"],
        "evaluate": ["evaluate", "net.pte", "--data", "data.npz", "--jobs", "2", "--batch", "1"],
        "compile": ["compile", "net.py:model", "-o", "net.pte"],
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = {"cwd": tmp_path, "env": environment, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    if command == "evaluate":
        subprocess.run([sys.executable, "-m", "ethorch.cli", *words["compile"]], **started, check=True)
        generator = np.random.default_rng(0)
        images, labels = generator.random((4000, 3, 16, 16), np.float32), generator.integers(0, 4, 4000)
        np.savez(tmp_path / "data.npz", images=images, labels=labels)
    with subprocess.Popen([sys.executable, "-m", "ethorch.cli", *words[command]], **started) as parent:
        count = 0 if command == "compile" else 3  # two workers and joblib's tracker of resources
        end = time.monotonic() + 120
        while len(descendants(parent.pid)) < count and parent.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(2)
        assert parent.poll() is None, parent.stdout and parent.stdout.read()
        assert_all_end(parent, descendants(parent.pid))
