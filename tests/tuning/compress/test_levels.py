"""The few codes that replace many."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ethorch.tuning.compress import levels


def error(codes: np.ndarray, importance: np.ndarray, found: np.ndarray) -> float:
    return float((importance * (codes - levels.nearest(found)[codes + levels.MOST]) ** 2).sum())


@given(st.lists(st.tuples(st.integers(-6, 6), st.floats(0.1, 5)), min_size=5, max_size=12), st.integers(1, 4), st.booleans())
def test_no_other_levels_are_nearer(entries: list[tuple[int, float]], count: int, zero: bool) -> None:
    codes, importance = np.array([code for code, _ in entries]), np.array([each for _, each in entries])
    found = levels.cluster(codes, importance, count, zero=zero)
    assert len(found) <= count and (not zero or 0 in found)
    others = [np.array(each) for each in combinations(range(-6, 7), count) if not zero or 0 in each]
    assert error(codes, importance, found) <= min(error(codes, importance, each) for each in others) + 1e-9


def test_codes_that_are_few_already_stay() -> None:
    codes = np.array([-127, -3, 5, 5, 127])
    assert levels.cluster(codes, np.ones(5), 8).tolist() == [-127, -3, 5, 127]


def test_weights_that_nothing_depends_on_are_clustered_all_the_same() -> None:
    assert len(levels.cluster(np.arange(-100, 100), np.zeros(200), 4)) == 4


@pytest.mark.parametrize(("bits", "count"), [(2, 3), (4, 15), (7, 127)])
def test_even_levels_are_those_of_an_integer(bits: int, count: int) -> None:
    found = levels.even(bits)
    assert len(found) == count and found[0] == -127 and found[-1] == 127 and (found == -found[::-1]).all()


def test_a_code_goes_to_the_nearest_level() -> None:
    table = levels.nearest(np.array([-10, 0, 4]))
    assert [table[code + levels.MOST] for code in (-127, -6, -4, 1, 3, 127)] == [-10, -10, 0, 0, 4, 4]
