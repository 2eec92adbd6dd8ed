"""What would help: each suggestion is a program that was made, and its figures are those of that program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch import cli
from ethorch.models.load import UserModel
from ethorch.models.narrower import narrow_convolution
from ethorch.program.suggestions import Suggestions


class Net(nn.Module):
    """A layer of 17 channels, where the NPU computes 16 at once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.Conv2d(16, 17, 3, padding=1)
        self.c, self.d = nn.Conv2d(17, 16, 3, padding=1, stride=2), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(torch.relu(self.c(torch.relu(self.b(torch.relu(self.a(x)))))).mean((2, 3)))


@pytest.fixture(scope="module")
def images() -> list[Tensor]:
    torch.manual_seed(1)
    return [nn.functional.interpolate(torch.rand(1, 3, 8, 8), (64, 64), mode="bilinear") for _ in range(4)]


@pytest.fixture(scope="module")
def program(images: list[Tensor]) -> ethorch.Program:
    return ethorch.compile(
        Net().eval(),
        images[0],
        "ethos-u55-128",
        calibration=images,
        settings=ethorch.Settings(verify=False, ram="60K", latency_ms=0.01),
    )


@pytest.fixture(scope="module")
def found(program: ethorch.Program) -> Suggestions:
    return program.suggest()


def test_suggestions_are_programs_that_were_made(program: ethorch.Program, found: Suggestions, images: list[Tensor]) -> None:
    by_change = {entry.change: entry for entry in found.entries}
    codes = by_change['io="int8"']
    settings = program.settings
    assert settings is not None and settings.arena != "free", "the arena was searched for the RAM"
    same = ethorch.compile(
        Net().eval(), images[0], settings=settings.with_(io="int8", ram="1G", latency_ms=1e6), calibration=images
    )
    assert codes.ram_bytes == same.memory.ram_bytes - program.memory.ram_bytes < 0
    assert codes.milliseconds == (same.estimate.milliseconds or 0) - (program.estimate.milliseconds or 0) and codes.fits is False
    smaller = by_change["input shape 1x3x48x48"]
    assert smaller.ram_bytes < 0 and (smaller.milliseconds or 0) < 0
    narrow = by_change["16 instead of 17 channels in b"]
    assert narrow.fits is None and (narrow.milliseconds or 0) < 0
    assert all(x.ram_bytes < 0 or x.flash_bytes < 0 or (x.milliseconds or 0) < 0 for x in found.entries)


class Blocks(nn.Module):
    """What reads the channels of ``stem``: a norm, a depthwise and another convolution; ``last`` is added to its own input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.deep, self.point = nn.Conv2d(32, 64, 3, groups=32), nn.Conv2d(64, 16, 1)
        self.last, self.head = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.point(self.deep(torch.relu(self.norm(self.stem(x)))))
        return self.head((x + self.last(x)).mean((2, 3)))


def test_a_narrower_model_is_cut_where_it_reads_fewer_channels() -> None:
    user = UserModel(Blocks().eval(), (torch.rand(1, 3, 8, 8),))
    found = narrow_convolution(user, "stem", 24)
    assert found is not None and isinstance(found.module, Blocks)
    sizes = [tuple(getattr(found.module, name).weight.shape[:2]) for name in ("stem", "deep", "point", "last")]
    assert sizes == [(24, 3), (48, 1), (16, 48), (16, 16)] and found.module.norm.num_features == 24
    assert found.module(*found.example_inputs).shape == (1, 4) and user.module.stem.out_channels == 32
    assert narrow_convolution(user, "last", 8) is None, "what it is added to has 16"
    assert narrow_convolution(user, "point", 8) is None, "last has 16 outputs, and is added to 8 channels"
    assert (
        narrow_convolution(user, "deep", 8) is None
        and narrow_convolution(user, "head", 2) is None
        and narrow_convolution(user, "moon", 2) is None
    )


def test_fewer_channels_are_tried_where_the_budget_is_missed(found: Suggestions) -> None:
    by_change = {entry.change: entry for entry in found.entries}
    narrow = [entry for change, entry in by_change.items() if change.startswith("8 instead of ")]
    assert narrow and all(entry.fits is False and entry.note == "train the modified model" for entry in narrow)
    assert min(entry.milliseconds or 0 for entry in narrow) < 0


def test_what_stands_in_the_way_is_told(program: ethorch.Program, found: Suggestions) -> None:
    told = "\n".join(found.obstacles)
    assert "Time: " in told and "limit 0.01 ms. Slowest modules: " in told
    assert not program.budgets.met and "Time: " in str(found) and "Accuracy: " not in told
    assert json.loads(json.dumps(found.to_json()))["obstacles"] == told.split("\n")


def test_a_memory_of_the_board_that_is_too_small_is_told_as_such(tmp_path: Path) -> None:
    board = (Path(ethorch.targets.boards.__file__).parent / "generic.toml").read_text()
    (tmp_path / "mine.toml").write_text(board.replace("size_bytes = 0x1000000", "size_bytes = 0x1000"))
    made = ethorch.compile(nn.Linear(64, 64), torch.randn(1, 64), board=tmp_path / "mine.toml")
    told = made.suggest().obstacles
    assert [line.split(":")[0] for line in told] == ["Flash", "Board memory flash"]
    assert "more than the limit" in told[1] and "weights (" in told[0]


def test_channels_last_and_a_file(images: list[Tensor], tmp_path: Path) -> None:
    last = ethorch.compile(
        Net().eval(), images[0], "ethos-u85-256", calibration=images, settings=ethorch.Settings(io_layout="nhwc")
    )
    changes = [entry.change for entry in last.suggest().entries]
    assert 'io="int8"' in changes and 'io_layout="nhwc"' not in changes and "input shape 1x3x48x48" in changes
    with pytest.raises(ethorch.EthorchError, match="require a program compiled from a model"):
        ethorch.load(last.save(tmp_path / "net.pte")).suggest()


def test_the_command_line_tries_them_where_a_budget_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "model = torch.nn.Sequential(torch.nn.Conv2d(3, 17, 3), torch.nn.ReLU(), torch.nn.Conv2d(17, 4, 3)).eval()\n"
        "example_inputs = (torch.rand(1, 3, 24, 24),)\n"
    )
    assert cli.main(["compile", "net.py:model", "-o", "net.pte", "--ram", "4K", "--json"]) == 3
    data = json.loads(capsys.readouterr().out)
    assert data["suggestions"]["obstacles"][0].startswith("RAM: ") and data["suggestions"]["entries"]
    assert (tmp_path / "net.pte").exists() and len(data["tried"]) == 2


def test_changes_of_one_of_several_methods_are_relative_to_this_method() -> None:
    torch.manual_seed(0)
    inputs, settings = {"a": torch.randn(1, 64), "b": torch.randn(1, 64)}, ethorch.Settings(verify=False, flash="4K")
    both = ethorch.compile({"a": nn.Linear(64, 64), "b": nn.Linear(64, 64)}, inputs, settings=settings)
    weights = 64 * 64
    for entry in both.suggest().entries:
        assert entry.fits is None and entry.flash_bytes > -weights, "the weights of the other method are no saving"


def test_what_is_wrong_with_the_samples_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="ethorch"):
        ethorch.compile(nn.ReLU(), torch.rand(1, 3, 8, 8), ram=1).suggest()
    assert caplog.text.count("[calibration.single_sample]") == 1
