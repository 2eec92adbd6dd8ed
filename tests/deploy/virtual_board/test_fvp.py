"""Arm's FVPs: the command line, by an executable of the test's own that writes down what it was called with."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from ethorch.deploy import virtual_board
from ethorch.deploy.firmware import project_run
from ethorch.deploy.firmware.firmware import firmware
from ethorch.deploy.virtual_board import fvp
from ethorch.report.doctor import examine
from ethorch.support.errors import EmulatorError
from ethorch.targets import boards
from tests.deploy.firmware.test_methods import steps

FAKE = """#!{python}
import json, os, sys, time
words = sys.argv[1:]
parameters = dict(word.split("=", 1) for before, word in zip(words, words[1:]) if before == "-C")
data = [word for before, word in zip(words, words[1:]) if before == "--data"]
with open({record!r}, "w") as file:
    content = [open(word.partition("@")[0], "rb").read().decode() for word in data]
    libraries = os.environ.get("LD_LIBRARY_PATH")
    json.dump({{"words": words, "parameters": parameters, "data": data, "content": content, "libraries": libraries}}, file)
print("Warning: a warning of the model's")
uart = next(value for name, value in parameters.items() if name.endswith("uart0.out_file"))
{body}
"""
PRINTS = 'open(uart, "wb").write(b"run 0: 1000 cycles of the NPU\\nrun 1: 1234 cycles of the NPU\\nPASS\\n\\x04rest")'


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str = PRINTS) -> Path:
    """An executable called ``name`` on PATH; returns the file that it writes its arguments to."""
    record, program = folder / "record.json", folder / "models" / "Linux64" / name
    program.parent.mkdir(parents=True)
    (folder / "python" / "lib").mkdir(parents=True)
    program.write_text(FAKE.format(python=sys.executable, record=str(record), body=body))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return record


@pytest.mark.parametrize(
    "which, npu, name",
    [
        ("corstone-300", "ethos-u55-64", "FVP_Corstone_SSE-300_Ethos-U55"),
        ("corstone-300", "ethos-u65-512", "FVP_Corstone_SSE-300_Ethos-U65"),
        ("corstone-320", "ethos-u85-1024", "FVP_Corstone_SSE-320"),
    ],
)
def test_the_command_line(probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, npu: str, name: str) -> None:
    record = install(tmp_path, monkeypatch, name)
    run = virtual_board.run(
        probe, which, npu, "fvp", timeout=7.5, arguments="a b", data={0x70001000: b"stream"}, cycles={"0" * 64: 1000}
    )
    said = json.loads(record.read_text())
    part, uart = ("mps4_board.subsystem.", "mps4_board") if "320" in name else ("", "mps3_board")
    wanted = {
        f"{part}ethosu.num_macs": npu.rpartition("-")[2],
        f"{uart}.visualisation.disable-visualisation": "1",
        f"{uart}.telnetterminal0.start_telnet": "0",
        f"{uart}.uart0.shutdown_on_eot": "1",
        f"{part}cpu0.semihosting-enable": "1",
        f"{part}cpu0.semihosting-cmd_line": "a b",
    }
    assert wanted.items() <= said["parameters"].items()
    words = said["words"]
    assert words[words.index("-a") + 1] == str(probe)
    assert words[words.index("--timelimit") + 1] == "8"
    assert said["data"][0].endswith("@0x70001000")
    assert said["content"] == ["stream"]
    assert str(tmp_path / "python" / "lib") in said["libraries"]
    assert (run.text, run.ended, run.exit_code, run.ok) == (run.text, "eot", None, True)
    assert run.text.endswith("PASS\n")
    assert (run.measured_cycles, run.expected_cycles, run.measured_ratio) == (1234, 1000, 1.234)
    assert run.instructions is None and run.npu_cycles is None
    assert run.notes == (f"{name}: Warning: a warning of the model's",)


@pytest.mark.parametrize("last", [3, 4])
def test_measured_cycles_are_compared_with_those_of_the_last_call(
    probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    made = firmware(steps(), tmp_path / "project", board="corstone-320")
    calls = project_run.read_description(tmp_path / "project")["calls"]
    text = "".join(
        f"run {number}: {method}, {1000 + number} cycles of the NPU\n" for number, method in enumerate(calls[: last + 1])
    )
    install(tmp_path, monkeypatch, "FVP_Corstone_SSE-320", f'open(uart, "w").write({text!r})')
    run = project_run.run(tmp_path / "project", probe, "fvp")
    assert made.methods["steps"]["cycles"] != made.methods["step"]["cycles"]
    assert (run.measured_cycles, run.expected_cycles) == (1000 + last, made.methods[calls[last]]["cycles"])


def test_an_fvp_that_is_not_there(probe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmulatorError, match=r"FVP_Corstone_SSE-320 is not on PATH.*developer.arm.com.*unicorn"):
        virtual_board.run(probe, "corstone-320", backend="fvp")


def test_doctor_looks_for_them(probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {check.name: check for check in examine()}
    assert before["unicorn"].state == before["pyelftools"].state == before["ziglang"].state == "ok"
    assert before["FVP_Corstone_SSE-320"].state == "missing"
    assert "developer.arm.com" in before["FVP_Corstone_SSE-320"].advice
    record = install(tmp_path, monkeypatch, "FVP_Corstone_SSE-320")
    after = {check.name: check for check in examine()}
    assert after["FVP_Corstone_SSE-320"].state == "ok"
    assert not record.exists(), "it is not started for that"


def test_a_board_that_has_no_fvp() -> None:
    with pytest.raises(EmulatorError, match="board generic has no FVP for Ethos-U55"):
        fvp.find_command(boards.load("generic"), "u55")


def test_what_an_fvp_cannot_do(probe: Path) -> None:
    with pytest.raises(EmulatorError, match="does not support inject or max_instructions"):
        virtual_board.run(probe, backend="fvp", inject=["never-ends"])


def test_an_fvp_that_does_not_start_says_why(probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "FVP_Corstone_SSE-300_Ethos-U55", 'print("no licence"); sys.exit(3)')
    with pytest.raises(EmulatorError, match=r"(?s)exited with status 3.*no licence"):
        virtual_board.run(probe, backend="fvp")


def test_an_fvp_that_hangs_is_ended(probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fvp, "_GRACE", 2.0)
    install(tmp_path, monkeypatch, "FVP_Corstone_SSE-300_Ethos-U55", 'open(uart, "wb").write(b"begun"); time.sleep(600)')
    run = virtual_board.run(probe, backend="fvp", timeout=1)
    assert (run.ended, run.text, run.ok) == ("timeout", "begun", False)


def test_a_firmware_that_fails(probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 'open(uart, "wb").write(b"FAIL\\n"); sys.exit(1)'
    install(tmp_path, monkeypatch, "FVP_Corstone_SSE-300_Ethos-U55", body)
    run = virtual_board.run(probe, backend="fvp")
    assert (run.ended, run.exit_code, run.ok) == ("exit", 1, False)


@pytest.mark.parametrize(
    "text, cycles",
    [("NPU cycles: 77", 77), ("PMCCNTR cycles = 5", 5), ("12 NPU cycles", 12), ("run 0: 9 cycles of the NPU", 9), ("PASS", None)],
)
def test_cycles_in_what_firmware_prints(text: str, cycles: int | None) -> None:
    assert fvp.read_cycles(text) == cycles
