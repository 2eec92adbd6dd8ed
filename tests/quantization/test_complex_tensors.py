"""Complex tensors as pairs of real ones: the same numbers, and on the NPU as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ethorch.lower.fx.node import first_value
from ethorch.quantization.passes.complex_tensors import lower_complex
from ethorch.quantization.passes.constants import fold_constants
from ethorch.quantization.passes.context import PassContext
from tests.helpers.ladder import climbed, quantized
from tests.helpers.quantized import exported, samples


class Of(nn.Module):
    def __init__(self, function: Callable[[Any, Tensor], Tensor]):
        super().__init__()
        self.function = function
        self.filter = nn.Parameter(torch.randn(6, 5, dtype=torch.complex64))
        self.register_buffer("rotation", torch.polar(torch.ones(6, 4), torch.arange(24.0).reshape(6, 4)))
        self.register_buffer("window", torch.hann_window(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def rotated(m: Any, x: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * m.rotation).flatten(-2)


def filtered(m: Any, x: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(x, norm="ortho") * m.filter, n=x.shape[-1], norm="ortho")


def spectrum(m: Any, x: Tensor) -> Tensor:
    return torch.stft(x.flatten(1), 8, 4, win_length=6, window=m.window, return_complex=True).abs()


FUNCTIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "rotary embedding": rotated,
    "filter": filtered,
    "stft": spectrum,
    "stft of one signal": lambda m, x: torch.view_as_real(torch.stft(x.flatten(), 8, center=False, window=m.window, win_length=6,
                                                                     normalized=True, onesided=False, return_complex=True)),
    "mixer": lambda m, x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real,
    "fftn": lambda m, x: torch.fft.fftn(x, dim=(1, 2)).real,
    "fft2 there and back": lambda m, x: torch.fft.ifft2(torch.fft.fft2(x, norm="ortho"), norm="forward").real,
    "rfft2 there and back": lambda m, x: torch.fft.irfft2(torch.fft.rfft2(x, dim=(0, 1)), s=x.shape[:2], dim=(0, 1)),
    "rfftn of other lengths": lambda m, x: torch.fft.irfftn(torch.fft.rfftn(x, s=(9, 5)), s=(4, 7)),
    "odd irfft": lambda m, x: torch.fft.irfft(torch.fft.rfft(x), n=7),
    "arithmetic": lambda m, x: torch.view_as_real((x * m.rotation[0, 0] - x + (2.0 * torch.complex(x, x)).conj()) / (x * x + 1)),
    "joined": lambda m, x: torch.cat([torch.fft.rfft(x), -m.filter[None] + torch.fft.rfft(x)], 1).permute(0, 2, 1)[:, 1:].imag,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_pairs_are_the_same_numbers(name: str) -> None:
    model = Of(FUNCTIONS[name]).eval()
    x = torch.randn(2, 6, 8)
    graph = exported(model, (x,))
    fold_constants(graph, PassContext(trainable=False))
    lower_complex(graph, PassContext())
    graph.recompile()
    values = [first_value(node) for node in graph.graph.nodes if node.op == "call_function"]
    assert not any(value is not None and value.is_complex() for value in values)
    with torch.no_grad():
        torch.testing.assert_close(graph(x), model(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("name", ["rotary embedding", "filter", "stft", "fftn"])
def test_they_run_on_the_npu_as_a_whole(name: str, target: str) -> None:
    calibration = samples((1, 6, 8))
    found = climbed(quantized(Of(FUNCTIONS[name]), calibration, None, target), calibration[0], target)
    assert found.different == 0 and found.steps_off <= 2
    assert np.unique(found.simulated[0]).size > 20


@pytest.mark.parametrize("name", ["angle", "product by i"])
def test_what_has_no_rule_stays_as_it_is(name: str) -> None:
    function = {"angle": lambda m, x: torch.fft.rfft(x).angle(), "product by i": lambda m, x: (torch.fft.rfft(x) * 1j).abs()}[name]
    graph = exported(Of(function).eval(), (torch.randn(2, 6, 8),))
    lower_complex(graph, PassContext())
    assert "aten.fft_rfft.default" in {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
