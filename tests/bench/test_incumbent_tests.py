"""The harness that runs the Arm backend's tests through both implementations, and the page of its results."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import incumbent_results as results
from bench import incumbent_tests
from bench.incumbent_case import TooLong, _settings, time_limit
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


@pytest.mark.long
def test_both_implementations_compile_a_case(tmp_path: Path) -> None:
    """A cast that the CPU runs in both programs: the Arm backend compiles it, because ethorch does not fully delegate it."""
    path = tmp_path / "r.jsonl"
    options = ["--folders", "ops", "--files", "test_div_tensor_mode", "--targets", "ethos-u55-128", "--per-function", "1"]
    assert incumbent_tests.main([*options, "--timeout", "600", "-o", str(path)]) == 0
    [plain, integers] = results.read(path)
    assert plain["status"] == integers["status"] == "ok" and plain["differing"] == integers["differing"] == 0
    assert plain["cpu"] == {} and "arm" not in plain
    assert integers["reasons"] == ["aten.div.Tensor_mode (INTDIV.absent)"]
    assert integers["sqnr_db"] == float("inf") and integers["arm"]["sqnr_db"] < 30  # the Arm backend's integers are wrong


def test_results_of_a_folder_replace_only_those_of_the_folder() -> None:
    stored = results.summarize([ok("misc/test_a::x"), ok("ops/test_b::x"), ok("ops/test_b::y")])
    stored["failures"] = [["misc/test_c", "all", "not run", ""], ["ops/test_d", "all", "not run", ""]]
    merged = results.merge(stored, results.summarize([ok("misc/test_a::x"), ok("misc/test_a::y")]))
    assert [(folder, counts["cases"]) for folder, _, counts in merged["groups"]] == [("misc", 2), ("ops", 2)]
    assert merged["failures"] == [["ops/test_d", "all", "not run", ""]]
    assert results.merge(stored, results.summarize([])) == stored


def ok(case: str) -> results.Record:
    return {"case": case, "target": "ethos-u55-128", "status": "ok", "cpu": {}, "differing": 0, "bytes": 4}


@pytest.mark.parametrize(
    ("status", "needs_it"), [("too long: quantize", True), ("too long: compile", True), ("too long: run", False)]
)
def test_a_case_that_takes_too_long_is_compared_if_it_was_not_compiled(status: str, needs_it: bool) -> None:
    record = {**ok("models/test_a::x"), "status": status}
    assert results.needs_comparison(record) == needs_it
    assert results.has_more_on_cpu({**record, "arm": {"cpu": {}}}) == needs_it
    assert results.summarize([record])["failures"] == [["models/test_a::x", "ethos-u55-128", status, ""]]


def test_a_time_limit_ends_what_catches_exceptions() -> None:
    with pytest.raises(TooLong, match=r"more than 0\.05 s"), time_limit(0.05):
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))
    with time_limit(0):
        assert sum(range(1000)) == 499500


def test_settings_are_read_from_a_stage_of_another_class_than_the_pipelines() -> None:
    """``pipeline.quantizer`` of the Arm backend's pipelines accepts only its own class of stages."""

    class Pipeline:
        _stages = (SimpleNamespace(args=[SimpleNamespace(quantizer=SimpleNamespace(global_config="config"))]),)

        def find_pos(self, name: str) -> int:
            return 0

        @property
        def quantizer(self) -> object:
            raise RuntimeError("First argument of quantize stage was Quantize, not Quantize as expected.")

    assert _settings(Pipeline()) == [("set_global", ("config",))]


def test_results_name_files_without_the_folders_of_a_machine() -> None:
    error = "Traceback:\nRuntimeError: /home/me/venv/lib/arm/runner.cmake does not exist: a / b, 1/2"
    summary = results.summarize([{"case": "misc/test_x::test_y", "target": "all", "status": "not run", "error": error}])
    assert summary["failures"][0][3] == "RuntimeError: runner.cmake does not exist: a / b, 1/2"
    assert "`RuntimeError: runner.cmake does not exist: a / b, 1/2`" in results.page(summary)
