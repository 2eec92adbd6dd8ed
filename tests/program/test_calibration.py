"""Bandwidths fitted to measured times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import ethorch
from ethorch import cli
from ethorch.program.calibrate_board import _Model, calibrate, read_measured
from ethorch.program.program import record_of
from ethorch.support.errors import BoardError, SpecError
from ethorch.targets import boards
from ethorch.targets.boards.loading import FOLDER, parse

NETS = {
    "dense": (nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256)), torch.linspace(-1, 1, 512).reshape(1, 512)),
    "conv": (nn.Conv2d(8, 16, 3, padding=1), torch.linspace(-1, 1, 8 * 48 * 48).reshape(1, 8, 48, 48)),
    "small": (nn.Linear(64, 256), torch.linspace(-1, 1, 64).reshape(1, 64)),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, (module, x) in NETS.items():
        ethorch.compile(module.eval(), x, board="nuvoton-m55m1", io="int8").save(folder / f"{name}.pte")
    return folder


def slower(flash: float) -> boards.Board:
    """The board with another flash."""
    text = (FOLDER / "nuvoton-m55m1.toml").read_text()
    return parse(text.replace("bytes_per_second = 220_000_000", f"bytes_per_second = {flash:.0f}").encode())


def taken(folder: Path, on: boards.Board) -> list[tuple[Path, float]]:
    """What the programs would take on a board, by the model that is fitted."""
    found = []
    for name in NETS:
        model = _Model(on, ethorch.load(folder / f"{name}.pte"))
        per_byte = {memory: 1 / (on.memory(memory).bytes_per_second or 1) for memory in model.memories}
        found.append((folder / f"{name}.pte", 1e3 * model.seconds(per_byte)))
    return found


def test_a_slower_flash_is_found(programs: Path) -> None:
    found = calibrate(boards.load("nuvoton-m55m1"), taken(programs, slower(40e6)))
    assert found.bytes_per_second["flash"] == pytest.approx(40e6, rel=0.02)
    assert found.error < 0.01 < 0.5 < found.error_before
    assert found.source.startswith("fitted to 3 measurements, error ")


def test_measurements_that_contradict_leave_an_error(programs: Path) -> None:
    rows = taken(programs, slower(40e6))
    rows[0] = (rows[0][0], rows[0][1] * 3)
    found = calibrate(boards.load("nuvoton-m55m1"), rows)
    assert 0.05 < found.error < found.error_before


def test_the_command_writes_a_board(programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = taken(programs, slower(100e6))
    table = programs / "measured.csv"
    table.write_text("program,milliseconds\n" + "".join(f"{path.name},{taken_ms}\n" for path, taken_ms in rows))
    out = tmp_path / "Mine.toml"
    assert cli.main(["boards", "nuvoton-m55m1", "--fit", str(table), "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["error"] < 0.02
    made = boards.load(out)
    assert made.name == "mine"
    assert made.memory("flash").bytes_per_second == pytest.approx(100e6, rel=0.02)
    assert made.memory("flash").sources["bytes_per_second"].startswith("fitted to 3 measurements, error")
    assert made.memory("flash").sources["base"] == boards.load("nuvoton-m55m1").memory("flash").sources["base"]
    assert record_of(ethorch.compile(NETS["small"][0], NETS["small"][1], board=out)).spec is not None


def test_files_of_measurements(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text('[[measured]]\nprogram = "a.pte"\nmilliseconds = 2\n')
    assert read_measured(path) == ((tmp_path / "a.pte", 2.0),)
    for text, said in (
        ("", "expected at least one measurement, got none"),
        ("[[measured]]\nprogram = 'a.pte'\n", "measurement 1: expected program and milliseconds"),
        ("[[measured]]\nprogram = 'a.pte'\nmilliseconds = 0\n", "expected milliseconds greater than 0"),
        ("[[", "is not TOML"),
        ("a = " + "9" * 5000, "is not TOML"),
    ):
        path.write_text(text)
        with pytest.raises(SpecError, match=said):
            read_measured(path)
    with pytest.raises(SpecError, match="cannot read"):
        read_measured(tmp_path / "none.csv")


def test_what_cannot_be_calibrated(programs: Path) -> None:
    with pytest.raises(SpecError, match="unknown NPU of board himax-we2"):
        calibrate(boards.load("himax-we2"), [(programs / "conv.pte", 1.0)])
    with pytest.raises(BoardError, match="expected a board that was read from a file"):
        calibrate(slower(1e6), [(programs / "conv.pte", 1.0)])
    with pytest.raises(SpecError, match="expected at least one measurement"):
        calibrate(boards.load("nuvoton-m55m1"), [])
