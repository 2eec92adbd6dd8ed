"""``ethorch firmware``, ``ethorch scratch`` and ``ethorch delegate`` on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from ethorch import cli
from ethorch.deploy.firmware import project_run
from ethorch.program.program import record_of
from tests.helpers.firmware import program


def test_a_saved_folder_gives_the_project_of_its_file_and_the_cycles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = program("small", "ethos-u55-128")
    made.save(tmp_path / "small.pte")
    made.save(tmp_path / "saved")
    files = {}
    for source in ("small.pte", "saved"):
        folder = tmp_path / f"project-{source}"
        assert cli.main(["firmware", str(tmp_path / source), "-o", str(folder), "--name", "small", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["board"] == "corstone-300" and found["sizes"]["weights"] > 0
        files[source] = {path: (folder / path).read_bytes() for path in found["files"] if path.startswith("model/")}
    cycles = [re.search(rb"estimated_cycles = (\d+)u", entry["model/small.c"]) for entry in files.values()]
    assert [found is not None and int(found[1]) > 0 for found in cycles] == [False, True]  # a .pte alone does not say them
    for entry in files.values():
        entry["model/small.c"] = re.sub(rb"estimated_cycles = \d+", b"", entry["model/small.c"])
    assert files["small.pte"] == files["saved"]


def test_inputs_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program("small", "ethos-u55-128").save(tmp_path / "small.pte")
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 1, 8, 8)
    np.save(tmp_path / "x.npy", x)
    line = ["firmware", str(tmp_path / "small.pte"), "-o", str(tmp_path / "project"), "--inputs", str(tmp_path / "x.npy")]
    assert cli.main(line) == 0
    assert "python" in capsys.readouterr().out
    assert (tmp_path / "project" / "firmware" / "selftest_data.bin").read_bytes().startswith(x.tobytes())
    assert len(project_run.read_description(tmp_path / "project")["expected"]) == 1


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--board", "corstone-3"], 2, "corstone-300"),
        (["--name", "7"], 2, "lower-case letters"),
        (["--embed", "x"], 2, "incbin or arrays"),
        (["--set", "target=ethos-u85-256"], 2, "--set requires a model, but"),
    ],
)
def test_what_is_wrong_is_one_line(
    options: list[str], status: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program("small", "ethos-u55-128").save(tmp_path / "small.pte")
    assert cli.main(["firmware", str(tmp_path / "small.pte"), "-o", str(tmp_path / "project"), *options]) == status
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said
    assert not (tmp_path / "project").exists()


def test_pools_and_the_delegate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = program("state", "ethos-u55-128")
    made.save(tmp_path / "state.pte")
    assert cli.main(["explain", str(tmp_path / "state.pte"), "--memory", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["pools"]
    assert found["method"] == "forward" and found["planned_bytes"] == list(record_of(made).description.memories[1:])
    assert cli.main(["firmware", "--runtime", "executorch", "-o", str(tmp_path / "delegate"), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert sorted(path.name for path in (tmp_path / "delegate").iterdir()) == sorted(files)
    assert {"driver_ethosu.cpp", "ethosu.c", "CMakeLists.txt"} <= set(files)
