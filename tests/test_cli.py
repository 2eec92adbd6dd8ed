"""The command line: every subcommand on something real, its JSON, and what it says of wrong input."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from ethorch import cli

MODEL = """
import torch

def small():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                                torch.nn.Flatten(), torch.nn.Linear(8, 4))
    samples = [(torch.randn(1, 3, 16, 16),) for _ in range(4)]
    return model, samples[0], samples

def no_inputs():
    return torch.nn.ReLU()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's file and the program compiled from it."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "net.py").write_text(MODEL)
    assert cli.main(["compile", f"{folder}/net.py:small", "-o", f"{folder}/net.pte", "--dump", f"{folder}/dump"]) == 0
    return folder


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    capsys.readouterr()
    assert cli.main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert cli.main([*map(str, arguments)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_compile_writes_program_and_dump(folder: Path) -> None:
    assert (folder / "net.pte").read_bytes()[4:8] == b"ET12"
    assert list((folder / "dump").glob("*.tosa"))
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == ["net.pte", "net.py"]


def test_explain(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.main(["explain", f"{folder}/net.py:small", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["target"] == "ethos-u55-128"
    assert "5 of 5 operators on ethos-u55-128 in 1 delegate" in err
    assert found["cpu"] == []
    assert found["performance"][0]["total_cycles"] > 0


def test_run_is_reproducible_and_saves(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = answer(capsys, "run", folder / "net.pte", "--seed", 3, "-o", folder / "out.npz")
    assert first["outputs"][0]["shape"] == [1, 4] and first["random_inputs"]
    assert answer(capsys, "run", folder / "net.pte", "--seed", 3)["outputs"] == first["outputs"]
    assert answer(capsys, "run", folder / "net.pte", "--seed", 4)["outputs"] != first["outputs"]
    assert (folder / "out.npz").stat().st_size > 0
    (folder / "out.npz").unlink()


def test_compare_reaches_the_last_rung(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "compare", f"{folder}/net.py:small")
    assert found["bit_exact"] is True
    assert found["outputs"][0]["quantized_db"] > 20
    assert found["outputs"][0]["agreement_db"] > 30


def test_dis(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stream,) = answer(capsys, "dis", folder / "net.pte")
    assert stream["target"] == "ethos-u55-128"
    assert any(row["operation"].startswith("NPU_OP_CONV") for row in stream["operations"])


def test_dis_names_operators(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stream,) = answer(capsys, "dis", folder / "net.pte", "--dump", folder / "dump")
    conv = next(row for row in stream["operations"] if row["operation"].startswith("NPU_OP_CONV"))
    assert conv["source"]["operator"] == "Conv2D" and "aten.conv2d.default" in conv["source"]["origin"]
    for command in ("dis", "run"):
        assert cli.main([command, f"{folder}/net.pte", "--dump", str(folder)]) == 1
        assert "has no dump of this program" in capsys.readouterr().err


def test_run_names_the_operator_it_stops_at(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ethorch.npu import machine

    monkeypatch.setattr(machine, "LEAST_WORK", 0)
    monkeypatch.setattr(machine, "WORK_PER_BYTE", 0)
    assert cli.main(["run", f"{folder}/net.pte", "--dump", f"{folder}/dump"]) == 1
    said = capsys.readouterr().err
    assert "budget" in said and "It works for" in said and "aten.adaptive_avg_pool2d.default" in said


def test_ops_and_targets(capsys: pytest.CaptureFixture[str]) -> None:
    (conv,) = answer(capsys, "ops", "aten.conv2d.default")
    assert conv["source"].startswith("ops/conv.py:")
    assert len(answer(capsys, "targets")) == 11
    assert answer(capsys, "targets", "--diff", "ethos-u55-64", "ethos-u55-128") == {"macs": ["64", "128"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compile", "{}/net.py:small", "--target", "ethos-u77-1", "-o", "{}/x.pte"], "unknown target"),
        (["compile", "{}/net.py:small", "-o", "{}/missing/x.pte"], "cannot write"),
        (["compile", "{}/net.py:big", "-o", "{}/x.pte"], "it has: small, no_inputs"),
        (["compile", "{}/net.py:no_inputs", "-o", "{}/x.pte"], "has to return (module, example_inputs)"),
        (["compile", "{}/other.py:small", "-o", "{}/x.pte"], "there is no Python file"),
        (["compile", "{}/net.onnx", "-o", "{}/x.pte"], "neither FILE.py:factory nor FILE.pt2"),
        (["compile", "{}/net.pt2", "-o", "{}/x.pte"], "there is no file"),
        (["run", "{}/net.py"], "no .pte"),
        (["run", "{}/net.pte", "--method", "backward"], "no method 'backward'"),
        (["run", "{}/net.pte", "--inputs", "{}/net.py"], "cannot read tensors"),
        (["dis", "{}/nothing.pte"], "cannot read"),
        (["dis", "{}/net.pte", "--method", "backward"], "no method 'backward'"),
        (["ops", "aten.frobnicate"], "no operator is called"),
        (["targets", "--diff", "ethos-u55-64", "ethos-u56"], "unknown target"),
    ],
)
def test_wrong_input_is_one_clear_line(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    before = sorted(folder.iterdir())
    said = complaint(capsys, *(argument.format(folder) for argument in arguments))
    assert words in said
    assert said.startswith(f"ethorch {arguments[0]}: ")
    assert sorted(folder.iterdir()) == before


def test_logging_is_as_before_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    def state() -> list[Any]:
        loggers = [logging.getLogger(name) for name in ("ethorch", "torchao", "torch.export")]
        return [*((logger.level, list(logger.handlers)) for logger in loggers), list(warnings.filters)]

    before = state()
    assert cli.main(["targets"]) == 0
    assert state() == before


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    with pytest.raises(SystemExit) as exit_:
        cli.main(["frobnicate"])
    assert exit_.value.code == 2


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, ethorch.cli; ethorch.cli.parser().format_help(); print('torch' in sys.modules)"
    started = time.process_time(), os.times().children_user
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "False"
    assert os.times().children_user - started[1] < 0.5  # 0.05 s on the machine this was written on


def test_a_closed_pipe_is_no_error(folder: Path) -> None:
    command = f"{sys.executable} -m ethorch.cli dis {folder}/net.pte | head -1"
    child = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert child.stderr == ""
