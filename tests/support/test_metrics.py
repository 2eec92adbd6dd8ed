"""sqnr_db: the ratio by hand, nests of outputs, and what has no ratio."""

from __future__ import annotations

import math

import pytest
import torch

from ethorch import sqnr_db
from ethorch.support.metrics import OutputRatios


def test_a_tenth_of_the_signal_is_twenty_decibels() -> None:
    x = torch.ones(100)
    assert sqnr_db(x, x * 1.1) == pytest.approx(20, abs=1e-3)
    assert sqnr_db(x, x / 0) == -math.inf


def test_all_outputs_count_together() -> None:
    wanted = [{"a": torch.tensor([3.0]), "b": (torch.tensor([4.0]), 7)}]
    found = [{"a": torch.tensor([3.0]), "b": (torch.tensor([4.5]), 8)}]
    assert sqnr_db(wanted, found) == pytest.approx(10 * math.log10(25 / 0.25))


def test_integers_count_where_nothing_is_floating_point() -> None:
    index, score = torch.tensor([10]), torch.tensor([1.0])
    assert sqnr_db((index, score), (index + 1, score)) == math.inf
    assert sqnr_db(index, index + 1) == pytest.approx(20)
    assert sqnr_db(torch.tensor([True]), torch.tensor([False])) == 0


def test_what_has_no_ratio() -> None:
    x = torch.ones(3)
    assert sqnr_db(x, x) == sqnr_db([], []) == math.inf
    assert sqnr_db(torch.zeros(3), x) == -math.inf
    assert math.isnan(sqnr_db(x, x * math.nan))


def test_other_shapes_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"expected an output of shape \[3\], got \[1\]"):
        sqnr_db(torch.ones(3), torch.ones(1))
    with pytest.raises(ValueError):
        sqnr_db([torch.ones(3)], [])


def test_gradients_are_no_matter(recwarn: pytest.WarningsRecorder) -> None:
    x = torch.ones(3, requires_grad=True)
    assert sqnr_db(x * 1, x * 1.1) == pytest.approx(20, abs=1e-3)
    assert not recwarn.list


def test_codes_are_not_compared_with_floats() -> None:
    with pytest.raises(ValueError, match=r"floating-point output 1, got torch.int8. Dequantize .*outputs\[1\].codes.dequantize"):
        sqnr_db([torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(3, dtype=torch.int8)])


def test_the_lowest_ratio_of_an_output_over_all_samples() -> None:
    ratios = OutputRatios()
    for scale in (1.0, 3.0):
        ratios.add(
            [torch.ones(1) * 1000, torch.ones(1) * scale, torch.zeros(1)],
            [torch.ones(1) * 1000, torch.ones(1) * scale * 1.1, torch.ones(1)],
        )
    assert ratios.db == pytest.approx(20, abs=1e-3)
    zeros = OutputRatios()
    zeros.add([torch.zeros(1)], [torch.ones(1)])
    assert zeros.db == -math.inf
    assert OutputRatios().db == math.inf
    zeros.add([torch.ones(1)], [torch.ones(1) * math.nan])
    assert math.isnan(zeros.db)
