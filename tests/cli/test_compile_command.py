"""``ethorch compile``: its output, settings, budgets and calibration samples."""

from __future__ import annotations

import re
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import ethorch
import ethorch.tosa
from ethorch import cli
from ethorch.targets.settings import Settings
from tests.cli.commands import answer, complaint


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
