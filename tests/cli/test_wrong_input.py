"""Wrong input of a subcommand is one line with a remedy, or JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ethorch import cli
from tests.cli.commands import complaint


@pytest.mark.parametrize(
    ("arguments", "words", "status"),
    [
        (["compile", "{}/net.py:small", "--target", "ethos-u77-1", "-o", "{}/x.pte"], "unknown target", 2),
        (["compile", "{}/net.py:small", "--scheme", "int4", "-o", "{}/x.pte"], "unknown scheme", 2),
        (["compile", "{}/net.py:small", "--module", "0", "-o", "{}/x.pte"], "NAME=SCHEME", 2),
        (["compile", "{}/net.py:small", "--module", "nine=float", "-o", "{}/x.pte"], "unknown module 'nine'", 2),
        (["compile", "{}/net.py:small", "--shape", "1x3xa", "-o", "{}/x.pte"], "1x3x96x96", 2),
        (["compile", "{}/net.py:small", "--latency", "0fps", "-o", "{}/x.pte"], "30fps", 2),
        (["compile", "{}/net.py:small", "--settings", "{}/net.py", "-o", "{}/x.pte"], "net.py is not TOML: ", 2),
        (["compile", "{}/net.py:small", "--weights", "{}/net.py", "-o", "{}/x.pte"], "expected a state dict (tensors by name)", 1),
        (["compile", "{}/net.py:small", "-o", "{}/missing/x.pte"], "cannot write", 1),
        (["compile", "{}/net.py:small", "-o", "{}/x.onnx"], ".bpte", 1),
        (["compile", "{}/net.py:big", "-o", "{}/x.pte"], "names: small, modes, no_inputs, two", 2),
        (["compile", "{}/net.py:no_inputs", "-o", "{}/x.pte"], "returns (module, example_inputs)", 1),
        (["compile", "{}/other.py:small", "-o", "{}/x.pte"], "Python file", 2),
        (["compile", "{}/net.onnx", "-o", "{}/x.pte"], "FILE.py:NAME", 2),
        (["compile", "{}/net.pt2", "-o", "{}/x.pte"], "does not exist", 2),
        (["compile", "no.such.module:net", "-o", "{}/x.pte"], "Python module no.such.module does not exist", 2),
        (["compile", "hf:{}/nowhere", "-o", "{}/x.pte"], "does not exist", 2),
        (["compile", "{}/net.py:smal"], "Did you mean 'small'?", 2),
        (["compile", "{}/nett.py:small"], "Did you mean 'net.py'?", 2),
        (["compile", "{}/net.py:small", "--set", "arean=1"], "Did you mean 'arena'?", 2),
        (["explain", "{}/net.pte", "--set", "arena=1"], "is already compiled", 2),
        (
            ["explain", "{}/net", "--suggest"],
            "Pass the model, e.g. `ethorch explain net.py:net --suggest --settings ",
            2,
        ),
        (["run-firmware", "{}/net"], "does not contain build/firmware.elf. Build the firmware with `python ", 2),
        (["firmware", "-o", "{}/x"], "expected a program or model", 2),
        (["firmware", "{}/net.pte", "-o", "{}/x", "--build-system", "scons"], "expected cmake or cmsis", 2),
        (["tune", "{}/net.py:small", "--goal", "flash"], "requires a budget, got none. Set flash or min_sqnr_db", 2),
        (["tune", "{}/net.py:small", "--goal", "0.5", "--metric", "{}/net.py:none"], "has no 'none'", 2),
        (["tune", "{}/net.py:small", "--goal", "0.5", "--metric", "none"], "--metric: expected FILE.py:NAME", 2),
        (["tune", "{}/net.py:small", "--goal", "0.5", "--metric", "{}/net.py:small"], "/net.py:small failed", 1),
        (["evaluate", "{}/net.pte", "--data", "{}", "--metric", "none"], "--metric: expected FILE.py:NAME", 2),
        (["compare", "{}/net.pte"], "does not contain the float model", 1),
        (["compile", "{}/net.py:small", "--weights", "{}/none.pth"], "none.pth: No such file", 1),
        (["compile", "{}/net.py:two", "-q", "-o", "{}/x.tosa"], "a .tosa file contains one method, but {}/net.py:two has a, b", 2),
        (["compile", "{}/net.py:small", "-t", "TOSA-1.0+INT", "--io", "int8", "--ram", "1K"], "but not --io, --ram. Remove", 2),
        (["compile", "{}/net.py:small", "--shape", "1x3x1000000x1000000"], "not enough memory", 1),
        (["firmware", "{}/net.pte", "-o", "{}/x", "--embed", "zip"], "expected embed to be", 2),
        (["firmware", "{}/net.pte", "-o", "{}/x", "--name", "a b"], "invalid model name", 2),
        (["report", "{}/net", "-o", "{}/net", "--format", "html"], "expected a file, got a folder", 1),
        (["report", "{}/net", "--profile", "{}/x.log", "-o", "{}/x.html"], "Remove --output", 2),
        (["report", "{}/net", "--baseline", "{}/net", "-o", "{}/x.html"], "Use the suffix .md or .json", 2),
        (["run", "{}/net.pte", "-o", "{}"], "expected a file, got a folder", 1),
        (["boards", "--fit", "{}/net.py"], "requires a board to start from", 2),
        (["explain", "{}/net.pte", "--operator", "frobnicate"], "Operators: ", 2),
        (["run", "{}/net.py"], "net.py:NAME -o model.pte` to compile the model. NAME is one of small, modes, no_inputs, two.", 2),
        (["disassemble", "torchvision:resnet18"], "got the model torchvision:resnet18", 2),
        (["run", "{}/net.pte", "--method", "backward"], "no method 'backward'", 2),
        (["run", "{}/net.pte", "--method", "forwrd"], "Did you mean 'forward'?", 2),
        (["run", "{}/net.pte", "--inputs", "{}/net.py"], "expected a sample file", 1),
        (["run", "{}/net.pte", "-o", "{}/missing/o.npz"], "cannot write", 1),
        (["disassemble", "{}/nothing.pte"], "cannot read", 1),
        (["disassemble", "{}/net.pte", "--method", "backward"], "no method 'backward'", 2),
        (["ops", "aten.frobnicate"], "no operator matches", 2),
        (["ops", "sofmax"], "Did you mean 'softmax'", 2),
        (["boards", "corston-300"], "Did you mean 'corstone-300'", 2),
        (["targets", "--diff", "u55-18", "ethos-u85-256"], "Did you mean 'ethos-u55-128'", 2),
        (["targets", "--diff", "ethos-u55-64", "ethos-u56"], "unknown target", 2),
    ],
)
def test_wrong_input_is_one_clear_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str, status: int
) -> None:
    before = sorted(folder.iterdir())
    said = complaint(capsys, *(argument.format(folder) for argument in arguments), status=status)
    assert words.replace("{}", str(folder)) in said
    assert said.startswith(f"ethorch {arguments[0]}: ")
    assert sorted(folder.iterdir()) == before


def test_errors_are_plain_data_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    (folder / "text.pte").write_text("this is not a program")
    assert cli.main(["run", f"{folder}/text.pte", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["type"] == "ProgramError" and "of a .pte" in err


@pytest.mark.parametrize("subcommand", ["explain", "run"])
def test_a_bundled_program_is_refused_with_a_remedy(subcommand: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.bpte").write_bytes(b"\x18\0\0\0BP08" + bytes(24))
    said = complaint(capsys, subcommand, tmp_path / "net.bpte")
    assert "Pass the .pte of the bundled program." in said
