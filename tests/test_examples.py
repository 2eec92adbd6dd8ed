"""Each short example runs as it is and says what its docstring promises."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples"
SAYS = {
    "quantize_and_run": "10 of 10 PyTorch operators on ethos-u55-128 in 1 delegate",
    "explain": "Rewritten: 6 of 6 PyTorch operators on ethos-u85-256 in 1 delegate",
    "int16": "raised to 16 bits",
    "arm_backend": "1 of 1 delegates are ethorch's",
    "four_bits": "dB with rounding for the least error",
}


@pytest.mark.parametrize("name", SAYS)
def test_example(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = FOLDER / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert SAYS[name] in capsys.readouterr().out


def test_firmware_classifies_digits(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    options = ["--images", "12", "--epochs", "2", "--out", str(tmp_path / "project")]
    monkeypatch.setattr(sys, "argv", ["firmware.py", *options])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / "firmware.py"), run_name="__main__")
    said = capfd.readouterr().out
    assert ended.value.code == 0 and "12 of 12 outputs equal those of the host simulator" in said and said.endswith("PASS\n"), said


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [("digits", "matplotlib", "demo"), ("firmware", "elftools", "demo,firmware"), ("story", "tokenizers", "language")],
)
def test_what_is_missing_is_said_at_the_start(
    name: str, module: str, extra: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted, *more: None if wanted == module else find(wanted, *more))
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    said = f"{capsys.readouterr().err}{ended.value.code}"
    assert f"error: examples/{name}.py requires" in said and f'{module} cannot be found. Run pip install -e ".[{extra}]"' in said


@pytest.mark.long
def test_a_story_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--steps", "8", "--out", str(tmp_path), "--tokens", "12", "--npus", "ethos-u85-256"]
    monkeypatch.setattr(sys, "argv", ["story.py", *options])
    runpy.run_path(str(FOLDER / "story.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "--- NPU" in said and "perplexity" in said and "tokens/s" in said and "on the CPU: " in said
    assert (tmp_path / "story.pte").exists()


def test_examples_are_short_and_mentioned() -> None:
    readme = (FOLDER.parent / "README.md").read_text()
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == {*SAYS, "digits", "firmware", "story"}
    assert all(f"{name}.py" in readme for name in names)
    assert all(len((FOLDER / f"{name}.py").read_text().splitlines()) <= 70 for name in SAYS)
