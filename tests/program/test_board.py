"""Programs for a board: its target, its clocks, its memories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import ethorch
from ethorch import cli
from ethorch.program.program import Program, record_of
from ethorch.report.verdict import verdicts
from ethorch.support.errors import BoardError, SpecError
from ethorch.targets.boards.loading import FOLDER
from ethorch.targets.boards.measured import FVP, LINUX, MEASURED, SILICON, UNESTIMATED, Measured, in_order, spread
from ethorch.targets.settings import Settings

INPUT = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1)).eval()


@pytest.fixture(scope="module")
def program() -> Program:
    return ethorch.compile(net(), INPUT, board="alif-e8-hp")


def test_the_board_chooses_target_and_clock(program: Program) -> None:
    assert program.target == "ethos-u55-256"
    assert (program.estimate.npu_hz, program.estimate.cpu_hz) == (400e6, 400e6)
    assert record_of(program).spec is not None and record_of(program).spec.bytes_per_cycle == pytest.approx(
        {"Sram": 6.096, "OffChipFlash": 0.968}
    )
    again = ethorch.load(program.pte)
    assert again.estimate.npu_hz == 400e6 and record_of(again).spec == record_of(program).spec.publish()


def test_what_each_memory_holds_is_said(program: Program) -> None:
    found = {use.memory: use for use in record_of(program).memory_uses}
    assert found["sram"].needs_bytes == program.memory.component("scratch").ram_bytes
    assert found["mram"].size_bytes == 0x580000 and program.budgets.met
    answers = [verdict.answer for verdict in verdicts(program.to_json())]
    assert "of the 8,192.0 KiB in sram" in answers[0]
    assert "times the estimate" in answers[1]


def test_a_memory_that_is_too_small_is_named_with_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    text = (FOLDER / "alif-e8-hp.toml").read_text().replace("size_bytes = 0x800000", "size_bytes = 0x1000")
    path.write_text(text.replace('name = "alif-e8-hp"', 'name = "small"'))
    small = ethorch.compile(net(), INPUT, board=path, settings=ethorch.Settings(arena="fast"))
    use = next(use for use in record_of(small).memory_uses if use.memory == "sram")
    assert use.needs_bytes > 0x1000 and not small.budgets.met
    small.save(tmp_path / "kept")
    path.unlink()
    kept = ethorch.load(tmp_path / "kept")
    assert record_of(kept).board is not None and record_of(kept).board.name == "small" and kept.budgets.met is False
    assert str(tmp_path) not in (tmp_path / "kept" / "settings.toml").read_text()
    fits = verdicts(small.to_json())[0]
    assert fits.state == "no"
    assert f"{use.needs_bytes - 0x1000:,} bytes MORE than the 4.0 KiB in sram" in fits.answer


def test_milliseconds_are_of_two_clocks() -> None:
    left = ethorch.compile(net(), INPUT, board="renesas-ra8p1", modules={"2": "float"})
    data = left.to_json()
    assert (data["core_clock_hz"], data["cpu_clock_hz"]) == (500e6, 1e9)
    assert data["cpu_cycles"] > 0
    on_cpu = data["cpu_cycles"] + data["overhead_cycles"]
    assert data["milliseconds"] == pytest.approx(1e3 * (data["total_cycles"] / 500e6 + on_cpu / 1e9))


def test_settings_with_a_board() -> None:
    assert Settings().target == "ethos-u55-128"
    chosen = Settings(board="corstone-300", target="u65-512")
    assert chosen.target == "ethos-u65-512" and Settings.from_toml(chosen.to_toml()) == chosen
    assert chosen.with_(board="alif-e8-u85").target == "ethos-u85-256"
    assert chosen.with_(board="corstone-300").target == "ethos-u65-512"
    assert Settings(board="alif-e8-hp").ram_limit == 0x800000 + 0x40000 + 0x100000
    assert Settings(board="alif-e8-hp", ram="1M").ram_limit == 1 << 20
    assert Settings(board="nxp-imx93").flash_limit is None
    assert Settings(board="alif-e8-hp", constants="auto").spec.memory_mode == "Shared_Sram"
    assert Settings(board="alif-e8-hp", system_config="Ethos_U55_Deep_Embedded").spec.config_text is None
    with pytest.raises(SpecError, match=r"unknown NPU of board alif-e8-hp.*ethos-u55-256"):
        Settings(board="alif-e8-hp", target="ethos-u85-256")
    with pytest.raises(SpecError, match="unknown board 'alif-e9'"):
        Settings(board="alif-e9")


def test_a_board_file_of_the_users_through_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\ndef net():\n    return torch.nn.Conv2d(3, 8, 3).eval(), (torch.linspace(0, 1, 192).reshape(1, 3, 8, 8),)\n"
    )
    mine = tmp_path / "my.toml"
    mine.write_text((FOLDER / "himax-we2.toml").read_text().replace("clock_hz = 400_000_000", "clock_hz = 100_000_000"))
    command = ["compile", f"{tmp_path / 'net.py'}:net", "-o", str(tmp_path / "m.pte"), "--board", str(mine)]
    assert cli.main(command) == 0
    assert "100 MHz" in capsys.readouterr().out
    assert ethorch.load(tmp_path / "m.pte").target == "ethos-u55-64"
    mine.write_text(mine.read_text().replace("interrupt = 192", 'interrupt = "192"'))
    assert cli.main(command) != 0
    assert "my.toml, line" in (said := capsys.readouterr().err) and "npu 1, interrupt: found '192'" in said
    with pytest.raises(BoardError, match="npu 1, interrupt"):
        Settings(board=str(mine))


def test_the_spread_of_published_figures() -> None:
    def row(board: str, where: str, ratio: float) -> Measured:
        return Measured("net", "ethos-u55-256", board, where, ratio, 1.0, "us", "them")

    rows = [row("a", SILICON, 1.5), row("a", SILICON, 2.0), row("b", SILICON, 4.0), row("a", FVP, 0.9)]
    linux = [*rows, row("c", LINUX, 20.0)]
    own, all_silicon, with_linux, without_linux = spread("a", rows), spread("b", rows), spread("c", linux), spread("b", linux)
    assert own and all_silicon and with_linux and without_linux
    assert (own.low, own.high, own.count) == (1.5, 2.0, 2) and "1.5 to 2.0 times" in str(own)
    assert (without_linux.high, with_linux.high, with_linux.of) == (4.0, 20.0, "boards with silicon")
    assert (all_silicon.high, all_silicon.count) == (4.0, 3)
    assert spread("a", []) is None and spread("a", [row("a", FVP, 0.9)]) is None
    assert all(0.1 < found.ratio < 100 and found.source for found in MEASURED)


def test_estimates_rank_the_networks_of_a_board() -> None:
    assert in_order(MEASURED)
    e8 = [row for row in MEASURED if row.board.startswith("alif-e8-u85")]
    assert len({row.network for row in e8}) == 5
    fastest, slowest = min(e8, key=lambda row: row.milliseconds), max(e8, key=lambda row: row.milliseconds)
    swapped = [replace(fastest, estimate_ms=slowest.estimate_ms + 1), *(row for row in e8 if row is not fastest)]
    assert not in_order(swapped)
    assert all(row.why and row.source for row in UNESTIMATED)
