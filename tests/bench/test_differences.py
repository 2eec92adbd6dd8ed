"""The benchmark of elements that differ from fake quantization."""

from __future__ import annotations

from bench.differences import CASES, measure, table


def test_operators_rounded_once_differ_nowhere() -> None:
    names = ["cat", "pixel_shuffle"]
    records = measure("ethorch", "ethos-u55-128", "int8", names)
    assert list(records) == names
    for name in names:
        record = records[name]
        assert record["delegates"] == 1 and record["different"] == record["steps"] == 0, record
        assert record["pte_sqnr_db"] == record["fake_sqnr_db"] > 30, record


def test_a_failure_and_an_operator_on_the_cpu_have_a_row() -> None:
    measured = {"delegates": 1, "elements": 400, "different": 2, "steps": 1, "pte_sqnr_db": 40.0, "fake_sqnr_db": 40.5}
    records = {
        "ethorch": {"add": measured, "sub": measured, "mul": {"error": "RuntimeError: none"}},
        "arm": {"add": measured | {"different": 0, "steps": 0}, "sub": measured | {"delegates": 0}},
    }
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(records).splitlines()[2:]]
    assert rows[0] == ["add", "0.50", "1", "40.0", "40.5", "0.00", "0", "40.0", "40.5"]
    assert rows[1][5] == "CPU" and rows[2][1] == rows[2][5] == "fails"


def test_inputs_of_a_case_follow_from_the_seed() -> None:
    first, again, other = (CASES["div"].inputs(seed)[0] for seed in (1, 1, 2))
    assert first.equal(again) and not first.equal(other) and float(first.min()) >= 0.2
