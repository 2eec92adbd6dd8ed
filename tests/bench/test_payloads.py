"""The comparison of payloads: what counts as a difference, and that another package can stand in for the present one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.payload_cases import GROUPS, TARGETS, all_cases
from bench.payloads import differences, extract_package, hashes, in_children

SAME = {"payloads": ["a", "b"], "pte": "p", "pte_bytes": 100, "cycles": 2000}


def test_differences_name_network_and_kind() -> None:
    before = {"x": SAME, "y": SAME, "z": SAME, "failing": {"error": "no"}, "elsewhere": SAME}
    after = {
        "x": SAME,
        "y": SAME | {"payloads": ["a", "c"], "pte": "q", "cycles": 2010},
        "z": SAME | {"pte": "q", "pte_bytes": 104},
        "failing": {"error": "other"},
    }
    assert list(differences(before, after)) == [
        "y: 2 -> 2 payloads, 1 of them differ; 2,000 -> 2,010 cycles (+0.50%)",
        "z: equal payloads in another program (100 -> 104 bytes)",
        "failing: no -> other",
    ]


def test_an_unknown_revision_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--against no-such-revision"):
        extract_package("no-such-revision", tmp_path)


def test_cases_are_of_all_groups_and_configurations() -> None:
    cases = list(all_cases(["resnet8"]))
    assert len({case.key for case in cases}) == len(cases)
    assert {case.group for case in cases} == set(GROUPS)
    for scheme in ("int8", "a16w8"):
        assert {case.key.split()[2] for case in cases if case.key.endswith(scheme)} == set(TARGETS)


def test_hashes_are_of_each_delegate_and_repeat() -> None:
    cases = {case.key: case for case in all_cases([])}
    case = cases["programs float_head ethos-u55-128 int8"]
    found = hashes(case)
    assert len(set(found["payloads"])) == 2 and found["cycles"] > 0 and found == hashes(case)


def test_weights_that_methods_share_are_found_in_the_program() -> None:
    cases = {case.key: case for case in all_cases([])}
    found = hashes(cases["programs methods_with_shared_weights ethos-u55-128 int8"])
    assert len(found["payloads"]) == 2 and found["cycles"] > 0


@pytest.mark.long
def test_the_package_of_the_child_is_the_one_given(tmp_path: Path) -> None:
    """A package without anything in it cannot compile, and its error is the record."""
    (tmp_path / "ethorch").mkdir()
    (tmp_path / "ethorch" / "__init__.py").write_text("raise RuntimeError('this one')")
    with pytest.raises(RuntimeError, match="this one"):
        in_children(tmp_path / "ethorch", ["--groups", "compiled", "--models", "ds_cnn"])
