"""ethorch.tuning.sensitivity finds the module that does the damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ethorch
from ethorch.support.errors import QuantizationError
from tests.helpers.quantized import samples
from tests.tuning.networks import MODULES, SAMPLES, SPEC, Fragile, Stateful


def test_the_module_that_does_the_damage_comes_first() -> None:
    seen: list[tuple[int, int, str]] = []
    found = ethorch.tuning.sensitivity(Fragile(), SPEC, SAMPLES, modules=MODULES, progress=lambda *args: seen.append(args))
    assert {row.module for row in found.rows} == set(MODULES)
    assert found.rows[0].module == "middle" and found.rows[0].gain > 10
    assert found.rows[0].only == min(row.only for row in found.rows)
    assert seen[-1][0] == seen[-1][1] == 3 and [name for *_, name in seen[:3]] == MODULES
    assert "| middle |" in found.table() and found.to_json()["rows"][0]["module"] == "middle"


def test_infinite_figures_are_null_in_json() -> None:
    sample = [(torch.zeros(1, 3, 5),)]
    losses = ethorch.tuning.sensitivity(nn.ReLU(), SPEC, sample)
    mixed = ethorch.tuning.mixed_precision(nn.ReLU(), SPEC, sample, target_sqnr_db=30)
    assert losses.to_json()["whole"] is None and mixed.to_json()["steps"][0]["metric"] is None
    json.dumps([losses.to_json(), mixed.to_json()], allow_nan=False)


def test_rows_are_the_innermost_modules_and_the_operators_outside_them_by_default() -> None:
    found = ethorch.tuning.sensitivity(Fragile(), SPEC, SAMPLES)
    operators = {row.module: row.operator for row in found.rows if row.operator}
    assert {row.module for row in found.rows} - set(operators) == {"first", "middle.conv", "middle", "last"}
    assert set(operators) == {"relu", "tanh"} and operators["relu"].startswith("aten.relu.default, networks.py:")


class LogInForward(nn.Module):
    """A logarithm of numbers near 0 between two layers, which costs most of the accuracy."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.log(torch.sigmoid(self.first(x)).clone() * x.abs() + 1e-3)
        return self.last(torch.softmax(y.reshape(1, 8), -1))


def test_an_operator_in_forward_has_a_row_and_can_be_raised() -> None:
    data = samples((1, 8), count=8)
    found = ethorch.tuning.sensitivity(LogInForward(), SPEC, data)
    rows = {row.module: row for row in found.rows}
    assert rows["log"].operator.startswith("aten.log.default, test_module_sensitivity.py:") and rows["log"].only < 60
    assert found.whole < rows["log"].only and "log (aten.log.default, " in found.table()
    assert rows["softmax"].operator.startswith("aten.softmax.int"), "a composite is one operator"
    (alone,) = ethorch.tuning.sensitivity(LogInForward(), SPEC, data, modules=["log"]).rows
    assert alone == rows["log"]
    mixed = ethorch.tuning.mixed_precision(LogInForward(), SPEC, data, target_sqnr_db=1000, modules=["log", "mul"])
    assert {step.module for step in mixed.steps} == {"", "log", "mul"} and mixed.steps[-1].metric > mixed.steps[0].metric


def test_plot_and_metric_of_ones_own(tmp_path: Path) -> None:
    calls: list[int] = []

    def agreement(reference: Any, other: Any) -> float:
        calls.append(len(reference))
        return -max(float((a - b).abs().max()) for a, b in zip(reference, other, strict=True))

    found = ethorch.tuning.sensitivity(Fragile(), SPEC, SAMPLES, agreement, modules=["last", "middle"])
    assert [row.module for row in found.rows] == ["middle", "last"] and set(calls) == {len(SAMPLES)} and found.whole < 0
    found.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"


def test_an_interruption_gives_the_modules_so_far() -> None:
    def stop(done: int, total: int, module: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    found = ethorch.tuning.sensitivity(Fragile(), SPEC, SAMPLES, modules=MODULES, progress=stop)
    assert found.interrupted and [row.module for row in found.rows] == MODULES[:1] and "Interrupted" in found.table()


def test_refusals() -> None:
    with pytest.raises(
        QuantizationError, match=r"expected quantized modules, got nowhere. Use one of first, middle.*\[sensitivity\.module\]"
    ):
        ethorch.tuning.sensitivity(Fragile(), SPEC, SAMPLES, modules=["nowhere"])
    with pytest.raises(QuantizationError, match=r"\[quantize\.no_samples\]"):
        ethorch.tuning.sensitivity(Fragile(), SPEC, [])
    with pytest.raises(QuantizationError, match=r"\[mixed_precision\.no_target\]"):
        ethorch.tuning.mixed_precision(Fragile(), SPEC, SAMPLES)
    with pytest.raises(QuantizationError, match=r"to='int16' or 'float', got .* \[mixed_precision\.to\]"):
        ethorch.tuning.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=1, to="int4")


def test_a_state_is_the_same_at_the_start_of_every_run() -> None:
    model, data = Stateful(), samples((1, 4), count=5)
    whole = ethorch.tuning.sensitivity(model, SPEC, data).whole
    assert whole > 25 and torch.equal(model.state, torch.zeros(1, 4))
    found = ethorch.tuning.mixed_precision(model, SPEC, data, target_sqnr_db=20)
    assert found.reached and found.best.metric > 25
    assert torch.equal(model.state, torch.zeros(1, 4)) and torch.equal(found.model.state, torch.zeros(1, 4))


def test_the_npu_itself_is_the_judge() -> None:
    fake = ethorch.tuning.sensitivity(Fragile(), SPEC, SAMPLES, modules=["middle"])
    found = ethorch.tuning.sensitivity(Fragile(), SPEC, SAMPLES, modules=["middle"], judge="npu")
    program = ethorch.compile(Fragile(), SAMPLES[0], SPEC.target.name, calibration=SAMPLES)
    with torch.no_grad():
        wanted = [Fragile()(*x) for x in SAMPLES]
    assert found.whole == pytest.approx(ethorch.sqnr_db(wanted, [program(*x) for x in SAMPLES]), abs=1e-6)
    (row,), (other,) = found.rows, fake.rows
    assert row.gain == pytest.approx(other.gain, abs=1.0) and row.only == pytest.approx(other.only, abs=1.0)
    with pytest.raises(QuantizationError, match=r"expected judge='quantized' or 'npu', got 'device' \[accuracy\.judge\]"):
        ethorch.tuning.sensitivity(Fragile(), SPEC, SAMPLES, judge="device")
    with pytest.raises(QuantizationError, match=r"expected an EthosUCompileSpec.*\[accuracy\.judge\]"):
        ethorch.tuning.sensitivity(Fragile(), ethorch.arm.TosaCompileSpec("TOSA-1.0+INT"), SAMPLES, judge="npu")


def test_state_on_the_npu_begins_anew_for_each_figure() -> None:
    data = samples((1, 4), count=5)
    fake, found = (
        ethorch.tuning.sensitivity(Stateful(), SPEC, data, modules=["linear"], judge=judge) for judge in ("quantized", "npu")
    )
    assert found.whole == pytest.approx(fake.whole, abs=1.5) and found.whole > 25


class TwoOutputs(nn.Module):
    """A large output with little error, and a small one with much."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.large, self.small = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.large(x) * 100, torch.softmax(self.small(x) * 8, -1)


def test_a_large_output_does_not_hide_the_error_of_a_small_one() -> None:
    data = samples((1, 8), count=8)

    def measure(metric: Any = None) -> float:
        return ethorch.tuning.sensitivity(TwoOutputs(), SPEC, data, modules=["small"], metric=metric).whole

    each = [measure(lambda a, b, n=n: ethorch.sqnr_db([y[n] for y in a], [y[n] for y in b])) for n in range(2)]
    assert measure() == pytest.approx(min(each)) and abs(each[0] - each[1]) > 0.5
    assert measure(ethorch.sqnr_db) > min(each) + 0.5
