"""The command as a process: interrupted, on a terminal, piped."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from ethorch import cli

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
#: Says "ready" and waits, at a call of a function that is named by its module: a moment in the middle of the work.
WAITING = """
import importlib, sys, time
from net import net as quick

def net():
    module, owner, name, calls = {module!r}, {owner!r}, {name!r}, {calls}
    holder = importlib.import_module(module)
    holder = getattr(holder, owner) if owner else holder
    whole, count = getattr(holder, name), [0]

    def waits(*args, **options):
        count[0] += 1
        if count[0] == calls:
            print("ready", file=sys.stderr, flush=True)
            time.sleep(600)
        return whole(*args, **options)

    setattr(holder, name, waits)
    return quick()
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


class Terminal(io.StringIO):
    """A stream that says that it is one."""

    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setenv("TERM", "xterm")
    quiet = Terminal()
    monkeypatch.setattr(sys, "stderr", quiet)
    assert cli.main([*command[len(COMMAND) :], "--quiet"]) == 0
    assert quiet.getvalue() == ""


def interrupted(command: list[str], folder: Path) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command that gets Ctrl-C when it says that it is ready."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment)
    assert child.stderr is not None
    said = [child.stderr.readline()]
    while "ready" not in said[-1]:
        assert child.poll() is None and said[-1], "".join(said)
        said.append(child.stderr.readline())
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    return child.returncode, out, err


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "place", "words"),
    [
        ("evaluate", ("ethorch.program.evaluate", "_Closeness", "add", 3), "2 samples in"),
        (
            "tune",
            ("ethorch.tuning.switched_graph", "Switched", "run", 5),
            "Interrupted. The table contains only the finished modules.",
        ),
        ("explore", ("ethorch.program.explore", "_Log", "add", 2), "Interrupted"),
        ("compare", ("ethorch.program.program", "Program", "compare", 1), ""),
    ],
)
def test_an_interruption_gives_the_figures_so_far(folder: Path, command: str, place: tuple[str, str, str, int], words: str) -> None:
    import numpy as np

    work = folder / command
    (work / "data").mkdir(parents=True)
    (work / "net.py").write_text(MODEL)
    for number in range(4):
        np.save(work / "data" / f"{number}.npy", np.random.default_rng(number).normal(size=(3, 32, 32)))
    module, owner, name, calls = place
    (work / "waiting.py").write_text(WAITING.format(module=module, owner=owner, name=name, calls=calls))
    options = {"evaluate": ["--data", "data"], "explore": ["--vary", "scheme=int8,a16w8,int8-per-tensor", "--jobs", "1"]}
    before = sorted(path.name for path in work.iterdir())
    status, out, err = interrupted([*COMMAND, command, "waiting.py:net", *options.get(command, [])], work)
    assert status == 130 and "Traceback" not in err
    assert words in out if words else out == "" and err.strip().endswith("interrupted")
    assert sorted(path.name for path in work.iterdir() if path.name != "__pycache__") == before, "no partial file"


def test_help_takes_less_than_half_a_second() -> None:
    """Of CPU time, which does not depend on who else is at work; the least of three."""
    seconds = []
    for _ in range(3):
        child = subprocess.Popen([*COMMAND, "--help"], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        seconds.append(used.ru_utime + used.ru_stime)
    assert min(seconds) < 0.5


def on_terminal(command: list[str], columns: int) -> tuple[int, str]:
    """Exit status of a command on a terminal of so many columns, and what it shows there, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env={**environment, "TERM": "xterm"})
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += (found := os.read(ours, 65536))
        except OSError:  # the other end is closed
            break
        if not found:
            break
    os.close(ours)
    return child.wait(timeout=60), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("command", ["targets", "boards corstone-300"])
def test_a_table_fits_a_narrow_terminal(command: str, columns: int) -> None:
    status, shown = on_terminal([*COMMAND, *command.split()], columns)
    assert status == 0 and "ethos-u55-128" in shown and max(map(len, shown.splitlines())) <= columns
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown, "nothing is cut off"


#: Subcommands on a real model or its program; and whether they print tables, which are as wide as the terminal, or plain lines.
REAL = {
    "compile net.py:net -o made.pte": True,
    "explain net.py:net": True,
    "explain made/model.pte": True,
    "tune net.py:net": True,
    "tune net.py:net --goal flash --flash 1K": True,
    "explore net.py:net --vary scheme=int8,a16w8 --jobs 1": True,
    "evaluate net.py:net --data x.npy": True,
    "compare net.py:net": False,
    "run made/model.pte": False,
    "disassemble made/model.pte": False,
    "explain made/model.pte --memory": True,
    "report made -o made.html": False,
    "report made --baseline made": True,
    "report made -o made.trace.json": False,
    "doctor": True,
    "ops softmax": False,
    "targets --diff u55-128 u85-256": True,
}


@pytest.mark.long
@pytest.mark.parametrize("command", REAL)
def test_every_command_on_terminals_and_without(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow, usual, piped, as JSON, and in a session that has no terminal at all."""
    import numpy as np

    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    np.save("x.npy", np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32))
    if "made/" in command or " made" in command:
        subprocess.run([*COMMAND, "compile", "net.py:net", "-o", "made"], check=True, capture_output=True)
    words = [*COMMAND, *command.split()]
    wanted = 3 if "--flash" in command else 0
    for columns in (40, 80):
        status, shown = on_terminal(words, columns)
        assert status == wanted, shown
        assert not REAL[command] or max(map(len, shown.splitlines())) <= columns, shown
    alone = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True, timeout=300)
    assert alone.returncode == wanted and "Traceback" not in alone.stderr and "\x1b" not in alone.stdout + alone.stderr
    data = subprocess.run([*words, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert data.returncode == wanted and json.loads(data.stdout) is not None
