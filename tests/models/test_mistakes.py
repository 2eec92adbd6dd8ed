"""Mistakes that users make, and the messages that they get."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch import cli
from ethorch.support.errors import EthorchError

X = torch.rand(1, 8)


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 4)).eval()


class UsesNumpy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() * 2)


class Packs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 4, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0]


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "TorchScript": (lambda: ethorch.compile(torch.jit.trace(linear(), X), X), "Pass the nn.Module from which torch.jit created"),
    "a state dict": (lambda: ethorch.compile(linear().state_dict(), X), "expected an nn.Module, got a state dict of 2 tensors"),
    "a shape": (
        lambda: ethorch.compile(linear(), (1, 8)),
        r"expected tensors as example inputs, got the shape \(1, 8\). Use torch.randn\(1, 8\)",
    ),
    "a sparse tensor": (
        lambda: ethorch.compile(linear(), X.to_sparse()),
        r"input 0: expected a dense tensor, got the layout torch.sparse_coo. Use x.to_dense\(\)",
    ),
    "a family": (lambda: ethorch.compile(linear(), X, "u55"), "unknown target 'u55'. Did you mean 'ethos-u55-128'"),
    "a class": (
        lambda: ethorch.compile(UsesNumpy, X),
        r"expected an nn.Module, got the class UsesNumpy. Create an instance: UsesNumpy\(\)",
    ),
    "a width": (lambda: ethorch.compile(linear(), X, scheme="int16"), "unknown scheme 'int16'. Did you mean 'a16w8'"),
    "integer examples": (
        lambda: ethorch.compile(linear(), (X * 255).byte(), calibration=X),
        "expected uint8 like the example input, got float32. Use float32 example inputs, e.g. image.float",
    ),
    "another example": (
        lambda: ethorch.compile(linear(), torch.rand(1, 9), calibration=X),
        r"batch of calibration samples: expected float32\[1, 9\] .* got float32\[1, 8\]. Use samples or batches",
    ),
    "doubles": (lambda: ethorch.compile(linear().double(), X.double()), r"inputs with x.float\(\)\. \[quantize.dtype\]"),
    "NumPy": (lambda: ethorch.compile(UsesNumpy(), X), "Use torch operators instead of NumPy in forward"),
    "packed sequences": (
        lambda: ethorch.compile(Packs().eval(), torch.rand(2, 3, 8)),
        "Pass padded tensors to the recurrent layer",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_python_is_named(name: str) -> None:
    call, words = MISTAKES[name]
    with pytest.raises(EthorchError, match=words):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ethorch.compile(linear(), X, calibraton=X), r"compile\(\) got .* 'calibraton'. Did you mean 'calibration'"),  # type: ignore[call-arg]
        (lambda: ethorch.Settings(aena=1), "'aena'. Did you mean 'arena'"),  # type: ignore[call-arg]
    ],
)
def test_a_mistyped_keyword_is_named(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        call()


def test_submodules_are_loaded_on_first_use() -> None:
    assert ethorch.runtime.load is not None  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        ethorch.nothing  # type: ignore[attr-defined] # noqa: B018


class Decomposes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.svd(x)[1]


def test_a_model_without_operators_for_the_npu(caplog: pytest.LogCaptureFixture) -> None:
    ethorch.compile(Decomposes(), torch.rand(1, 4, 4), calibration=torch.rand(8, 4, 4))
    assert "[quantize.nothing]" in caplog.text and "Use operators listed in docs/ops.md" in caplog.text
    assert "set_global" not in caplog.text


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("net.onnx", "expected a PyTorch model, got ONNX"),
        ("net.tflite", "expected a PyTorch model, got TensorFlow Lite"),
        ("weights.pth", "expected a model, got the weights file 'weights.pth'. Use FILE.py:NAME --weights weights.pth"),
    ],
)
def test_a_file_of_another_kind_is_named(file: str, words: str) -> None:
    with pytest.raises(EthorchError, match=words):
        ethorch.compile(file)


def test_a_file_with_relative_imports_is_to_be_named_as_a_module(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "net.py").write_text("from .blocks import block\n\n\ndef net():\n    return block()\n")
    with pytest.raises(EthorchError, match=rf"Change to the folder {tmp_path}, and use nets.net:net"):
        ethorch.compile(f"{tmp_path}/nets/net.py:net")


def test_weights_of_another_network_are_compared(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        "import torch",
        "from torch import nn",
        "def net():",
        "    return nn.Sequential(nn.Linear(8, 4)).eval(), torch.rand(1, 8)",
    ]
    Path("net.py").write_text("\n".join(lines))
    torch.save(nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 2), nn.Linear(2, 2)).state_dict(), "other.pth")
    assert cli.main(["compile", "net.py:net", "--weights", "other.pth"]) == 1
    message = capsys.readouterr().err
    assert "4 tensors not in the model (1.weight, 1.bias, 2.weight, and 1 more)" in message
    assert "2 tensors with a different shape (0.weight: expected [4, 8], got [5, 8], 0.bias: expected [4], got [5])" in message


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, image: Tensor, scale: Tensor) -> Tensor:
        return self.linear(image) * scale


def test_a_program_accepts_its_inputs_by_name(tmp_path: Path) -> None:
    scale = torch.rand(1, 4)
    program = ethorch.compile(Scaled().eval(), (X, scale))
    expected = program(X, scale)
    assert torch.equal(program(image=X, scale=scale), expected) and torch.equal(program(X, scale=scale), expected)
    with pytest.raises(EthorchError, match=r"expected the keyword inputs image, scale, got picture, scale\."):
        program(picture=X, scale=scale)
    with pytest.raises(EthorchError, match=r"input names are unknown.*Pass inputs by position"):
        ethorch.load(program.save(tmp_path / "net.pte"))(image=X, scale=scale)


@pytest.mark.parametrize(("factor", "warns"), [(255, True), (3, False), (0.001, True)])
def test_calibration_of_another_range_warns(factor: float, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ethorch"):
        ethorch.compile(linear(), X, calibration=torch.rand(8, 8) * factor)
    assert ("calibration.other_range" in caplog.text) == warns
