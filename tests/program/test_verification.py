"""Every program is compared with the TOSA reference before ``compile`` returns it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.errors import VerificationError
from ethorch.lower import delegate
from ethorch.npu import stream
from ethorch.program.verification import Verification
from ethorch.tosa.ir import Graph
from ethorch.vela import arena
from ethorch.vela.compiled_model import CompiledModel

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


MIDDLE = "CONV2D of aten.conv2d.default at middle"
TARGETS = ("ethos-u55-128", "ethos-u85-256")


def refused(model: nn.Module, target: str) -> VerificationError:
    with pytest.raises(VerificationError) as caught:
        ethorch.compile(model, SAMPLES[0], target, calibration=SAMPLES)
    return caught.value


def reading_elsewhere(compiled: CompiledModel) -> CompiledModel:
    """The last operation but one that multiplies reads its input 16 bytes too late: one register of one command."""
    header = stream.parse_header(compiled.command_stream)
    before, middle = [row.command_offsets[-1] for row in compiled.rows() if row.macs][-3:-1]
    (base,) = (
        command
        for command in stream.commands(compiled.command_stream, header)
        if command.row.name == "IFM_BASE0" and before < command.offset <= middle
    )
    data = bytearray(compiled.command_stream)
    at = header.start + base.offset + 4
    data[at : at + 4] = (int.from_bytes(data[at : at + 4], "little") + 16).to_bytes(4, "little")
    return replace(compiled, command_stream=bytes(data))


def with_weight(graph: Graph) -> Graph:
    """The largest weight of the middle convolution has the other sign."""
    changed = graph.copy()
    weights = [op for op in changed.ops if op.name == "CONV2D"][-2].operands[1]
    assert weights.data is not None
    weights.data = weights.data.copy()
    at = np.unravel_index(np.abs(weights.data.astype(int)).argmax(), weights.shape)
    weights.data[at] = -weights.data[at]
    return changed


@pytest.mark.parametrize("target", TARGETS)
def test_a_changed_command_is_found_and_its_operator_named(small: nn.Module, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = arena.searched
    monkeypatch.setattr(arena, "searched", lambda tosa, spec: reading_elsewhere(searched(tosa, spec)))
    error = refused(small, target)
    assert error.operator.startswith(MIDDLE) and f"{__file__.rpartition('/')[2]}:" in error.operator
    assert "as the command stream computes it" in str(error) and "verify=False" in str(error)
    assert ethorch.compile(small, SAMPLES[0], target, calibration=SAMPLES, verify=False).verification is None


@pytest.mark.parametrize("target", TARGETS)
def test_a_changed_weight_is_found_and_its_operator_named(small: nn.Module, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serialize = delegate.serialize
    monkeypatch.setattr(delegate, "serialize", lambda graph: serialize(with_weight(graph)))
    assert refused(small, target).operator.startswith(MIDDLE)


def test_a_wrong_rewrite_is_found_and_its_operator_named(small: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = delegate.rewritten
    monkeypatch.setattr(delegate, "rewritten", lambda graph, tuning, spec: with_weight(rewritten(graph, tuning, spec)))
    error = refused(small, TARGETS[0])
    assert error.operator.startswith(MIDDLE) and "changed by a rewrite" in str(error)
