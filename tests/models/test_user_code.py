"""What users bring: models as modules, inputs by name, and mistakes, each answered by one sentence with the user's own line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ethorch import cli, runtime
from ethorch.models.load import UserModel, load_model
from ethorch.program import build
from ethorch.quantization.calibrate import quantize
from ethorch.support.errors import EthorchError
from ethorch.targets.compile_spec import EthosUCompileSpec

MODELS = """
import collections, ethorch
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
    def forward(self, x):
        return torch.relu(self.layer(x))  # the layer

class Named(Net):
    def forward(self, left, *, right, scale=1.0, mask=None):
        return super().forward(left + right) * scale

class Jumps(Net):
    def forward(self, x):
        if x.sum() > 0:  # a decision
            return self.layer(x)
        return x

class Counts(Net):
    def forward(self, x):
        return x[: int(x.abs().sum())]  # a number

class Halves(Net):
    def forward(self, x):
        return x[x > 0].view(2, -1)  # in pairs

torch.manual_seed(0)
MODEL = Net()
MODEL.example_inputs = (torch.randn(2, 4),)
BARE = Net()
PAIR = (Net(), torch.randn(2, 4))

def made(): return MODEL
def raises():
    raise ValueError("no weights\\nin the cellar")  # here
def by_name():
    one = lambda: collections.OrderedDict(right=torch.randn(2, 4), left=torch.randn(2, 4), scale=0.5, mask=None)
    return Named(), one(), [one() for _ in range(3)]
def both(): return Named(), ((torch.randn(2, 4),), {"right": torch.randn(2, 4)})
def other_names(): return Named(), {"left": torch.randn(2, 4), "right": torch.randn(2, 4)}, [{"left": torch.randn(2, 4)}]
def not_all_samples(): return Halves(), torch.randn(2, 4), [torch.ones(2, 4), torch.tensor([[1.0] * 4, [1.0] * 3 + [-1.0]])]
def other_shape(): return Net(), torch.randn(2, 5)
def other_sample(): return Net(), torch.randn(2, 4), [torch.randn(2, 4), torch.randn(3, 4)]
def jumps(): return Jumps(), torch.randn(2, 4)
def counts(): return Counts(), torch.randn(2, 4)
def limited(): return *PAIR, ethorch.samples(torch.randn(8, 4), limit=3)
"""
SPEC = EthosUCompileSpec("ethos-u55-128")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("users")
    (folder / "nets.py").write_text(MODELS)
    (folder / "broken.py").write_text("import torch\nimport no_such_package\n")
    (folder / "wrong.py").write_text("def f(:\n")
    return folder


@pytest.mark.parametrize("name", ["MODEL", "PAIR", "made"])
def test_a_module_or_a_pair_is_a_model(folder: Path, name: str) -> None:
    model = load_model(f"{folder}/nets.py:{name}")
    assert model.example_inputs[0].shape == (2, 4) and not model.module.training


def test_samples_calibrate_a_named_model(folder: Path) -> None:
    model = load_model(f"{folder}/nets.py:limited")
    assert isinstance(model, UserModel) and [x.shape for (x,) in model.calibration] == [(2, 4)] * 3


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("nets.py:raises", "nets.py:raises() failed at {}/nets.py:39 (`raise ValueError("),
        ("nets.py:raises", "# here`): ValueError: no weights."),
        ("nets.py:BARE", "nets.py:BARE: expected example inputs, got only a module. Define a variable example_inputs"),
        ("nets.py:other_names", "sample 0: expected the keyword arguments left, right, as in the example inputs, got left."),
        ("nets.py:other_shape", "with its example inputs, float32[2, 5] at {}/nets.py:11 (`return torch.relu(self.layer(x))"),
        ("nets.py:other_sample", "calibration sample 1: expected float32[2, 4] like the example inputs, got float32[3, 4]"),
        ("nets.py:not_all_samples", "run with calibration sample 1, float32[2, 4] at {}/nets.py:29 (`return x[x > 0].view(2, -1)"),
        ("nets.py:jumps", "flow depends on tensor values at {}/nets.py:19 (`if x.sum() > 0:  # a decision`)"),
        ("nets.py:counts", "flow depends on tensor values at {}/nets.py:25 (`return x[: int(x.abs().sum())]  # a number`)"),
        ("nets.py:nothing", "has no 'nothing'. Available names: made, raises, by_name, both,"),
        ("nets.py", "nets.py:NAME with one of these names: made, raises, by_name"),
        ("broken.py:f", "broken.py cannot be imported at {}/broken.py:2 (`import no_such_package`): ModuleNotFoundError: No"),
        ("wrong.py:f", "wrong.py cannot be imported at {}/wrong.py:1: SyntaxError"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_with_the_users_line(
    folder: Path, capsys: pytest.CaptureFixture[str], reference: str, words: str
) -> None:
    assert cli.main(["explain", f"{folder}/{reference}"]) == (2 if reference in ("nets.py", "nets.py:nothing") else 1)
    out, said = capsys.readouterr()
    assert out == "" and "Traceback" not in said and "def forward" not in said, "no graph of torch.export's either"
    assert words.format(folder) in said
    assert len([line for line in said.splitlines() if line.startswith("ethorch explain: ")]) == 1


def test_frames_are_shown_for_traceback(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", f"{folder}/nets.py:raises", "--traceback"]) == 1
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said and "ValueError: no weights\nin the cellar" in said
    assert said.splitlines()[-1].startswith("ethorch explain: ")
    assert cli.main(["explain", f"{folder}/nets.py:jumps", "--traceback"]) == 1
    assert "The graph before torch.export failed:" in capsys.readouterr().err


def test_what_ethorch_does_not_expect_is_called_a_bug(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("x")

    monkeypatch.setattr(build, "quantize_methods", broken)
    assert cli.main(["explain", f"{folder}/nets.py:MODEL"]) == 1
    assert capsys.readouterr().err.startswith("ethorch explain: KeyError: 'x'. This is a bug in ethorch")


def test_a_missing_file_is_said_before_the_imports(tmp_path: Path) -> None:
    code = f"import sys; from ethorch.cli import main; main(['explain', '{tmp_path}/no.py:f']); print('torch' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Python file" in child.stderr
    assert child.stdout.strip() == "False"


def test_inputs_by_name_go_all_the_way(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Keyword-only arguments, out of the order of forward, with constants among them: compiled, run, compared."""
    torch.manual_seed(1)
    model = load_model(f"{folder}/nets.py:by_name")
    assert [tuple(x.shape) for x in model.example_inputs] == [(2, 4), (2, 4)]
    assert cli.main(["compile", f"{folder}/nets.py:by_name", "-o", f"{tmp_path}/named.pte"]) == 0
    left, right = model.example_inputs[1], model.example_inputs[0]
    torch.save({"right": right, "left": left}, tmp_path / "inputs.pt")
    capsys.readouterr()
    assert cli.main(["run", f"{tmp_path}/named.pte", "--inputs", f"{tmp_path}/inputs.pt", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["shape"] == [2, 3]
    found = runtime.load(tmp_path / "named.pte")({"right": right, "left": left})[0]
    assert (found - model.module.module(left, right=right, scale=0.5)).abs().max() < 0.1


def test_arguments_and_keyword_arguments_together(folder: Path) -> None:
    model = load_model(f"{folder}/nets.py:both")
    assert len(model.example_inputs) == 2
    assert model.module(*model.example_inputs).shape == (2, 3)


def test_a_tuple_and_a_dict_may_be_two_arguments() -> None:
    class Two(nn.Module):
        def forward(self, pair: tuple[Tensor, Tensor], options: dict[str, Tensor]) -> Tensor:
            return pair[0] + pair[1] + options["x"]

    x = torch.randn(2)
    model = UserModel(Two(), ((x, x), {"x": x}))
    assert model.module(*model.example_inputs).shape == (2,)


def test_example_inputs_have_no_zero_strides() -> None:
    picture = torch.from_numpy(np.zeros((4, 5, 3), np.float32).transpose(2, 0, 1)[None])
    user = UserModel(nn.Identity(), (picture, [torch.ones(1, 2).expand(3, 2)], torch.ones(1, 2)))
    assert [tensor.stride() for tensor in pytree.tree_leaves(user.example_inputs)] == [(60, 20, 5, 1), (2, 1), (2, 1)]


@pytest.mark.parametrize("keywords", [False, True])
def test_an_exported_model_in_nhwc(tmp_path: Path, capsys: pytest.CaptureFixture[str], keywords: bool) -> None:
    x = torch.randn(1, 3, 8, 8)
    conv = nn.Conv2d(3, 4, 3).eval()
    program = torch.export.export(conv, (), {"input": x}) if keywords else torch.export.export(conv, (x,))
    torch.export.save(program, tmp_path / "conv.pt2")
    command = ["compile", f"{tmp_path}/conv.pt2", "--set", "io_layout=nhwc", "-o", f"{tmp_path}/conv.pte"]
    assert cli.main(command) == 0, capsys.readouterr().err
    assert runtime.load(tmp_path / "conv.pte")(torch.randn(1, 8, 8, 3))[0].shape == (1, 6, 6, 4)


def test_flags_for_vela(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", f"{folder}/nets.py:MODEL", "--set", 'vela_flags=["--frobnicate"]']) == 2
    assert "frobnicate" in capsys.readouterr().err
    assert cli.main(["explain", "no.py:MODEL", "--set", 'vela_flags=["--verbose-performance"]']) == 2
    assert "the Vela flag --verbose-performance has no effect: " in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_said_before_the_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["run", "nothing.pte", "-o", f"{tmp_path}/missing/out.npz"]) == 1
    assert f"cannot write {tmp_path}/missing/out.npz" in capsys.readouterr().err


def test_the_python_interface_says_the_same(folder: Path) -> None:
    with pytest.raises(EthorchError, match=r"calibration sample 1: expected float32\[2, 4\] .*, got float32\[3, 4\]"):
        quantize(load_model(f"{folder}/nets.py:other_sample"), SPEC)
