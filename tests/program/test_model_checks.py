"""Models that torch.export or the quantizer would answer with an error of their own: refused in a sentence, or mentioned."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

import ethorch
from ethorch.program.program import record_of
from ethorch.support.errors import QuantizationError

X = torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))


class Scaled(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("factors", torch.rand(8).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factors


class Casts(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return (2 * x.real).to(self.dtype) if x.is_complex() else x.to(self.dtype)


def named(name: str) -> nn.Module:
    module = nn.Sequential()
    module.add_module(name, nn.Linear(8, 2))
    return module


WIDE, SHORT, HALF = torch.float64, torch.bfloat16, torch.float16
REFUSED: dict[str, tuple[nn.Module, Tensor, str, str]] = {
    "float64": (network().double(), X.double(), "quantize.dtype", r"\.float\(\)"),
    "float64 with an input of float32": (network().double(), X, "quantize.dtype", "float64"),
    "bfloat16": (network().to(SHORT), X.to(SHORT), "quantize.dtype", r"model\.float\(\)"),
    "float16": (network().half(), X.half(), "quantize.dtype", "float16"),
    "input of float16": (network(), X.half(), "quantize.dtype", "input 0"),
    "input of complex128": (Casts(torch.float32), X.to(torch.complex128), "quantize.dtype", r"x\.to\(torch\.complex64\)"),
    "input of uint16": (Casts(torch.float32), torch.ones(2, 8, dtype=torch.uint16), "quantize.unsigned", "Use int32"),
    "output of uint32": (Casts(torch.uint32), X, "quantize.unsigned", "got uint32"),
    "empty batch": (network(), X[:0], "quantize.empty", "batch size of at least 1"),
    "quotation mark": (named('a"b'), X, "quantize.name", "quotation mark"),
    "backslash": (named("a\\"), X, "quantize.name", "Rename"),
    "line": (named("a\nb"), X, "quantize.name", "Rename"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_is_refused_in_a_sentence(case: str) -> None:
    module, x, reason, words = REFUSED[case]
    with pytest.raises(QuantizationError, match=words) as caught:
        ethorch.compile(module.eval(), x, "ethos-u55-128", progress=False)
    assert caught.value.id == reason


@pytest.mark.parametrize("case", ["float64", "bfloat16", "float16"])
def test_the_quantizer_refuses_them_too(case: str) -> None:
    module, x, reason, _ = REFUSED[case]
    quantizer = ethorch.EthosUQuantizer(ethorch.EthosUCompileSpec("ethos-u55-128"))
    quantizer.set_global(ethorch.arm.quantizer.get_symmetric_quantization_config())
    with pytest.raises(QuantizationError) as caught:
        prepare_pt2e(torch.export.export(module.eval(), (x,)).module(), quantizer)
    assert caught.value.id == reason


ACCEPTED: dict[str, nn.Module] = {
    "buffer of float64": Scaled(WIDE),
    "buffer of bfloat16": Scaled(SHORT),
    "buffer of float16": Scaled(HALF),
    "apostrophe": named("a'b"),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_model_that_is_not_refused(case: str) -> None:
    assert record_of(ethorch.compile(ACCEPTED[case].eval(), X, "ethos-u55-128", progress=False)).payloads


def test_training_mode_is_mentioned_and_restored(caplog: Any) -> None:
    module = network()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with caplog.at_level(logging.WARNING):
        program = ethorch.compile(module, X, "ethos-u55-128", progress=False)
    assert "training mode (BatchNorm2d, Dropout)" in caplog.text
    assert all(part.training for part in module.modules())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert ethorch.sqnr_db(module.eval()(X), program(X)) > 30
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        ethorch.compile(nn.Sequential(nn.ReLU()), X, "ethos-u55-128", progress=False)
    assert "training" not in caplog.text  # it computes the same
