"""Two builds of a model are the same bytes, whoever makes them where; nothing that is written says where that was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ethorch.target.vela_ini import shipped_root

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys, pathlib, logging
sys.path.insert(0, {root!r})
logging.disable(logging.WARNING)
import torch
from ethorch import EthosUCompileSpec, flow
from ethorch.model_files import UserModel
from tests.figures.programs import CASES
for name in ("picture", "two_delegates", "branches"):
    case = CASES[name]
    torch.manual_seed(0)
    user = UserModel(case.model().eval(), case.inputs())
    folder = pathlib.Path({folder!r}) / name
    spec = EthosUCompileSpec(case.target, config_ini={ini!r}).dump_intermediate_artifacts_to(folder)
    program = flow.build(flow.quantize(user, spec), user.example_inputs, spec)
    (folder / (name + ".pte")).write_bytes(program.pte)
"""


@pytest.fixture(scope="module")
def two_builds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Programs and artifacts of two processes, each with its own working, temporary and dump folder, ini file and hash seed."""
    made = []
    for number, name in enumerate(("first_place", "second_place")):
        home = tmp_path_factory.mktemp(name)
        for part in ("tmp", "work", "out"):
            (home / part).mkdir()
        ini = home / "board.ini"
        ini.write_text((shipped_root() / "Arm" / "vela.ini").read_text())
        script = SCRIPT.format(root=str(ROOT), folder=str(home / "out"), ini=str(ini))
        environment = {
            **os.environ,
            "TMPDIR": str(home / "tmp"),
            "PYTHONPATH": str(ROOT),
            "PYTHONHASHSEED": str(number),
        }
        done = subprocess.run([sys.executable, "-c", script], cwd=home / "work", env=environment, capture_output=True, check=False)
        assert not done.returncode, done.stderr.decode()[-2000:]
        made.append(home)
    return made


def files(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home / "out")): path.read_bytes() for path in sorted((home / "out").rglob("*")) if path.is_file()}


def test_every_file_is_the_same(two_builds: list[Path]) -> None:
    first, second = map(files, two_builds)
    assert first.keys() == second.keys()
    assert {Path(name).suffix for name in first} >= {".pte", ".tosa", ".txt", ".payload", ".json"}
    assert [name for name in first if first[name] != second[name]] == []


def test_no_file_says_where_it_was_made(two_builds: list[Path]) -> None:
    for home in two_builds:
        places = [home, home.parent, Path.home(), ROOT, Path(sys.prefix)]
        for name, data in files(home).items():
            for place in places:
                assert str(place).encode() not in data, (name, place)
