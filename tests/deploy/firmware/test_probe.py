"""The firmware of a probe: what it prints on the virtual board, and which passes ``compile`` then uses."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ethorch
from ethorch import cli
from ethorch.deploy import virtual_board
from ethorch.deploy.firmware import firmware as project_writer
from ethorch.deploy.firmware import project_run
from ethorch.deploy.firmware.cases import Case, cases
from ethorch.deploy.firmware.firmware import firmware
from ethorch.npu.passes.names import PASSES
from ethorch.program import probe
from ethorch.support.errors import EthorchError
from tests.program.test_methods import INPUTS, TARGET, models


def run(project: Path) -> str:
    text: str = project_run.run(project, project_run.build(project)).text
    return text


def cases_with_a_fault(*arguments: Any) -> list[Case]:
    """Cases whose expected outputs differ by a bit from those of the method ``copy_elision``."""
    return [
        replace(case, outputs=(bytes([case.outputs[0][0] ^ 1]) + case.outputs[0][1:], *case.outputs[1:]))
        if case.call.method == "copy_elision"
        else case
        for case in cases(*arguments)
    ]


def test_a_probe_tells_correct_streams_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "build_probe", partial(probe.build_probe, runs=16))
    monkeypatch.setattr(project_writer, "cases", cases_with_a_fault)
    project, log = tmp_path / "probe", tmp_path / "probe.log"
    assert cli.main(["firmware", "--probe", "--board", "corstone-300", "-o", str(project), "--json"]) == 0
    capsys.readouterr()
    assert project_run.read_description(project)["expected"] == []
    log.write_text(run(project))
    results = re.findall(r"^stream (\w+): 16 runs, (\d+) different$", log.read_text(), re.M)
    assert results[0] == ("vela", "0") and results[-1] == ("optimized", "0") and len(results) >= 5
    assert [(name, count) for name, count in results if count != "0"] == [("copy_elision", "16")]
    assert "FAIL" in log.read_text().split()

    settings = ethorch.Settings(stream=str(log))
    program = ethorch.compile(nn.Conv2d(8, 8, 3).eval(), torch.rand(1, 8, 16, 16), "ethos-u55-128", settings=settings)
    program.save(tmp_path / "folder")
    log.unlink()
    loaded = ethorch.load(tmp_path / "folder").settings
    assert loaded is not None and loaded.stream == ",".join(name for name in PASSES if name not in ("copy-elision", "dma-copies"))


def test_repeats_require_a_program_without_state(tmp_path: Path) -> None:
    program = ethorch.compile(nn.ReLU(), torch.rand(1, 4), "ethos-u55-128", progress=False)
    with pytest.raises(EthorchError, match="expected repeats to be a positive number, got 0"):
        firmware(program, tmp_path / "a", repeats=0)
    with pytest.raises(EthorchError, match="expected repeats below 2147483648 for 2 calls, got 2147483648"):
        firmware(program, tmp_path / "a", samples=[(torch.rand(1, 4),)] * 2, repeats=1 << 31)
    firmware(program, tmp_path / "b", samples=[(torch.rand(1, 4),)] * 3, repeats=2)
    assert re.search(r"^stream forward: 6 runs, 0 different\nPASS$", run(tmp_path / "b"), re.M)
    stopped = virtual_board.run(tmp_path / "b" / "build" / "firmware.elf", npu="ethos-u55-128", inject=["never-ends"])
    assert re.search(r"TIMEOUT.*\nstream forward: 1 runs, 1 different\nFAIL$", stopped.text.rstrip("\x04\n"), re.M)
    states = ethorch.compile(models(), INPUTS, TARGET, progress=False)
    with pytest.raises(EthorchError, match="repeats requires a program without state"):
        firmware(states, tmp_path / "c", repeats=2)


def test_a_probe_takes_no_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["firmware", "model.pte", "--probe", "-o", str(tmp_path / "p")]) == 2
    assert "--probe writes its own program" in capsys.readouterr().err
    assert cli.main(["firmware", "--probe", "--method", "forward", "-o", str(tmp_path / "p")]) == 2
    assert "--probe does not support" in capsys.readouterr().err
