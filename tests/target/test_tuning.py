"""Tuning: a wrong name is an error, and no choice is without a family that takes it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from bench.tuning import HEADER, MEASUREMENTS
from ethorch.report.listings import target_differences
from ethorch.target import TARGETS, TUNING, Tuning
from ethorch.target.tosa_spec import TosaCompileSpec
from ethorch.target.tuning import UNTUNED

pytestmark = pytest.mark.core

PAGE = Path(__file__).parents[2] / "docs" / "measurements.md"


def test_a_wrong_name_is_an_error() -> None:
    with pytest.raises(TypeError, match="transposes"):
        Tuning(transposes="whole")  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="transposes"):
        UNTUNED.transposes  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(FrozenInstanceError):
        UNTUNED.transpose = "whole"  # type: ignore[misc]


@pytest.mark.parametrize("choice", [field.name for field in fields(Tuning)])
def test_each_choice_is_made_by_some_family(choice) -> None:
    assert any(getattr(tuning, choice) != getattr(UNTUNED, choice) for tuning in TUNING.values())


def test_targets_carry_their_familys_tuning() -> None:
    assert all(target.tuning is TUNING[target.family] for target in TARGETS.values())
    assert TosaCompileSpec("TOSA-1.0+INT").target.tuning == UNTUNED
    assert TosaCompileSpec("TOSA-1.0+INT+u55").target.tuning == TUNING["u55"]


def test_differences_have_a_line_each() -> None:
    differences = target_differences("ethos-u55-128", "ethos-u65-256")
    assert differences["tuning.fold_strides.least_products"] == ["192", "1024"]
    names = [name for name in differences if name.startswith("tuning.")]
    assert names == [
        "tuning.fold_strides.least_products",
        "tuning.shuffles_by_nhwc",
        "tuning.transpose_steps.of_single_elements",
        "tuning.vela_family",
    ]
    assert target_differences("ethos-u55-128", "ethos-u85-128")["tuning.fold_strides"] == ["FoldColumns", "FoldSquares"]


def test_the_measurements_are_those_of_the_benchmark() -> None:
    """Field, graph and NPU of each row of docs/measurements.md are what `python -m bench.tuning` measures."""
    keys = [measurement.key(target) for measurement in MEASUREMENTS for target in measurement.others]
    lines = PAGE.read_text().splitlines()
    first = lines.index(HEADER[0]) + len(HEADER)
    assert [line.startswith(key) for line, key in zip(lines[first:], keys, strict=False)] == [True] * len(keys)
    assert not lines[first + len(keys)].startswith("|"), "a row that nothing measures"


@pytest.mark.parametrize("choice", [field.name for field in fields(Tuning)])
def test_each_choice_for_speed_is_measured(choice) -> None:
    speed = not choice.startswith("vela_") and choice not in ("truth_dtype", "resize")  # those are what the NPU has and Vela does
    assert speed == (choice in {measurement.field for measurement in MEASUREMENTS})
