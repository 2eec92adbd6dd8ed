"""A payload that does not fit the delegate's call is an error while compiling, never a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from ethorch import EthosUPartitioner
from ethorch.formats.payload import IoTensor
from ethorch.support.errors import EthorchError
from ethorch.vela import CompiledModel, arena
from tests.backend.test_partitioner import SPEC
from tests.helpers.quantized import lower, quantized


def wider(tensor: IoTensor) -> IoTensor:
    return replace(tensor, element_size=2, shape=(*tensor.shape[:-1], tensor.shape[-1] // 2))


def transposed(tensor: IoTensor) -> IoTensor:
    return replace(tensor, shape=(*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2]))


FORGED: dict[str, tuple[Callable[[CompiledModel], CompiledModel], str]] = {
    "no input": (lambda model: replace(model, inputs=()), "expected 0 inputs in the call to the delegate, got 1"),
    "two outputs": (
        lambda model: replace(model, outputs=model.outputs * 2),
        "expected 2 outputs in the call to the delegate, got 1",
    ),
    "dtype": (lambda model: replace(model, inputs=(wider(model.inputs[0]),)), r"input 0 .*elements of 2 bytes.*int8\[1, 3, 6, 8\]"),
    "shape": (
        lambda model: replace(model, outputs=(transposed(model.outputs[0]),)),
        r"output 0 .*shape \[1, 1, 1, 4, 8, 6\].*int8\[1, 4, 6, 8\]",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_payload(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forge, message = FORGED[name]
    compile_ = arena.compile
    monkeypatch.setattr(arena, "compile", lambda *args, **options: forge(compile_(*args, **options)))
    inputs = (torch.randn(1, 3, 6, 8),)
    with pytest.raises(EthorchError, match=message):
        lower(quantized(nn.Conv2d(3, 4, 1), [inputs]).module, inputs, EthosUPartitioner(SPEC))


class Several(nn.Module):
    """Ones in the shapes, a scalar-like result, truth values and another memory format."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        z = x + y
        return z, z.mean(), (z > 0), z[:, :1].contiguous(memory_format=torch.channels_last)


def test_what_fits_is_let_through() -> None:
    inputs = (torch.randn(1, 4, 1, 6), torch.randn(1, 4, 5, 6).to(memory_format=torch.channels_last))
    partitioner = EthosUPartitioner(SPEC)
    lower(quantized(Several(), [inputs]).module, inputs, partitioner)
    assert partitioner.report.npu_operators >= 3
