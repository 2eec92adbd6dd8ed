"""`ethorch boards` and `ethorch run-firmware`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ethorch import cli
from ethorch.targets import boards
from tests.deploy.virtual_board.support import compiled


@pytest.fixture(scope="module")
def elf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A firmware that finds no parameters in its memory, so that it reads address 0 for its NPU."""
    return compiled(tmp_path_factory.mktemp("firmware"))


def test_boards(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["boards", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(boards.names())
    assert cli.main(["boards", "corstone-300", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["memories"][0]["sources"]["base"].startswith("Zephyr")
    assert cli.main(["boards", "corstone-300"]) == 0
    assert "0x31000000" in capsys.readouterr().out


def test_a_wrong_board_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text('name = "mine"\ntitel = "x"\n')
    assert cli.main(["boards", str(tmp_path / "mine.toml")]) == 1
    assert "line 2: titel: no such key" in capsys.readouterr().err
    assert cli.main(["boards", "nothing"]) == 2


def test_run_firmware(elf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    assert cli.main(["run-firmware", str(elf), "--npu", "ethos-u55-256", "--trace", str(trace), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["npu"], found["ok"], found["ended"]) == ("ethos-u55-256", False, "exit")
    assert json.loads(trace.read_text())["traceEvents"]
    assert cli.main(["run-firmware", str(elf)]) == 3
    assert "run ended (exit, exit code 1)" in capsys.readouterr().out


def test_run_firmware_asked_wrongly(elf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run-firmware", str(elf), "--npu", "ethos-u85-256"]) == 2
    assert "unknown NPU of board corstone-300" in capsys.readouterr().err
    assert cli.main(["run-firmware", str(tmp_path / "none.elf")]) == 1
    assert "cannot read" in capsys.readouterr().err
