"""``support.json`` says what the dry run says, of every operator that there is."""

from __future__ import annotations

import json

import pytest

from ethorch.lower.ops import OPS
from ethorch.report import support
from ethorch.report.limit_words import feature_words, limits_of, words
from ethorch.report.listings import operators
from ethorch.targets.npus import FAMILIES
from tools import support as trying

SPECS = {spec.name: spec for spec in OPS.values()}
HINT = "run `python -m tools.support`, then `python -m tools.docs`"
#: What limits decide on, and what every family runs.
SOME = ("aten.bitwise_and.Tensor", "aten.argmax.default", "aten.relu.default", "aten.gather.default", "aten.digamma.default")


@pytest.mark.core
def test_every_operator_was_tried_with_its_samples() -> None:
    rows = json.loads(support.PATH.read_text())
    assert list(rows) == sorted(SPECS), HINT
    assert [name for name, row in rows.items() if row["samples"] != trying.fingerprint(SPECS[name])] == [], HINT


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.long] * (x in SOME[2:4])) for x in SOME])
def test_some_are_tried_again(name: str) -> None:
    assert json.loads(support.PATH.read_text())[name] == trying.dry_run_samples(SPECS[name]), HINT


@pytest.mark.long
@pytest.mark.parametrize("name", SPECS)
def test_all_are_tried_again(name: str) -> None:
    assert json.loads(support.PATH.read_text())[name] == trying.dry_run_samples(SPECS[name]), HINT


def test_verdicts_count_calls() -> None:
    found = support.table()["aten.bitwise_and.Tensor"]
    assert (found.verdict("U85 int8"), found.verdict("U55 int8")) == ("all", "1 of 4")
    assert support.table()["aten.digamma.default"].verdict("TOSA FP") == "no"


@pytest.mark.core
def test_each_limit_has_words() -> None:
    for family in FAMILIES.values():
        for limits in family.limits.values():
            assert len(words(limits)) == (len(limits.ranges) + (limits.dtypes is not None) if limits.present else 0)
            assert all("{" not in feature_words(*entry) for entry in limits.ranges.items())
    assert limits_of(["TABLE"]) == []
    assert limits_of(["ARGMAX"])[0] == (
        "U55, U65",
        ["at most 127 elements along the dim", "at most 65,536 elements (product) in all other dims", "int8 only"],
    )


@pytest.mark.core
def test_what_an_operator_computes_is_said_in_whole_sentences() -> None:
    """The first paragraph of its documentation is what lists show."""
    cut = [row["name"] for row in operators() if row["kind"] != "table" and not row["what"].endswith(".")]
    assert cut == []


@pytest.mark.core
def test_pytorchs_names_find_an_operator() -> None:
    for name in ("torch.softmax", "nn.Softmax", "F.softmax", "Tensor.softmax"):
        assert "aten.softmax.int" in [row["name"] for row in operators(name)]
