"""ethorch.tuning.mixed_precision repairs what does the damage, says what it costs, and what it could not reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ethorch
from ethorch.arm.quantizer import (
    EthosUQuantizer,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
)
from ethorch.support.errors import QuantizationError
from tests.tuning.networks import MODULES, SAMPLES, SPEC, Fragile


def scripted(*figures: float) -> Any:
    """A metric that returns these figures, one a call: the base's; the whole model's and two of each module; each step's."""
    left = iter(figures)
    return lambda reference, other: next(left)


#: The module that helps most is the middle one, then the first, then the last.
ORDER = (10.0, *(5.0, 20.0), *(5.0, 30.0), *(5.0, 15.0))


@pytest.mark.parametrize("to", ["int16", "float"])
def test_the_worst_module_is_raised_until_the_target_holds(to: str) -> None:
    steps: list[Any] = []
    found = ethorch.tuning.mixed_precision(
        Fragile(), SPEC, SAMPLES, target_sqnr_db=25, to=to, modules=MODULES, progress=steps.append
    )
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

    found = ethorch.tuning.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=-0.2, metric=worst, modules=MODULES)
    assert found.reached and found.raised[0] == "middle" and found.steps[0].metric < -0.2 <= found.steps[-1].metric < 0


def test_what_fits_the_cycles_is_raised() -> None:
    free = ethorch.tuning.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=100, modules=MODULES)
    assert "| raised | dB |" in free.table()
    assert len(free.raised) == 3 and not free.reached
    limit = max(step.cycles for step in free.steps[:2])
    bounded = ethorch.tuning.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=100, max_cycles=limit, modules=MODULES)
    assert bounded.raised[:1] == free.raised[:1] and all(step.cycles <= limit for step in bounded.steps)


def test_cycles_bound_what_is_raised() -> None:
    found = ethorch.tuning.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=100, max_cycles=1)
    assert not found.reached and found.raised == ()


def test_the_best_step_is_returned_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    metric = scripted(10, *ORDER, 30, 12, 11)
    found = ethorch.tuning.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=40, metric=metric, modules=MODULES)
    assert not found.reached and found.raised == ("middle",) and found.best.metric == 30 and len(found.steps) == 4
    assert "expected a metric of at least 40.00, got 30.00" in caplog.text and "[mixed_precision.not_reached]" in caplog.text
    assert "chosen: 1 raised, metric 30.00; the goal is NOT reached" in found.table()


def test_it_never_ends_worse_than_it_began(caplog: pytest.LogCaptureFixture) -> None:
    metric = scripted(10, *ORDER, 9, float("nan"), 8)
    found = ethorch.tuning.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=40, metric=metric, modules=MODULES)
    assert not found.reached and found.raised == () and found.best.metric == 10
    assert "Raised precision: none" in caplog.text


def test_a_model_that_is_too_dear_already_is_said(caplog: pytest.LogCaptureFixture) -> None:
    found = ethorch.tuning.mixed_precision(Fragile(), SPEC, SAMPLES, max_cycles=1, modules=MODULES)
    assert not found.reached and "before raising the precision of any module" in caplog.text


def test_the_npu_itself_is_the_judge() -> None:
    found = ethorch.tuning.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=25, modules=["middle"], judge="npu")
    assert found.reached and found.raised == ("middle",)
    program = ethorch.compile(found.model, SAMPLES[0], SPEC.target.name)
    with torch.no_grad():
        wanted = [Fragile()(*x) for x in SAMPLES]
    assert found.best.metric == ethorch.sqnr_db(wanted, [program(*x) for x in SAMPLES])
    with pytest.raises(QuantizationError, match=r"\[accuracy\.judge\]"):
        ethorch.tuning.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=25, judge="desk")


@pytest.mark.parametrize("to", ["int16", "float"])
def test_the_settings_of_a_quantizer_apply_to_each_step_and_are_not_overridden(to: str) -> None:
    quantizer = EthosUQuantizer(SPEC).set_global(get_symmetric_quantization_config())
    quantizer.set_module_name("middle", get_symmetric_a16w8_quantization_config()).set_module_name("last", None)
    before = dict(quantizer.settings.module_names)
    found = ethorch.tuning.mixed_precision(Fragile(), quantizer, SAMPLES, target_sqnr_db=1000, to=to)
    plain = ethorch.tuning.mixed_precision(Fragile(), SPEC, SAMPLES, target_sqnr_db=1000, to=to, modules=[])
    assert set(found.raised) <= {"first", "relu"} and "first" in found.raised
    assert found.steps[0].metric > plain.steps[0].metric + 6 and found.steps[0].cpu_operators > plain.steps[0].cpu_operators
    assert quantizer.settings.module_names == before


def test_the_type_of_a_module_is_a_setting_too() -> None:
    quantizer = EthosUQuantizer(SPEC).set_global(get_symmetric_quantization_config())
    quantizer.set_module_type(torch.nn.Conv2d, get_symmetric_quantization_config(is_per_channel=False))
    found = ethorch.tuning.mixed_precision(Fragile(), quantizer, SAMPLES, target_sqnr_db=1000)
    assert not {"first", "middle.conv", "last"} & set(found.raised)
