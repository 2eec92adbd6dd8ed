"""The comparison in a saved folder is that of the compiled program, for each method, and needs no model."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch import cli
from ethorch.program.comparison import Comparison
from ethorch.program.measure import example_comparison
from ethorch.program.program import record_of
from ethorch.support.errors import EthorchError
from tests.support.test_text_files import check, damaged


class Net(nn.Module):
    """Operators on NPU and CPU, two outputs, and a buffer that the model changes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.linear = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
        self.register_buffer("sum", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(torch.relu(self.conv(x)).mean((2, 3)))
        self.sum.copy_(self.sum * 0.5 + y)
        return torch.relu(self.sum), torch.topk(y, 2)[0]


class Head(nn.Module):
    """A second method with the same weights."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.linear = net.linear

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


def compiled(**changes: str) -> ethorch.Program:
    """Return a program of one method."""
    torch.manual_seed(1)
    return ethorch.compile(Net().eval(), torch.randn(1, 3, 12, 12), settings=ethorch.Settings(**changes), progress=False)


@pytest.fixture(scope="module")
def program() -> ethorch.Program:
    return compiled()


@pytest.fixture(scope="module")
def two_methods() -> ethorch.Program:
    torch.manual_seed(1)
    net = Net().eval()
    models = {"encode": net, "head": Head(net).eval()}
    settings = ethorch.Settings(modules={"linear": "float"})
    return ethorch.compile(
        models, {"encode": torch.randn(1, 3, 12, 12), "head": torch.randn(1, 8)}, settings=settings, progress=False
    )


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = cli.main(list(arguments))
    return status, capsys.readouterr().out


@pytest.mark.core
def test_the_folder_compares_as_the_compiled_program_does(
    program: ethorch.Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = program.save(tmp_path / "net")
    expected, loaded = program.compare(), ethorch.load(folder)
    assert len(expected.layers) > 4 and any(not layer.on_npu for layer in expected.layers)
    assert loaded.compare() == expected and loaded.compare().to_text() == expected.to_text()
    assert outcome(capsys, "compare", str(folder)) == (0, f"{expected}\n")
    status, text = outcome(capsys, "compare", str(folder), "--json")
    assert status == 0 and json.loads(text) == json.loads(json.dumps(expected.to_json()))
    again = loaded.save(tmp_path / "again")
    assert (again / "comparison.json").read_bytes() == (folder / "comparison.json").read_bytes()


def test_figures_that_are_not_finite_are_read_back(tmp_path: Path) -> None:
    class Copies(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x).transpose(1, 2)

    program = ethorch.compile(Copies().eval(), torch.zeros(1, 3, 5), progress=False)
    expected = program.compare()
    assert any(layer.fake_npu_db == float("inf") for layer in expected.layers)
    loaded = ethorch.load(program.save(tmp_path / "net")).compare()
    assert loaded == expected and "same" in str(loaded)


def test_every_method_is_in_the_folder(two_methods: ethorch.Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = two_methods.save(tmp_path / "net")
    loaded = ethorch.load(folder)
    assert loaded.methods == two_methods.methods == ("encode", "head")
    for name in loaded.methods:
        expected = two_methods[name]
        data = json.loads(json.dumps(expected.to_json()))
        for found in (loaded[name], ethorch.load(folder, name)):
            assert json.loads(json.dumps(found.to_json())) == data and found.compare() == expected.compare()
            assert str(found.explain()) == str(expected.explain())
        assert outcome(capsys, "compare", str(folder), "--method", name) == (0, f"{expected.compare()}\n")
        assert outcome(capsys, "explain", str(folder), "--method", name)[1].rstrip() == str(expected.explain()).rstrip()
        status, text = outcome(capsys, "report", str(folder), "--method", name, "--json")
        report = json.loads(text)
        assert status == 0 and report["accuracy"]["samples"] == expected.compare().samples
        assert {key: report[key] for key in data} == {**data, "accuracy": report["accuracy"]}
    assert "[quantize.left_out]" in outcome(capsys, "explain", str(folder), "--method", "head")[1]
    assert outcome(capsys, "compare", str(folder), "--method", "other")[0] == 2
    again = loaded.save(tmp_path / "again")
    for name in ("program.json", "comparison.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_a_folder_of_a_program_of_several_shapes(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    shapes = [((1, 3, 8, 8),), ((1, 3, 16, 16),)]
    program = ethorch.compile(model, torch.randn(1, 3, 8, 8), shapes=shapes, progress=False)
    loaded = ethorch.load(program.save(tmp_path / "net"))
    assert loaded.compare() == program.compare()
    assert [loaded[name].compare() for name in loaded.methods] == [program[name].compare() for name in program.methods]
    assert {loaded[name].compare().outputs[0].shape for name in loaded.methods} == {(1, 4, 6, 6), (1, 4, 14, 14)}


def test_a_large_model_is_left_out_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(example_comparison, "MAX_MACS", 1000)
    program = compiled(target="ethos-u85-256")
    folder = program.save(tmp_path / "net")
    with pytest.raises(
        EthorchError, match=r"multiply-accumulates \(maximum for all methods: 1,000\)\. Run `ethorch compare MODEL`"
    ):
        ethorch.load(folder).compare()
    assert cli.main(["compare", str(folder)]) == 1
    assert "multiply-accumulates" in capsys.readouterr().err
    expected = program.compare()
    assert ethorch.load(program.save(tmp_path / "net")).compare() == expected, "what was computed before is saved"


def test_a_large_method_does_not_keep_a_later_one_from_being_compared(
    two_methods: ethorch.Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = copy.deepcopy(two_methods)
    for name in copied.methods:
        record_of(copied[name]).measured.clear()
    monkeypatch.setattr(example_comparison, "MAX_MACS", 1000)
    loaded = ethorch.load(copied.save(tmp_path / "net"))
    with pytest.raises(EthorchError, match=r"the comparisons would run [\d,]+ multiply-accumulates"):
        loaded["encode"].compare()
    assert loaded["head"].compare().samples == 1


def test_a_file_has_no_comparison_to_save(program: ethorch.Program, tmp_path: Path) -> None:
    folder = ethorch.load(program.save(tmp_path / "net.pte")).save(tmp_path / "net")
    with pytest.raises(EthorchError, match="because the program was loaded from a file, which does not contain the float model"):
        ethorch.load(folder).compare()


def test_a_comparison_that_fails_does_not_keep_a_program_from_being_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Comparison:
        raise ValueError("broken")

    monkeypatch.setattr("ethorch.program.measure.compare.compare_samples", fails)
    folder = compiled().save(tmp_path / "net")
    with pytest.raises(EthorchError, match="the comparison raised ValueError: broken"):
        ethorch.load(folder).compare()


def test_inputs_of_the_user_need_the_model(program: ethorch.Program, tmp_path: Path) -> None:
    loaded = ethorch.load(program.save(tmp_path / "net"))
    with pytest.raises(EthorchError, match="does not contain the float model"):
        loaded.compare(torch.randn(1, 3, 12, 12))


def test_damaged_and_newer_files_are_refused(program: ethorch.Program, tmp_path: Path) -> None:
    file = program.save(tmp_path / "net") / "comparison.json"
    good = json.loads(file.read_text())
    texts, verdicts = damaged(random.Random(0), good, json.dumps, '{{"format": 1, "methods": {}}}'), set()
    for _ in range(60):
        file.write_bytes(next(texts))
        verdicts.add(check(lambda: str(ethorch.load(tmp_path / "net").compare()), str(tmp_path)))
    assert verdicts == {True, False}
    file.write_text(json.dumps({**good, "format": 2}))
    with pytest.raises(EthorchError, match=r"expected format 1, got 2\. Install a newer ethorch"):
        ethorch.load(tmp_path / "net")
    file.write_text(json.dumps({**good, "format": None}))
    with pytest.raises(EthorchError, match=r"expected format 1, got None\. Save the program again"):
        ethorch.load(tmp_path / "net")
