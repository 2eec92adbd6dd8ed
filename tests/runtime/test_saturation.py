"""Quantization saturates as PyTorch's does: infinities and numbers that no int64 holds, in each type of codes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ethorch
from ethorch.formats.boundary import Codes
from ethorch.program.program import host_of, record_of

INF, NAN = float("inf"), float("nan")
EXTREMES = torch.tensor([INF, -INF, NAN, 3e38, -3e38, 1e30, -1e30, 2e13, -2e13, 1e12, -1e12, 0.0, -0.0, 0.5, 1e-40])


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 1.5 + 0.25, x.flip(0)


@pytest.mark.parametrize(("scheme", "io"), [("int8", "float32"), ("a16w8", "float32"), ("int8", "uint8"), ("a16w8", "int16")])
def test_extreme_inputs_are_those_of_the_fake_quantized_model(scheme, io):
    program = ethorch.compile(Scaled(), torch.linspace(-1, 2, len(EXTREMES)), scheme=scheme, io=io)
    wanted = record_of(program).quantized(EXTREMES)
    for found in (program(EXTREMES), host_of(program).run_many([list(record_of(program).as_taken((EXTREMES,)))])[0]):
        for one, other in zip(record_of(program).floats(list(found)), wanted, strict=True):
            assert torch.allclose(one, other, atol=2 * float((other.max() - other.min()) / 65535), rtol=0)
    moved = record_of(program).floats(list(program(EXTREMES)))[1].flip(0)
    assert moved[0] == moved[3] == moved[5] == moved[7] == moved[9] == moved.max()
    assert moved[1] == moved[4] == moved[6] == moved[8] == moved[10] == moved.min()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_codes_of_extremes_are_torchs(dtype):
    limits = torch.iinfo(getattr(torch, dtype))
    codes = Codes(0.02, 3, limits.min, limits.max, dtype)
    wanted = torch.ops.quantized_decomposed.quantize_per_tensor(EXTREMES, 0.02, 3, limits.min, limits.max, codes_dtype(dtype))
    assert torch.equal(codes.quantize(EXTREMES), wanted)


def codes_dtype(name: str) -> torch.dtype:
    return getattr(torch, name)
