"""A saved folder is the record of a compilation: what is read back is what was saved, and damaged files are refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch import cli
from ethorch.support.errors import EthorchError
from tests.support.test_text_files import check, damaged


class Net(nn.Module):
    """A network with an operator on the CPU, and a buffer that it changes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.linear = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
        self.register_buffer("sum", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(torch.relu(self.conv(x)).mean((2, 3)))
        self.sum.copy_(self.sum * 0.5 + y)
        return torch.relu(self.sum)


@pytest.fixture(scope="module")
def program() -> ethorch.Program:
    torch.manual_seed(1)
    images = [torch.randn(1, 3, 12, 12) for _ in range(4)]
    settings = ethorch.Settings("ethos-u85-256", modules={"linear": "float"}, min_sqnr_db=5.0, ram="1M")
    made = ethorch.compile(Net().eval(), images[0], calibration=images, settings=settings, progress=False)
    assert made.accuracy is not None
    return made


def test_what_is_read_back_is_what_was_saved(program: ethorch.Program, tmp_path: Path) -> None:
    loaded = ethorch.load(program.save(tmp_path / "net"))
    assert json.dumps(loaded.to_json(), sort_keys=True) == json.dumps(program.to_json(), sort_keys=True)
    assert str(loaded) == str(program)
    assert loaded.accuracy == program.accuracy and loaded.budgets.attempts == program.budgets.attempts
    again = ethorch.load(loaded.save(tmp_path / "again"))
    assert (tmp_path / "again" / "program.json").read_bytes() == (tmp_path / "net" / "program.json").read_bytes()
    assert str(again.explain()) == str(program.explain())


def test_commands_on_a_folder_say_what_they_say_of_the_model(
    program: ethorch.Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = program.save(tmp_path / "net")
    assert cli.main(["explain", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.rstrip() == str(program.explain()).rstrip() and "[quantize.left_out]" in out
    assert cli.main(["report", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {key: found[key] for key in program.to_json()} == json.loads(json.dumps(program.to_json()))


def test_a_folder_with_the_program_of_another_model_is_refused(program: ethorch.Program, tmp_path: Path) -> None:
    folder = program.save(tmp_path / "net")
    ethorch.compile(torch.nn.ReLU(), torch.rand(1, 8)).save(folder / "model.pte")
    with pytest.raises(
        EthorchError, match=r"describes a \.pte of \d+ bytes, but model.pte has \d+ bytes\)\. Save the program again"
    ):
        ethorch.load(folder)


def test_damaged_and_newer_folders_are_refused(program: ethorch.Program, tmp_path: Path) -> None:
    file = program.save(tmp_path / "net") / "program.json"
    good = json.loads(file.read_text())
    texts, verdicts = damaged(random.Random(0), good, json.dumps, '{{"target": {}}}'), set()
    for _ in range(60):
        file.write_bytes(next(texts))
        verdicts.add(check(lambda: ethorch.load(tmp_path / "net"), str(tmp_path)))
    assert verdicts == {True, False}
    file.write_text(json.dumps({**good, "format": 2}))
    with pytest.raises(EthorchError, match=r"expected format 1, got 2\. Install a newer ethorch"):
        ethorch.load(tmp_path / "net")
    file.write_text(json.dumps(good))
    settings = tmp_path / "net" / "settings.toml"
    assert settings.read_text().startswith("format = 1\n")
    settings.write_text(settings.read_text().replace("format = 1", "format = 2"))
    with pytest.raises(EthorchError, match="expected format 1, got 2"):
        ethorch.load(tmp_path / "net")
