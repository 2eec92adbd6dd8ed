"""``python -m tests.helpers.ladder``: one operator, by name."""

from __future__ import annotations

import pytest

from tests.helpers.ladder.__main__ import main, named


def test_short_and_full_names() -> None:
    assert [spec.name for spec in named("aten.softmax.int")] == [spec.name for spec in named("softmax")]
    assert len(named("max")) > 1, "several overloads are operators of their own"


def test_near_misses() -> None:
    with pytest.raises(ValueError, match="Did you mean softmax"):
        named("sofmax")


def test_a_table_and_the_bound_that_int16_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sigmoid", "--int16", "--sample", "0"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("aten.sigmoid.default, int16, ethos-u55-128\n  sample")
    assert "equal" in text and "These samples need bound16=" in text
