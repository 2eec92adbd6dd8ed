"""Integers of any size beside a quantized tensor: comparisons are right, and arithmetic saturates."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import Tensor, nn

import ethorch

TARGETS, SCHEMES = ("ethos-u55-128", "ethos-u85-256"), ("int8", "a16w8")
LARGE = (1_000, 100_000, 3_000_000, 1 << 29, (1 << 31) - 1)
COMPARISONS = (operator.gt, operator.ge, operator.lt, operator.le, operator.eq, operator.ne)


class Comparisons(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.where(compare(x, n), x, -x) for compare in COMPARISONS)


class Arithmetic(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        return x + n, n - x, torch.add(x, n, alpha=3), x * n, n / (x.abs() + 0.5)


def numbers(value: int) -> Tensor:
    return torch.full((1, 8, 8), value, dtype=torch.int32)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scale", [4.0, 0.3, 1e-6])
def test_comparisons(target: str, scheme: str, scale: float) -> None:
    torch.manual_seed(0)
    x = (torch.randint(-2, 2, (1, 8, 8)) + 0.5) * scale / 4
    samples = [(x, numbers(n)) for n in (-9, -1, 0, 1, 9)]
    program = ethorch.compile(
        Comparisons(), samples[0], calibration=samples, settings=ethorch.Settings(target=target, scheme=scheme)
    )
    assert program.to_json()["operators"]["cpu"] == 0
    for n in (-(1 << 31), *(-n for n in LARGE), -1, 0, 1, *LARGE):
        for compare, output in zip(COMPARISONS, program(x, numbers(n)), strict=True):
            expected = torch.where(compare(x, n), x, -x)
            assert torch.allclose(output, expected, atol=0.02 * scale), (compare.__name__, n)


@pytest.mark.parametrize("most", [3, 1000])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("target", TARGETS)
def test_arithmetic_within_the_calibrated_range(target: str, scheme: str, most: int) -> None:
    torch.manual_seed(0)
    samples = [(6 * torch.rand(1, 8, 8) - 3, torch.randint(0, most + 1, (1, 8, 8), dtype=torch.int32)) for _ in range(4)]
    program = ethorch.compile(
        Arithmetic(), samples[0], calibration=samples, settings=ethorch.Settings(target=target, scheme=scheme)
    )
    assert program.to_json()["operators"]["cpu"] == 0
    for sample in samples:
        for k, (output, expected) in enumerate(zip(program(*sample), Arithmetic()(*sample), strict=True)):
            steps = (output - expected).abs().max() / (expected.max() - expected.min())
            assert steps < (0.06 if scheme == "int8" else 0.0005), (k, steps)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("target", TARGETS)
def test_arithmetic_saturates(target: str, scheme: str) -> None:
    torch.manual_seed(0)
    samples = [(4 * torch.rand(1, 8, 8) + 0.5, numbers(n)) for n in (-5, 1, 5)]
    program = ethorch.compile(
        Arithmetic(), samples[0], calibration=samples, settings=ethorch.Settings(target=target, scheme=scheme)
    )
    assert program.to_json()["operators"]["cpu"] == 0
    x = samples[0][0]
    for sign in (1, -1):
        for n in (*LARGE, 1 << 31)[: None if sign < 0 else -1]:
            for name, output, expected in zip(
                ("add", "sub", "scaled", "mul", "div"),
                program(x, numbers(sign * n)),
                Arithmetic()(x, numbers(5 * sign)),
                strict=True,
            ):
                assert output.unique().numel() == 1, (name, n)
                assert 0.9 * expected.abs().max() < output.abs().min() and torch.equal(output.sign(), expected.sign()), (name, n)


class Quotient(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        return n / x


@pytest.mark.parametrize("target", TARGETS)
def test_a_large_dividend_that_does_not_saturate_is_refused(target: str) -> None:
    torch.manual_seed(0)
    samples = [(100 * torch.rand(1, 8, 8) + 0.01, numbers(n)) for n in (1, 1000)]
    program = ethorch.compile(Quotient(), samples[0], calibration=samples, settings=ethorch.Settings(target=target, scheme="a16w8"))
    assert [row["id"] for row in program.to_json()["cpu"]] == ["div.integer_dividend"]
    assert torch.allclose(program(*samples[1]), Quotient()(*samples[1]), rtol=0.2)


class Shifts(nn.Module):
    def forward(self, n: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        return n >> 1, n >> 16, n >> 30, n >> 31, n >> m, torch.sub(n, n, alpha=1 << 31)


@pytest.mark.parametrize("target", TARGETS)
def test_right_shifts_of_large_integers(target: str) -> None:
    n = torch.tensor([-(1 << 31), 1 - (1 << 31), -1_700_000_000, -(1 << 30) - 1, -5, -1, 0, 1, 5, (1 << 31) - 1], dtype=torch.int32)
    program = ethorch.compile(Shifts(), (n, torch.full_like(n, 3)), settings=ethorch.Settings(target=target))
    assert program.to_json()["operators"]["cpu"] == 0
    for amount in (0, 1, 15, 30, 31):
        inputs = n, torch.full_like(n, amount)
        for k, (output, expected) in enumerate(zip(program(*inputs), Shifts()(*inputs), strict=True)):
            assert torch.equal(output, expected), (k, amount)
