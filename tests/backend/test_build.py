"""One call from a quantized model to a program: in memory, each delegate compiled once, the same bytes every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ethosu import regor
from torch import nn

from ethorch import EthosUCompileSpec, runtime
from ethorch.backend.build import build_pte
from ethorch.backend.emit.build import Build
from ethorch.lower.partition_report import PartitionReport
from ethorch.models.load import UserModel
from ethorch.quantization.calibrate import quantize
from ethorch.tosa.reference_model import run

TARGET = "ethos-u55-128"


class TwoDelegates(nn.Module):
    """The CPU's topk stands between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.topk(torch.relu(self.first(x)), 8, dim=3).values)


def made(folder: Path | None = None, **choices: Any) -> Build:
    torch.manual_seed(0)
    model = UserModel(TwoDelegates().eval(), (torch.randn(1, 3, 8, 8),))
    spec = EthosUCompileSpec(TARGET, **choices).dump_intermediate_artifacts_to(folder)
    return build_pte(quantize(model, spec), model.example_inputs, spec)


@pytest.fixture(scope="module")
def plain() -> Build:
    return made()


def test_what_a_model_keeps_is_as_before_calibration() -> None:
    """torch.export shares the buffers with the user's model, and calibration writes to them."""

    class Counts(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.full((1, 4), 2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.copy_(self.count + x)
            return self.count * 0.5

    model = Counts()
    samples = [(torch.rand(1, 4),) for _ in range(3)]
    quantized = quantize(UserModel(model, samples[0], samples), EthosUCompileSpec(TARGET))
    assert torch.equal(model.count, torch.full((1, 4), 2.0))
    assert [buffer.unique().tolist() for name, buffer in quantized.named_buffers() if name == "count"] == [[2.0]]


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The TOSA of each call of Vela."""
    calls: list[bytes] = []
    compile_ = regor.compile

    def counted(arch: str, tosa: bytes, *rest: Any, **options: Any) -> Any:
        calls.append(bytes(tosa))
        return compile_(arch, tosa, *rest, **options)

    monkeypatch.setattr(regor, "compile", counted)
    return calls


def test_each_delegate_is_compiled_once_and_all_of_it_is_at_hand(compilations: list[bytes]) -> None:
    build = made()
    assert compilations == [delegate.tosa for delegate in build.delegates]
    assert [len(delegate.inputs) for delegate in build.delegates] == [1, 1]
    assert [delegate.payload for delegate in build.delegates] == list(runtime.load(build.pte).delegates)
    assert all(delegate.performance.total_cycles > 0 for delegate in build.delegates)
    assert "CONV2D" in build.delegates[0].text and "test_build.py" in build.delegates[0].text
    for delegate in build.delegates:
        inputs = [torch.zeros(value.shape, dtype=torch.int8).numpy() for value in delegate.inputs]
        assert run(delegate.tosa, inputs)[0].any()
    assert isinstance(build.partition, PartitionReport)


def test_a_program_does_not_say_where_it_was_made(tmp_path: Path, plain: Build) -> None:
    ini = tmp_path / "mine.ini"
    ini.write_text(EthosUCompileSpec(TARGET).vela_config.text)
    dumped = made(tmp_path / "artifacts").pte
    for pte in (plain.pte, dumped, made(config_ini=str(ini)).pte):
        for place in (tmp_path, Path.home(), Path.cwd(), Path(__file__).parent):
            assert str(place).encode() not in pte, place
    assert len(list((tmp_path / "artifacts").glob("*.payload"))) == 2
    assert dumped == plain.pte


def test_two_builds_are_the_same_bytes(plain: Build) -> None:
    assert plain.pte == made().pte


@pytest.mark.long
def test_another_process_builds_the_same_bytes(plain: Build) -> None:
    script = "import sys, tests.backend.test_build; sys.stdout.buffer.write(tests.backend.test_build.made().pte)"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert plain.pte == other
