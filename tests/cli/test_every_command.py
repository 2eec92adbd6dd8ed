"""Each subcommand: its help, wrong usage, missing files and interruptions."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from ethorch import cli
from ethorch.cli import app

#: Subcommands that begin with a model or with a program, and what they need besides.
COMMANDS_OF_MODELS: dict[str, list[str]] = {
    "aot-arm-compiler": ["-m", "no.py:net", "-d", "-q", "-t", "ethos-u55-128", "-o", "made"],
    "compare": [],
    "compile": ["-o", "made.pte"],
    "evaluate": ["--data", "."],
    "explain": [],
    "explore": ["--vary", "scheme=int8", "-o", "made.html"],
    "firmware": ["-o", "made"],
    "report": ["-o", "made.html"],
    "tune": ["--goal", "flash", "--flash", "1K", "-o", "made.pte"],
}
COMMANDS_OF_PROGRAMS: dict[str, list[str]] = {
    "disassemble": [],
    "generate": ["--tokenizer", "no.p", "--prompt", "a"],
    "run": ["-o", "made.npz"],
    "run-firmware": ["--trace", "made.json"],
}


def every_command() -> list[str]:
    return sorted(app.COMMANDS)


@pytest.mark.parametrize("command", every_command())
def test_help_of_each_subcommand(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert cli.main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "--json" in out and all(len(line) <= 40 for line in out.splitlines())


@pytest.mark.parametrize("command", every_command())
def test_wrong_usage_of_each_subcommand(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--no-such-option"]) == 2
    assert cli.main([command, *["surplus"] * 4]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err and err.startswith("Usage: ")


@pytest.mark.parametrize("command", [*COMMANDS_OF_MODELS, *COMMANDS_OF_PROGRAMS])
def test_what_is_not_there_is_said_by_each_subcommand(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, options = ("no.py:net", COMMANDS_OF_MODELS) if command in COMMANDS_OF_MODELS else ("no.pte", COMMANDS_OF_PROGRAMS)
    assert cli.main([command, *([] if command == "aot-arm-compiler" else [name]), *options[command], "--json"]) in (1, 2)
    out, err = capsys.readouterr()
    assert "no.p" in err and "bug in ethorch" not in err and json.loads(out)["error"]["message"] in err
    assert not list(tmp_path.iterdir()), "no partial file"


@pytest.mark.parametrize("command", COMMANDS_OF_MODELS)
def test_an_interruption_of_each_subcommand(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no.py").write_text("def net():\n    raise KeyboardInterrupt\n")
    options = COMMANDS_OF_MODELS[command]
    assert cli.main([command, *([] if command == "aot-arm-compiler" else ["no.py:net"]), *options]) == 130
    out, err = capsys.readouterr()
    assert out == "" and err.strip() == "interrupted"
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["no.py"]


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["frobnicate"], ["compile"], ["run", "x.pte", "--seed", "-1"], ["targets", "--no-such-option"]):
        assert cli.main(arguments) == 2


def test_logging_is_as_before_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    def state() -> list[Any]:
        loggers = [logging.getLogger(name) for name in ("ethorch", "torchao", "torch.export")]
        return [*((logger.level, list(logger.handlers)) for logger in loggers), list(warnings.filters)]

    before = state()
    assert cli.main(["targets"]) == 0
    assert state() == before


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, ethorch.cli; ethorch.cli.main(['--help']); print({'torch', 'numpy', 'executorch'} & sys.modules.keys())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.splitlines()[-1] == "set()"
