"""Two builds of a model are the same bytes, whoever makes them where; nothing that is written says where that was."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from ethorch import EthosUCompileSpec
from ethorch.backend.build import build_pte
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize
from ethorch.targets.vela_ini import find_shipped_root
from tests.figures.programs import CASES

ROOT = Path(__file__).resolve().parents[2]


def build(home: Path, names: Iterable[str]) -> None:
    """Write programs and artifacts to ``home/out``, with an ini file in ``home``."""
    ini = home / "board.ini"
    ini.write_text((find_shipped_root() / "Arm" / "vela.ini").read_text())
    for name in names:
        case = CASES[name]
        torch.manual_seed(0)
        user = UserModel(case.model().eval(), case.inputs())
        folder = home / "out" / name
        spec = EthosUCompileSpec(case.target, config_ini=str(ini)).dump_intermediate_artifacts_to(folder)
        program = build_pte(quantize(user, spec), user.example_inputs, spec)
        (folder / (name + ".pte")).write_bytes(program.pte)


@pytest.fixture(
    scope="module", params=[("picture", "two_delegates"), pytest.param(("branches",), marks=pytest.mark.long)], ids=",".join
)
def two_builds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files of a new process and of this one. Each has its own working, temporary and dump folder, ini file and hash seed."""
    homes = [tmp_path_factory.mktemp(name) for name in ("first_place", "second_place")]
    for home in homes:
        for part in ("tmp", "work", "out"):
            (home / part).mkdir()
    script = "import sys, pathlib, tests.figures.test_same_bytes as t; t.build(pathlib.Path(sys.argv[1]), sys.argv[2:])"
    environment = {**os.environ, "TMPDIR": str(homes[0] / "tmp"), "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", script, str(homes[0]), *request.param]
    done = subprocess.run(command, cwd=homes[0] / "work", env=environment, capture_output=True, check=False)
    assert not done.returncode, done.stderr.decode()[-2000:]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(homes[1] / "work")
        patch.setenv("TMPDIR", str(homes[1] / "tmp"))
        patch.setattr(tempfile, "tempdir", None)
        build(homes[1], request.param)
    return homes


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
