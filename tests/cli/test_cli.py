"""Subcommands that analyze and run programs, and list operators and targets: text and JSON."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ethorch import cli
from tests.cli.commands import answer, complaint


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
    assert "require the goal flash or cycles" in complaint(capsys, "tune", model, "--recipe", "2:4", status=2)


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
