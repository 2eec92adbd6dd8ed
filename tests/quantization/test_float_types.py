"""float64 and bfloat16 inside a network of float32 are computed and quantized as float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.program.program import record_of


class Rotated(nn.Module):
    """A rotary embedding in complex128, as diffusers' Wan computes it."""

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(6, dtype=torch.float64), 1 / 10000 ** (torch.arange(0, 8, 2, dtype=torch.float64) / 8))
        turns = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex((x * 2).to(torch.float64).unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns).flatten(2).type_as(x)


def test_a_rotation_in_float64_is_one_delegate() -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(1, 6, 8),)
    program = ethorch.compile(Rotated(), inputs, "ethos-u55-128", progress=False)
    assert record_of(program).build is not None
    assert len(record_of(program).build.delegates) == 1
    assert not record_of(program).build.partition.refusals
    assert ethorch.sqnr_db(Rotated()(*inputs), program(*inputs)) > 35


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.relu() + 1).double() * 2


def test_a_result_in_float64_keeps_its_dtype() -> None:
    inputs = (torch.randn(2, 8),)
    program = ethorch.compile(Doubled(), inputs, "ethos-u55-128", progress=False)
    result = program(*inputs)
    assert result.dtype == torch.float64
    assert ethorch.sqnr_db(Doubled()(*inputs), result) > 35


class Cast(nn.Module):
    """Compute in another type, write a buffer of this type, and return the type."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.linear, self.dtype = nn.Linear(8, 8), dtype
        self.register_buffer("last", torch.zeros(1, 8, dtype=dtype))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.linear(x).to(self.dtype)
        z = torch.sigmoid(y)
        self.last.copy_(y + self.last)
        return y, z * 2, (z + y).float(), torch.cat([y, x.to(self.dtype)], 1), self.last * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16])
@pytest.mark.parametrize("modules", [{}, {"sigmoid": "float"}], ids=["quantized", "float on the CPU"])
def test_outputs_and_buffers_have_any_float_type(dtype: torch.dtype, modules: dict[str, str]) -> None:
    torch.manual_seed(0)
    model, samples = Cast(dtype).eval(), [torch.randn(1, 8) for _ in range(8)]
    program = ethorch.compile(model, samples[0], "ethos-u55-128", calibration=samples, modules=modules, progress=False)
    for sample in samples[:2]:
        with torch.no_grad():
            expected = model(sample)
        for actual, wanted in zip(program(sample), expected, strict=True):
            assert actual.dtype == wanted.dtype and ethorch.sqnr_db(wanted, actual) > 20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_outputs_of_other_float_types_can_be_quantized(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, samples = Cast(dtype).eval(), [torch.randn(1, 8) for _ in range(8)]
    program = ethorch.compile(model, samples[0], "ethos-u55-128", calibration=samples, io="int8", progress=False)
    with torch.no_grad():
        expected = model(samples[1])
    for actual, wanted, info in zip(program(samples[1]), expected, program.outputs, strict=True):
        assert info.codes is not None and ethorch.sqnr_db(wanted.float(), info.codes.dequantize(actual)) > 20
