"""``tune``: the goal is reached, the change is recorded in the settings, and what is missing is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import ethorch
from ethorch.program.program import record_of
from ethorch.support.errors import SpecError
from ethorch.targets.settings import Settings
from tests.program.test_budget_search import Dense, Wide

TARGET = Settings("ethos-u55-128")


@pytest.fixture(scope="module")
def images() -> list[Tensor]:
    torch.manual_seed(2)
    return [torch.nn.functional.interpolate(torch.rand(1, 3, 8, 8), (32, 32), mode="bilinear") for _ in range(4)]


def tune(images: list[Tensor], **options: Any) -> ethorch.Program:
    return ethorch.tune(Wide().eval(), images[0], calibration=images, progress=False, **options)


def test_a_metric_reaches_its_least_value(images: list[Tensor]) -> None:
    seen: list[tuple[int, int]] = []

    def nearest(outputs: Sequence[Tensor], quantized: Sequence[Tensor]) -> float:
        seen.append((len(outputs), len(quantized)))
        return -max(float((a - b).abs().max()) for a, b in zip(outputs, quantized, strict=True))

    model = Wide().eval()
    plain = ethorch.quantize(model, images[0], calibration=images, settings=TARGET)
    with torch.no_grad():
        start = nearest([model(x) for x in images], [plain(x) for x in images])
        program = tune(images, goal=start / 1.5, metric=nearest, settings=TARGET)
        found = nearest([model(x) for x in images], [record_of(program).quantized(x) for x in images])  # type: ignore[misc]
    assert found >= start / 1.5 and set(seen) == {(4, 4)}
    assert program.settings is not None and set(program.settings.modules.values()) == {"a16w8"}


def test_accuracy_raises_modules(images: list[Tensor]) -> None:
    before = ethorch.compile(Wide().eval(), images[0], calibration=images, settings=TARGET).accuracy
    assert before is not None
    program = tune(images, goal="accuracy", settings=TARGET.with_(min_sqnr_db=before.sqnr_db + 3))
    assert program.budgets.met and program.accuracy is not None and program.accuracy.sqnr_db >= before.sqnr_db + 3


def test_modules_whose_scheme_is_set_are_not_raised() -> None:
    torch.manual_seed(3)
    model, x = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(8, 8)), torch.nn.Linear(8, 4)).eval(), torch.randn(1, 8)
    settings = TARGET.with_(modules={"0": "int8"}, min_sqnr_db=200)
    program = ethorch.tune(model, x, goal="accuracy", calibration=[x], progress=False, settings=settings)
    assert program.settings is not None and program.settings.modules == {"0": "int8", "1": "a16w8"}


@pytest.mark.parametrize("goal", ["flash", pytest.param("cycles", marks=pytest.mark.long)])
def test_weights_shrink_until_the_budget_is_met(goal: str) -> None:
    torch.manual_seed(3)
    vectors = [torch.randn(1, 256).cumsum(-1) / 8 for _ in range(4)]
    before = ethorch.compile(Dense().eval(), vectors[0], calibration=vectors, settings=TARGET)
    if goal == "flash":
        budget: dict[str, Any] = {"flash": before.memory.flash_bytes - 10_000}
    else:
        budget = {"latency_ms": 0.9 * (before.estimate.milliseconds or 0)}
    program = ethorch.tune(Dense().eval(), vectors[0], goal=goal, calibration=vectors, settings=TARGET.with_(**budget))
    assert program.budgets.met
    assert len(program.pte) < len(before.pte)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"goal": "speed"}, "unknown goal 'speed'"),
        ({"goal": None}, "goal: expected one of accuracy, flash, cycles"),
        ({"goal": "accuracy"}, "requires a budget, got none. Set min_sqnr_db"),
        ({"goal": "flash"}, "requires a budget, got none. Set flash or min_sqnr_db"),
        ({"goal": 0.5}, "requires a metric, got None"),
        ({"goal": "accuracy", "metric": max}, "the minimum value of metric"),
        ({"goal": "flash", "settings": Settings(flash="1M", io_layout="nhwc")}, "Remove io_layout"),
    ],
)
def test_what_is_missing_is_said(images: list[Tensor], options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        tune(images, **options)
