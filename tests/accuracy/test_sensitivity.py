"""ethorch.sensitivity finds the module that does the damage; ethorch.mixed_precision repairs it and says what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch import EthosUCompileSpec
from ethorch.errors import QuantizationError
from tests.quantizer.models import samples

SPEC = EthosUCompileSpec("ethos-u85-256")


class Squash(nn.Module):
    """One channel three hundred times larger than the others, in front of a tanh: int8 between them holds that one only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        with torch.no_grad():
            self.conv.weight[0] *= 300

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.conv(x))


class Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Conv2d(4, 4, 1), Squash(), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x).relu()))


MODULES = ["first", "middle", "last"]
SAMPLES = samples((1, 4, 6, 6), count=6)


def test_the_module_that_does_the_damage_comes_first() -> None:
    seen: list[tuple[int, int, str]] = []
    found = ethorch.sensitivity(Fragile(), SPEC, SAMPLES, modules=MODULES, progress=lambda *args: seen.append(args))
    assert {row.module for row in found.rows} == set(MODULES)
    assert found.rows[0].module == "middle" and found.rows[0].gain > 10
    assert found.rows[0].only == min(row.only for row in found.rows)
    assert seen[-1][0] == seen[-1][1] == 3 and [name for *_, name in seen[:3]] == MODULES
    assert "| middle |" in found.table() and found.to_json()["rows"][0]["module"] == "middle"


def test_modules_are_the_innermost_ones_by_default() -> None:
    found = ethorch.sensitivity(Fragile(), SPEC, SAMPLES)
    assert {row.module for row in found.rows} == {"first", "middle.conv", "middle", "last"}


def test_plot_and_metric_of_ones_own(tmp_path: Path) -> None:
    calls: list[int] = []

    def agreement(reference: Any, other: Any) -> float:
        calls.append(len(reference))
        return -max(float((a - b).abs().max()) for a, b in zip(reference, other, strict=True))

    found = ethorch.sensitivity(Fragile(), SPEC, SAMPLES, agreement, modules=["last", "middle"])
    assert [row.module for row in found.rows] == ["middle", "last"] and set(calls) == {len(SAMPLES)} and found.whole < 0
    found.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"


def test_refusals() -> None:
    with pytest.raises(
        QuantizationError, match=r"nothing is quantized in nowhere; quantized modules: first, middle.*\[sensitivity\.module\]"
    ):
        ethorch.sensitivity(Fragile(), SPEC, SAMPLES, modules=["nowhere"])
    with pytest.raises(QuantizationError, match=r"\[quantize\.no_samples\]"):
        ethorch.sensitivity(Fragile(), SPEC, [])
    with pytest.raises(QuantizationError, match=r"\[mixed_precision\.no_target\]"):
        ethorch.mixed_precision(Fragile(), SPEC, SAMPLES)
    with pytest.raises(QuantizationError, match=r"'int16' or 'float' \[mixed_precision\.to\]"):
        ethorch.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=1, to="int4")


@pytest.mark.parametrize("to", ["int16", "float"])
def test_the_worst_module_is_raised_until_the_target_holds(to: str) -> None:
    steps: list[Any] = []
    found = ethorch.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=25, to=to, modules=MODULES, progress=steps.append)
    assert found.reached and found.raised[0] == "middle" and len(found.steps) == len(found.raised) + 1
    assert tuple(steps) == found.steps
    assert found.steps[-1].metric >= 25 > found.steps[0].metric
    assert all(step.cycles > 0 and step.constant_bytes > 0 for step in found.steps)
    if to == "float":
        assert found.steps[-1].cpu_operators > found.steps[0].cpu_operators
    found.model(*SAMPLES[0])
    assert "| middle |" in found.table()


def test_a_metric_of_ones_own_decides() -> None:
    def worst(reference: Any, other: Any) -> float:
        return -max(float((a - b).abs().max()) for a, b in zip(reference, other, strict=True))

    found = ethorch.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=-0.2, metric=worst, modules=MODULES)
    assert found.reached and found.raised[0] == "middle" and found.steps[0].metric < -0.2 <= found.steps[-1].metric < 0


def test_what_fits_the_cycles_is_raised() -> None:
    free = ethorch.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=100, modules=MODULES)
    assert len(free.raised) == 3 and not free.reached
    limit = max(step.cycles for step in free.steps[:2])
    bounded = ethorch.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=100, max_cycles=limit, modules=MODULES)
    assert bounded.raised[:1] == free.raised[:1] and all(step.cycles <= limit for step in bounded.steps)


def test_cycles_bound_what_is_raised() -> None:
    found = ethorch.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=100, max_cycles=1)
    assert not found.reached and found.raised == ()
