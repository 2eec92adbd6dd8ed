"""The harness that runs the Arm backend's tests through both implementations, and the page of its results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import incumbent_results as results
from bench.incumbent_tests import FOLDERS, TARGETS


def test_the_page_is_that_of_the_stored_results() -> None:
    summary = json.loads(results.SUMMARY.read_text())
    assert results.PAGE.read_text() == results.page(summary), "run `python -m bench.incumbent_results FILE.jsonl ...`"
    assert {folder for folder, _, _ in summary["groups"]} <= set(FOLDERS)
    assert {target for _, target, _ in summary["groups"]} <= set(TARGETS)
    for folder, target, counts in summary["groups"]:
        assert counts["equal"] == counts["run"] <= counts["cases"], (folder, target)
    for _, _, id, _ in summary["reasons"]:
        assert "messages.md" not in results.source_of(id), f"{id} has no source"


def written(path: Path, *records: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_case_that_ended_its_process_is_a_failure(tmp_path: Path) -> None:
    started = [{"case": f"ops/test_a::{name}", "state": "started"} for name in "xyz"]
    ended = {"case": "ops/test_a::x", "state": "finished"}
    record = {"case": "ops/test_a::z", "target": "ethos-u55-128", "status": "ok"}
    finished, records = results.read_states(written(tmp_path / "r.jsonl", started[0], ended, *started[1:], record))
    assert finished == {"ops/test_a::x", "ops/test_a::y", "ops/test_a::z"}
    assert {(r["case"], r["status"]) for r in records} == {("ops/test_a::y", "failed: process"), ("ops/test_a::z", "ok")}


@pytest.mark.parametrize(
    ("own", "arm", "is_more"),
    [
        ({"status": "ok", "cpu": {"aten::a.out": 2}}, {"cpu": {"aten::a.out": 1}}, True),
        ({"status": "ok", "cpu": {"aten::a.out": 1}}, {"cpu": {"aten::b.out": 1}}, False),
        ({"status": "ok", "cpu": {"aten::copy_": 1}, "reasons": ["aten.copy.default (graph.written_back)"]}, {"cpu": {}}, False),
        ({"status": "ok", "cpu": {"aten::copy_": 1}}, {"cpu": {}}, True),
        ({"status": "refused: quantize"}, {"cpu": {}}, True),
        ({"status": "refused: quantize"}, {"error": "it refuses, too"}, False),
    ],
)
def test_more_operators_on_the_cpu(own: dict[str, object], arm: dict[str, object], is_more: bool) -> None:
    assert results.has_more_on_cpu({**own, "arm": arm}) == is_more


def test_both_implementations_compile_a_case(tmp_path: Path) -> None:
    """A cast that the CPU runs in both programs: the Arm backend compiles it, because ethorch does not fully delegate it."""
    path = tmp_path / "r.jsonl"
    options = ["--folders", "ops", "--files", "test_div_tensor_mode", "--targets", "ethos-u55-128", "--per-function", "1"]
    subprocess.run([sys.executable, "-m", "bench.incumbent_tests", *options, "-o", str(path)], check=True, timeout=600)
    [plain, integers] = results.read(path)
    assert plain["status"] == integers["status"] == "ok" and plain["differing"] == integers["differing"] == 0
    assert plain["cpu"] == {} and "arm" not in plain
    assert integers["reasons"] == ["aten.div.Tensor_mode (INTDIV.absent)"]
    assert integers["sqnr_db"] == float("inf") and integers["arm"]["sqnr_db"] < 30  # the Arm backend's integers are wrong


def test_results_name_files_without_the_folders_of_a_machine() -> None:
    error = "Traceback:\nRuntimeError: /home/me/venv/lib/arm/runner.cmake does not exist: a / b, 1/2"
    summary = results.summarize([{"case": "misc/test_x::test_y", "target": "all", "status": "not run", "error": error}])
    assert summary["failures"][0][3] == "RuntimeError: runner.cmake does not exist: a / b, 1/2"
    assert "`RuntimeError: runner.cmake does not exist: a / b, 1/2`" in results.page(summary)
