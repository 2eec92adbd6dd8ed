"""Tuning: a wrong name is an error, and no choice is without a family that takes it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

from bench.tuning import HEADER, MEASUREMENTS
from ethorch.report.listings import tuning_names, tuning_rows
from ethorch.targets import TARGETS, TUNING, Tuning
from ethorch.targets.tosa_spec import TosaCompileSpec
from ethorch.targets.tuning import UNTUNED

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
def test_each_choice_is_made_by_some_target(choice) -> None:
    assert any(getattr(target.tuning, choice) != getattr(UNTUNED, choice) for target in TARGETS.values())


def test_targets_carry_their_familys_tuning() -> None:
    assert all(replace(target.tuning, vela_small_shram=False) == TUNING[target.family] for target in TARGETS.values())
    assert TosaCompileSpec("TOSA-1.0+INT").target.tuning == UNTUNED
    assert TosaCompileSpec("TOSA-1.0+INT+u55").target.tuning == TUNING["u55"]


def test_differences_have_a_line_each() -> None:
    u55, u65, u85 = (tuning_rows(TUNING[family]) for family in ("u55", "u65", "u85"))
    assert [name for name in tuning_names(u55, u65) if u55.get(name) != u65.get(name)] == [
        "fold_strides.least_products",
        "shuffles_by_nhwc",
        "transpose_steps.of_single_elements",
        "transpose_steps.fewest_single_elements",
        "smallest_rescale_by_depthwise",
        "vela_family",
    ]
    assert (u55["fold_strides.least_products"], u65["fold_strides.least_products"]) == ("192", "1024")
    assert (u55["fold_strides"], u85["fold_strides"]) == ("FoldColumns", "FoldSquares")


def test_the_measurements_are_those_of_the_benchmark() -> None:
    """Field, graph and NPU of each row of docs/measurements.md are what `python -m bench.tuning` measures."""
    keys = [measurement.key(target) for measurement in MEASUREMENTS for target in measurement.others]
    lines = PAGE.read_text().splitlines()
    first = lines.index(HEADER[0]) + len(HEADER)
    assert [line.startswith(key) for line, key in zip(lines[first:], keys, strict=False)] == [True] * len(keys)
    assert not lines[first + len(keys)].startswith("|"), "a row that nothing measures"


@pytest.mark.parametrize("choice", [field.name for field in fields(Tuning)])
def test_each_choice_for_speed_is_measured(choice) -> None:
    speed = not choice.startswith("vela_") and choice not in (
        "truth_dtype",
        "resize",
        "int32_activations",
    )  # those are what the NPU has and Vela does
    assert speed == (choice in {measurement.field for measurement in MEASUREMENTS})
