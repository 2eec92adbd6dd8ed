"""Every program is compared with the TOSA reference before ``compile`` returns it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.program.verification import Verification

pytestmark = pytest.mark.core


class Small(nn.Module):
    """Three convolutions, so that one in the middle can be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.middle = nn.Conv2d(8, 16, 3, stride=2)
        self.last = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x).relu()).relu())


@pytest.fixture(scope="module")
def small() -> nn.Module:
    torch.manual_seed(0)
    return Small().eval()


SAMPLES = [torch.linspace(-1, 1, 3 * 16 * 16).sin().reshape(1, 3, 16, 16) * (1 + k) for k in range(3)]


def compiled(model: nn.Module, **options: object) -> ethorch.Program:
    return ethorch.compile(model, SAMPLES[0], "ethos-u55-128", calibration=SAMPLES, **options)


def test_a_program_says_that_it_was_verified(small: nn.Module) -> None:
    program = compiled(small)
    assert program.verification == Verification(1, 1)
    assert program.to_json()["verification"] == {"delegates": 1, "equal": 1, "unchecked": ()}
    assert "1 of 1" in str(program) and "delegates equal the TOSA reference" in str(program)


def test_verification_can_be_turned_off(small: nn.Module) -> None:
    program = compiled(small, verify=False)
    assert program.verification is None and program.to_json()["verification"] is None
    assert program.settings is not None and "verify = false" in program.settings.to_toml()
