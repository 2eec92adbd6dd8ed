"""Subcommands on a program with several methods."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from ethorch import cli
from tests.cli.commands import answer, complaint

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
