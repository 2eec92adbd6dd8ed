"""The command line: every subcommand on something real, its JSON, and what it says of wrong input."""

from __future__ import annotations

import ast
import importlib.util
import json
import logging
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image

import ethorch
import ethorch.tosa
from ethorch import cli
from ethorch.cli import app
from ethorch.targets.settings import Settings

MODEL = """
import torch
from PIL import Image

def small():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                                torch.nn.Flatten(), torch.nn.Linear(8, 4))
    samples = [(torch.randn(1, 3, 16, 16),) for _ in range(4)]
    return model, samples[0], samples

class Modes(torch.nn.Module):
    def forward(self, x):
        return torch.mode(x.relu())[0]

def modes():
    return Modes(), (torch.rand(1, 8, 8),)

def no_inputs():
    return torch.nn.ReLU()

def two():
    return {"a": torch.nn.ReLU(), "b": torch.nn.ReLU()}, {"a": torch.rand(1, 8), "b": torch.rand(1, 8)}
"""


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's file and the program compiled from it."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "net.py").write_text(MODEL)
    assert cli.main(["compile", f"{folder}/net.py:small", "-o", f"{folder}/net.pte"]) == 0
    assert cli.main(["compile", f"{folder}/net.py:small", "-o", f"{folder}/net"]) == 0
    return folder


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    capsys.readouterr()
    assert cli.main([*map(str, arguments), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert undocumented(str(arguments[0]), found) == []
    return found


def undocumented(command: str, data: Any) -> list[str]:
    """Keys of a subcommand's answer, and of the rows in it, that its section of docs/json.md does not have."""
    text = (Path(__file__).resolve().parent.parent.parent / "docs" / "json.md").read_text()
    sections = dict(re.findall(r"^## (\S.*?)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    own = [title for title in sections if title.split()[0] == command]
    known = {key for title in own for key in re.findall(r"`([^`\n]+)`", sections[title])}
    first = data[0] if isinstance(data, list) else data
    if not own:  # as of the program, and tested with the report
        return []
    rows = [value[0] for value in first.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
    return sorted({key for row in (first, *rows) for key in row} - known)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 1) -> str:
    capsys.readouterr()
    assert cli.main([*map(str, arguments)]) == status
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_compile_writes_a_program_or_a_folder(folder: Path) -> None:
    assert (folder / "net.pte").read_bytes()[4:8] == b"ET12"
    assert list((folder / "net" / "delegates").glob("*.tosa"))
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == ["net.pte", "net.py"]


def test_compile_answers_with_everything(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "compile", f"{folder}/net.py:small", "-o", folder / "again.pte", "--ram", "64K", "--latency", "100fps")
    assert found["target"] == "ethos-u55-128" and found["operators"] == {"npu": 5, "cpu": 0, "delegates": 1}
    assert found["total_cycles"] == sum(layer["op_cycles"] for layer in found["layers"] if layer["where"] == "NPU") > 0
    assert [(row["name"], row["limit"], row["holds"]) for row in found["budgets"]] == [
        ("ram", 65536, True),
        ("latency_ms", 10, True),
    ]
    assert found["ram_bytes"] == found["memory"]["ram_bytes"] > found["sram_bytes"] > 0
    assert found["versions"]["ethorch"] and found["settings"]["scheme"] == "int8"
    assert (folder / "again.pte").read_bytes() == (folder / "net.pte").read_bytes(), "two builds are byte-equal"
    (folder / "again.pte").unlink()


def test_a_budget_that_does_not_hold_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", f"{folder}/net.py:small", "-o", f"{folder}/over.pte", "--ram", "1K", "--min-sqnr-db", "5"]) == 3
    out = capsys.readouterr().out
    assert re.search(r"ram +1.0 KiB +[\d.]+ KiB +no *\n", out) and "SQNR" in out
    assert f"Saved {folder}/over.pte\n" in out
    (folder / "over.pte").unlink()


def test_the_last_line_names_the_folder_and_its_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = folder / "saved"
    assert cli.main(["compile", f"{folder}/net.py:small", "-o", str(saved)]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last == f"Saved {saved}/: model.pte, settings.toml, program.json, comparison.json, delegates/"
    assert {path.name for path in saved.iterdir()} == {"model.pte", "settings.toml", "program.json", "comparison.json", "delegates"}
    shutil.rmtree(saved)


def test_without_an_output_nothing_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.iterdir())
    found = answer(capsys, "compile", f"{folder}/net.py:small", "--ram", "1M")
    assert found["output"] is None and found["budgets"][0]["holds"] and sorted(folder.iterdir()) == before


def test_a_program_on_standard_output(folder: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert cli.main(["compile", f"{folder}/net.py:small", "-o", "-"]) == 0
    assert capsysbinary.readouterr().out == (folder / "net.pte").read_bytes()


def test_settings_of_a_folder_are_used_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compile", f"{folder}/net.py:small", "-o", folder / "kept"]
    options = ["--scheme", "a16w8", "--io", "int16", "--module", "0=int8", "--target", "ethos-u85-256"]
    first = answer(capsys, *arguments, *options, "--set", 'vela_flags=["--optimise=Size"]')
    data = (folder / "kept" / "model.pte").read_bytes()
    kept = folder / "kept.toml"
    shutil.copy(folder / "kept" / "settings.toml", kept)
    again = answer(capsys, *arguments, "--settings", kept)
    assert again["settings"] == first["settings"] and (folder / "kept" / "model.pte").read_bytes() == data
    assert again["inputs"][0]["dtype"] == "int16" and again["settings"]["modules"] == {"0": "int8"}
    changed = answer(capsys, *arguments, "--settings", kept, "--io", "float32", "--set", "modules.4=float")
    assert changed["inputs"][0]["dtype"] == "float32" and changed["settings"]["scheme"] == "a16w8"
    assert changed["settings"]["modules"] == {"0": "int8", "4": "float"}
    kept.unlink()
    shutil.rmtree(folder / "kept")


def test_a_setting_may_be_one_that_only_the_given_target_has(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "memory_mode=Dedicated_Sram_384KB", "--target", "ethos-u85-256"]
    found = answer(capsys, "compile", f"{folder}/net.py:small", *options)
    assert found["settings"]["memory_mode"] == "Dedicated_Sram_384KB"


def test_the_fields_of_the_settings_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", "no.py:net", "--set", "help"]) == 0
    out = capsys.readouterr().out
    assert all(entry.name in out for entry in fields(Settings)) and "Corstone" not in out


def test_calibration_from_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "data").mkdir()
    for number in range(3):
        np.save(folder / "data" / f"{number}.npy", np.random.default_rng(number).normal(0, 10, (3, 16, 16)))
    arguments = ["compile", f"{folder}/net.py:small", "-o", folder / "data" / "x.pte", "--io", "int8"]
    ranges = [answer(capsys, *arguments, *more)["inputs"][0]["codes"]["scale"] for more in ([], ["--calibrate", folder / "data"])]
    assert ranges[1] > 5 * ranges[0]
    np.save(folder / "data" / "9.npy", np.zeros((3, 16, 15)))
    assert "got float64[3, 16, 15]" in complaint(capsys, *arguments, "--calibrate", folder / "data")
    shutil.rmtree(folder / "data")


def test_explain(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "explain", f"{folder}/net.py:modes")
    assert [(row["operator"], row["where"]) for row in found["operators"]][1] == ("aten.relu.default", "NPU")
    (refused, *_) = [row for row in found["operators"] if row["id"] == "operator.unknown"]
    assert refused["operator"] == "aten.mode.default" and refused["cycles"] > 0 and "topk" in refused["remedy"]
    ends = [row for row in found["operators"] if "quantize_per_tensor" in row["operator"]]
    assert ends and {row["id"] for row in ends} <= {"io.floats", "io.between"} and all("CPU" in row["reason"] for row in ends)
    assert any("--io int8" in row["remedy"] for row in ends)
    only = answer(capsys, "explain", f"{folder}/net.py:modes", "--operator", "mode", "--cpu")
    assert {row["operator"] for row in only["operators"]} == {"aten.mode.default"}
    assert cli.main(["explain", f"{folder}/net.py:modes"]) == 0
    out, _ = capsys.readouterr()
    assert "[operator.unknown]" in out and "net.py:" in out
    assert "1 of 2 PyTorch operators on ethos-u55-128 in 1 delegate" in out.splitlines()[-1] and "1 operation on the NPU" in out
    assert not any(line.endswith(" ") for line in out.splitlines()), "no line of blanks when piped"


def test_explain_of_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "explain", folder / "net.pte")
    assert found["target"] == "ethos-u55-128" and {row["where"] for row in found["operators"]} == {"NPU", "CPU"}


def test_explain_memory_and_what_would_help(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "explain", folder / "net.pte", "--memory")
    assert found["memory"]["ram_bytes"] > 0 and found["pools"][0]["method"] == "forward"
    tried = answer(capsys, "explain", f"{folder}/net.py:small", "--suggest")
    assert tried["entries"] and not tried["obstacles"]
    assert "Pass the model" in complaint(capsys, "explain", folder / "net.pte", "--suggest", status=2)


def test_tune_without_an_output_prints_the_modules(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "tune", f"{folder}/net.py:small")
    assert {row["module"] for row in found["rows"]} == {"0", "1", "2", "3", "4"}
    assert cli.main(["tune", f"{folder}/net.py:small"]) == 0
    assert "quantized alone left in float gain" in " ".join(capsys.readouterr().out.split())


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = {check["name"]: check for check in answer(capsys, "doctor")}
    assert found["torch"]["state"] == "ok" and found["C++ compiler"]["state"] == "ok"
    monkeypatch.setenv("CXX", "'")
    assert cli.main(["doctor"]) == 3
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize("quantize", [["-q"], ["-q", "A16W8"]])
def test_the_arm_backends_script(folder: Path, capsys: pytest.CaptureFixture[str], quantize: list[str]) -> None:
    (folder / "arm.py").write_text(MODEL + "\nModelUnderTest, ModelInputs = small()[0], small()[1]\n")
    torch.save((torch.ones(1, 3, 16, 16),), folder / "data.pt")
    arguments = ["-m", folder / "arm.py", "-d", *quantize, "-t", "ethos-u85-256", "--bundleio", "-i", folder / "tosa"]
    more = ["--calibration_data", folder / "data.pt", "--system_config", "Ethos_U85_SYS_DRAM_Mid", "--debug"]
    found = answer(capsys, "aot-arm-compiler", *arguments, "-o", folder / "made", *more)
    assert found["settings"]["scheme"] == ("a16w8" if quantize[1:] else "int8")
    assert found["output"] == str(folder / "made" / "arm_arm_delegate_ethos-u85-256.bpte")
    assert (folder / "made" / "arm_arm_delegate_ethos-u85-256.bpte").read_bytes()[4:6] == b"BP"
    assert list((folder / "tosa").glob("*.tosa"))
    for name in ("made", "tosa"):
        shutil.rmtree(folder / name)
    for name in ("arm.py", "data.pt"):
        (folder / name).unlink()


def test_the_arm_backends_script_has_all_of_its_options() -> None:
    package = importlib.util.find_spec("executorch.backends.arm")
    assert package is not None and package.origin is not None
    tree = ast.parse((Path(package.origin).parent / "scripts" / "aot_arm_compiler.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"]
    theirs = {arg.value for call in calls for arg in call.args if isinstance(arg, ast.Constant)}
    ours = {
        option for parameter in typer.main.get_command(app.app).commands["aot-arm-compiler"].params for option in parameter.opts
    }
    assert len(theirs) > 25 and theirs <= ours


def test_the_arm_backends_script_without_an_npu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TOSA, CMSIS-NN, and no delegate at all; the options without effect are accepted."""
    (folder / "arm.py").write_text(MODEL + "\nModelUnderTest, ModelInputs = small()[0], small()[1]\n")
    script = ["aot-arm-compiler", "-m", folder / "arm.py", "-o", folder / "made"]
    found = answer(capsys, *script, "-d", "-q", "-t", "TOSA-1.0+INT", "--enable_debug_mode", "tosa", "-e", "-c", "x.json")
    assert found["summary"].startswith("5 of 5 PyTorch operators on TOSA-1.0+INT in 1 delegate")
    assert list((folder / "made" / "arm_arm_delegate_TOSA-1.0+INT_debug").glob("*.tosa"))
    options = ["-q", "-t", "cortex-m55", "--enable_qdq_fusion_pass"]  # defines operators: in a process of its own
    subprocess.run([sys.executable, "-m", "ethorch.cli", *map(str, script), *options], check=True, capture_output=True)
    assert b"cortex_m::quantized_conv2d" in (folder / "made" / "arm_arm_cortex-m55.pte").read_bytes()
    answer(capsys, *script, "--bundleio", "-e", "generic")
    assert (folder / "made" / "arm_arm_ethos-u55-128.bpte").read_bytes()[4:6] == b"BP"
    assert complaint(capsys, *script, "-d", "-q", "-t", "vgf", status=2).count(".") == 3  # two of them in TOSA-1.0
    assert "--direct_drive" in complaint(capsys, *script, "-d", "-q", "--direct_drive", status=2)
    assert "missing.so" in complaint(capsys, *script, "-d", "-q", "-s", "missing.so", status=2)
    shutil.rmtree(folder / "made")
    (folder / "arm.py").unlink()


def test_compile_writes_tosa(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.linspace(-1, 1, 3 * 16 * 16, dtype=np.float32).reshape(1, 3, 16, 16)
    found = answer(capsys, "compile", f"{folder}/net.py:small", "-t", "TOSA-1.0+FP", "-o", folder / "net.tosa")
    assert found["output"] == str(folder / "net.tosa")
    (result,) = ethorch.tosa.run(folder / "net.tosa", [x])
    assert result.shape == (1, 4) and np.ptp(result) > 0
    (folder / "net.tosa").unlink()
    assert "expected the suffix .tosa" in complaint(
        capsys, "compile", f"{folder}/net.py:small", "-t", "TOSA-1.0+FP", "-o", "net", status=2
    )


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
    assert found["outputs"][0]["agreement_db"] is None and found["outputs"][0]["largest_difference"] == 0, "nothing differs"
    assert found["layers"][-1]["on_npu"] and found["first_divergence"] is None
    coded = answer(capsys, "compare", f"{folder}/net.py:small", "--set", "io=int8")
    assert coded["bit_exact"] is True and coded["outputs"][0]["quantized_db"] > 20


def test_dis(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stream,) = answer(capsys, "dis", folder / "net.pte")
    assert stream["target"] == "ethos-u55-128"
    assert any(row["operation"].startswith("NPU_OP_CONV") for row in stream["operations"])


def test_a_folder_names_the_operators(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stream,) = answer(capsys, "disassemble", folder / "net")
    conv = next(row for row in stream["operations"] if row["operation"].startswith("NPU_OP_CONV"))
    assert conv["source"]["operator"] == "Conv2D" and "aten.conv2d.default" in conv["source"]["origin"]


def test_run_names_the_operator_it_stops_at(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ethorch.npu import machine

    monkeypatch.setattr(machine, "LEAST_WORK", 0)
    monkeypatch.setattr(machine, "WORK_PER_BYTE", 0)
    assert cli.main(["run", f"{folder}/net"]) == 1
    said = capsys.readouterr().err
    assert "budget" in said and "The command belongs to" in said and "aten.adaptive_avg_pool2d.default" in said


def test_ops_and_targets(capsys: pytest.CaptureFixture[str]) -> None:
    (conv,) = answer(capsys, "ops", "aten.conv2d.default")
    assert (
        conv["source"].startswith("lower/ops/conv.py:") and conv["support"]["U85 int16"] == "all" and "nn.Conv2d" in conv["pytorch"]
    )
    assert len(answer(capsys, "targets")) == 11
    found = answer(capsys, "targets", "--diff", "u55-64", "U55-128")
    assert found["targets"] == ["ethos-u55-64", "ethos-u55-128"] and found["facts"]["MACs per cycle"] == ["64", "128"]
    assert not found["limits"] and not any(found["operators"].values())


def test_what_a_user_reads_of_an_operator(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ops", "nn.Softmax"]) == 0
    text = capsys.readouterr().out
    for words in ("torch.softmax", "F.softmax", "U55: int8 all, int16 all", "Cost: ", "Example: torch.ops.aten.softmax.int(x, "):
        assert words in text
    assert "stride" not in text, "a softmax has none, whatever it is made of"
    assert cli.main(["ops", "bitwise_and"]) == 0
    text = capsys.readouterr().out
    assert "Not supported on U55 int8, U55 int16, U65 int8, U65 int16: BITWISE_AND is not supported [BITWISE_AND.absent]" in text
    assert "Use an ethos-u85 target" in text and "QuantRule" not in text and "I8(" not in text
    assert cli.main(["ops", "pool2d"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["U55", "U65", "U85"] and any(line.startswith("aten.max_pool2d.default") for line in lines)


def test_two_targets_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["targets", "--diff", "u55-128", "u85-256"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) < 180 and "{" not in text
    for words in (
        "500 MHz",
        "1000 MHz",
        "Operators for which ethos-u85-256 supports more",
        "aten.bitwise_and.Tensor (int8, int16)",
        "stride at most 3",
    ):
        assert words in text


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


def test_logging_is_as_before_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    def state() -> list[Any]:
        loggers = [logging.getLogger(name) for name in ("ethorch", "torchao", "torch.export")]
        return [*((logger.level, list(logger.handlers)) for logger in loggers), list(warnings.filters)]

    before = state()
    assert cli.main(["targets"]) == 0
    assert state() == before


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["frobnicate"], ["compile"], ["run", "x.pte", "--seed", "-1"], ["targets", "--no-such-option"]):
        assert cli.main(arguments) == 2


def test_errors_are_plain_data_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    (folder / "text.pte").write_text("this is no program")
    assert cli.main(["run", f"{folder}/text.pte", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["type"] == "ProgramError" and "of a .pte" in err


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


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, ethorch.cli; ethorch.cli.main(['--help']); print({'torch', 'numpy', 'executorch'} & sys.modules.keys())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.splitlines()[-1] == "set()"


def test_a_closed_pipe_is_no_error(folder: Path) -> None:
    command = f"{sys.executable} -m ethorch.cli dis {folder}/net.pte | head -1"
    child = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert child.stderr == ""


def test_evaluate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in "ab":
        (folder / "set" / label).mkdir(parents=True)
        for number in range(3):
            pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "set" / label / f"{number}.png")
    arguments = ["--data", folder / "set", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]
    found = answer(capsys, "evaluate", f"{folder}/net.py:small", *arguments, "--max-samples", 5)
    assert found["samples"] == 5 and set(found["results"]) == {"npu", "float", "quantized"}
    assert sum(map(sum, found["confusion"]["npu"])) == 5
    assert cli.main(["evaluate", f"{folder}/net.pte", *map(str, arguments)]) == 0
    out = capsys.readouterr().out
    assert "6 samples in" in out
    message = complaint(capsys, "evaluate", folder / "net.pte", "--data", folder / "set", "--mean", "1", status=2)
    assert "expected both --mean and --std" in message
    assert "does not exist" in complaint(capsys, "evaluate", folder / "net.pte", "--data", folder / "nowhere")
    shutil.rmtree(folder / "set")


def test_tune_makes_weights_smaller(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, small = f"{folder}/net.py:small", tmp_path / "small.pte"
    data = answer(capsys, "tune", model, "--goal", "flash", "--min-sqnr-db", 15, "-o", small)
    assert data["reached"] and data["flash_bytes"] < data["flash_bytes_before"] and data["output"] == str(small)
    assert [layer["weight"] for layer in data["layers"]] == ["0", "4"] and data["layers"][0]["recipe"] != "as-is"
    assert abs(small.stat().st_size - data["flash_bytes"]) < 200
    capsys.readouterr()
    assert cli.main(["tune", model, "--goal", "flash", "--flash", "100", "--recipe", "2-values", "--keep", "4"]) == 3
    printed = capsys.readouterr().out
    assert "2-values" in printed and "are NOT met" in " ".join(printed.split())
    wrong = ["tune", model, "--goal", "flash", "--min-sqnr-db", "9"]
    assert "io_layout" in complaint(capsys, *wrong, "--set", "io_layout=nhwc", status=2)
    assert "compress.recipe" in complaint(capsys, *wrong, "--recipe", "five")


def test_tune_by_a_metric(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.py").write_text("def nearest(a, b):\n    return -max(float((x - y).abs().max()) for x, y in zip(a, b))\n")
    arguments = ["tune", f"{folder}/net.py:small", "--metric", f"{tmp_path}/metrics.py:nearest"]
    assert answer(capsys, *arguments, "--goal=-100")["raised"] == []
    assert answer(capsys, *arguments, "--goal=-0.003")["raised"]


def test_report_of_a_folder_has_the_accuracy_of_its_comparison(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(folder / "net")]) == 0
    assert "dB relative to the float model (1 sample)" in capsys.readouterr().out


def test_changed_pictures_are_noted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(np.zeros((20, 30), np.uint8)).save(folder / "grey.png")
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(folder / "same.png")
    assert cli.main(["run", str(folder / "net.pte"), "--inputs", str(folder / "grey.png")]) == 0
    assert "grey.png was converted from L to RGB and resized from 30x20 to 16x16." in capsys.readouterr().err
    assert cli.main(["run", str(folder / "net.pte"), "--inputs", str(folder / "same.png")]) == 0
    assert "note: " not in capsys.readouterr().err


METHODS = """
import torch

class Squares(torch.nn.Module):
    def forward(self, x):
        return x * x

def both():
    x = torch.linspace(-1, 1, 8).reshape(1, 8)
    return {"clipped": torch.nn.ReLU(), "squares": Squares()}, {"clipped": x, "squares": x}
"""


@pytest.fixture(scope="module")
def two_methods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program of the methods ``clipped`` and ``squares``."""
    (tmp_path_factory.getbasetemp() / "methods.py").write_text(METHODS)
    saved = tmp_path_factory.mktemp("two_methods") / "build"
    assert cli.main(["compile", f"{tmp_path_factory.getbasetemp()}/methods.py:both", "-o", str(saved)]) == 0
    return saved


def test_explain_names_the_other_methods_and_evaluate_requires_one(
    two_methods: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", str(two_methods)]) == 0
    assert "Method: clipped. Use --method to explain another method: squares." in capsys.readouterr().out
    assert cli.main(["explain", str(two_methods), "--method", "squares"]) == 0
    assert "another method" not in capsys.readouterr().out
    np.save(tmp_path / "x.npy", np.zeros((1, 8), np.float32))
    arguments = ["evaluate", two_methods, "--data", tmp_path / "x.npy"]
    assert "has clipped, squares. Use --method NAME." in complaint(capsys, *arguments, status=2)
    assert answer(capsys, *arguments, "--method", "squares")["samples"] == 1


@pytest.mark.parametrize("subcommand", ["explain", "report", "run", "disassemble"])
def test_an_unknown_method_is_a_usage_error(subcommand: str, two_methods: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, subcommand, two_methods, "--method", "clip", status=2)
    assert "no method 'clip'; it has 'clipped', 'squares'. Did you mean 'clipped'?" in said


@pytest.mark.parametrize("subcommand", ["explain", "report", "run", "disassemble"])
def test_a_replaced_program_in_a_folder_is_refused(
    subcommand: str, two_methods: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(two_methods, tmp_path / "build")
    shutil.copy(folder / "net.pte", tmp_path / "build" / "model.pte")
    said = complaint(capsys, subcommand, tmp_path / "build")
    assert "it describes a .pte of" in said and "Save the program again." in said


@pytest.mark.parametrize("subcommand", ["explain", "run"])
def test_a_bundled_program_is_refused_with_a_remedy(subcommand: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.bpte").write_bytes(b"\x18\0\0\0BP08" + bytes(24))
    said = complaint(capsys, subcommand, tmp_path / "net.bpte")
    assert "Pass the .pte of the bundled program." in said
