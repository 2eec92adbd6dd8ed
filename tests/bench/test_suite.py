"""ExecuTorch's backend-neutral operator suite through our flow: ``bench.suite`` runs it and counts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench.suite import figures, read, run, suite_folder, table

TARGETS = ("ethos-u55-128", "ethos-u85-256")


def record(case: str, result: str, delegated: bool = True, left: int = 0, snr: float | None = 40.0) -> dict:
    return {
        "case": f"test_{case}.py::test_{case}",
        "result": result,
        "delegated": delegated,
        "error": "",
        "delegated_operators": {"aten::add": 1},
        "cpu_operators": {"aten::topk": left} if left else {},
        "snr_db": [snr],
        "float_snr_db": snr,
    }


RECORDS = [
    record("add", "SUCCESS", snr=30.0), record("sort", "SUCCESS", left=1, snr=50.0), record("sin", "OUTPUT_MISMATCH_FAIL"),
    record("topk", "SUCCESS_UNDELEGATED", False, 1, None), record("nan", "SKIPPED", False, 0, None),
]  # fmt: skip


def test_counts() -> None:
    found = figures(RECORDS)
    assert [found[name] for name in ("cases", "delegated", "wholly delegated", "delegated and passed", "wholly, and passed")] == [
        5,
        3,
        2,
        2,
        1,
    ]
    assert (found["failed"], found["skipped"], found["passed on the CPU"]) == (1, 1, 1)
    assert (found["suite SNR"], found["float SNR"]) == (40.0, 40.0)
    assert math.isnan(figures([])["suite SNR"])


def test_table_names_what_failed_or_stayed() -> None:
    lines = table({"ethos-u55-128": {"ethorch": RECORDS}}).splitlines()
    assert lines[2] == "| ethos-u55-128 | ethorch | 5 | 3 | 2 | 2 | 1 | 1 | 1 | 1 | 40.0 | 40.0 |"
    assert lines[-2:] == ["- test_sin: 1 OUTPUT_MISMATCH_FAIL", "- test_topk: 1 SUCCESS_UNDELEGATED"]


def test_a_case_that_never_ended_is_a_crash(tmp_path: Path) -> None:
    lines = [{"case": "a", "state": "started"}, record("a", "SUCCESS"), {"case": "b", "state": "started"}]
    path = tmp_path / "records"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"case": "c", "state": "started"}]))
    assert [r["result"] for r in read(path)] == ["SUCCESS", "CRASH", "CRASH"]


def test_a_checkout_without_the_suite_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--executorch takes the path"):
        suite_folder(tmp_path)


@pytest.mark.long  # importing ExecuTorch's own suite takes 10 s
def test_one_operator_runs() -> None:
    """A whole run in a child process, as ``python -m bench.suite`` makes it."""
    (found,) = run("ethorch", "ethos-u55-128", "test_relu and dtype")
    assert found["result"] == "SUCCESS" and found["delegated"] and not found["cpu_operators"]
    assert found["case"] == "test_relu.py::test_relu_dtype[float32]" and found["float_snr_db"] > 30


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_more_is_delegated_and_passes_than_of_the_incumbent(target: str) -> None:
    ours, theirs = figures(run("ethorch", target)), figures(run("arm", target))
    assert ours["failed"] == 0
    for name in ("delegated and passed", "wholly, and passed"):
        assert ours[name] > theirs[name]
