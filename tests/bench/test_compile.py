"""The benchmark's own arithmetic: accounting, ratios, tables; and that the two implementations stay apart."""

from __future__ import annotations

import math
import sys
import types
from typing import Any

import pytest

from bench import compile_seconds, implementation
from bench.compile import COLUMNS, geometric_mean, ratios, table


def record(impl: str, model: str, cycles: int) -> dict[str, Any]:
    vela = {"total_cycles": cycles, "npu_cycles": cycles, "sram_bytes": 1024, "read_only_bytes": 2048}
    return {
        "impl": impl,
        "model": model,
        "target": "ethos-u55-128",
        "delegates": 1,
        "cpu_operators": [],
        "sqnr_db": 20.0,
        "vela": vela | {"command_bytes": 512},
        "preprocess_seconds": 1.0,
        "seconds": {"prepare": 1, "convert": 1, "reexport": 1, "to_edge_transform_and_lower": 2, "to_executorch": 1},
        "peak_bytes": {"export": 2**20},
    }


RECORDS = [
    record("ethorch", "a", 100),
    record("arm", "a", 400),
    record("ethorch", "b", 900),
    record("arm", "b", 100),
    record("ethorch", "c", 1),
    {
        "impl": "arm",
        "model": "c",
        "target": "ethos-u55-128",
        "error": {"step": "prepare", "type": "ValueError", "message": "no"},
    },
]


def test_ratios_leave_out_what_one_side_cannot_compile() -> None:
    assert ratios(RECORDS, "ethos-u55-128", COLUMNS[0]) == {"a": 0.25, "b": 9.0}
    assert geometric_mean([0.25, 9.0]) == pytest.approx(1.5)
    assert math.isnan(geometric_mean([]))


def test_table_shows_ratio_mean_and_failure() -> None:
    text = table(RECORDS, "ethos-u55-128")
    assert "| 100 / 400 (0.25) |" in text
    assert "**1.50**" in text
    assert "- arm, c: ValueError in prepare: no" in text


def test_a_process_holds_one_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "executorch.backends.arm.ethosu.backend"
    monkeypatch.setitem(sys.modules, other, types.ModuleType(other))
    with pytest.raises(RuntimeError, match="process of its own"):
        implementation.load_api("ethorch")


def test_a_child_that_dies_is_a_record() -> None:
    outcome = implementation.run_in_child("bench.implementation", ["--impl", "nobody", "--model", "resnet8"])
    assert outcome["error"]["step"] == "process"
    assert "invalid choice" in outcome["error"]["message"]


def test_memory_configuration_by_family() -> None:
    assert implementation.memory_for("ethos-u85-2048") == ("Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB")


def seconds(impl: str, model: str, build: float, **steps: float) -> dict[str, Any]:
    own = {"build": build} if impl == "ethorch" else {"reexport": 0, "to_edge_transform_and_lower": build, "to_executorch": 0}
    return {
        "impl": impl,
        "model": model,
        "seconds": {"export": 1.0, "prepare": 0.0, "calibrate": 0.0, "convert": 0.0, "verify": 0.3, **own, **steps},
        "import_seconds": 3.0,
        "vela_seconds": 0.5,
        "quantized_nodes": 1000,
        "cpu_operators": 0,
    }


def test_seconds_are_medians_of_runs_and_of_their_sums() -> None:
    runs = [seconds("ethorch", "a", 1.0, export=9.0), seconds("ethorch", "a", 2.0), seconds("ethorch", "a", 30.0)]
    found = compile_seconds.medians(runs)
    assert (found["seconds"]["build"], found["to_pte"], found["whole"], found["runs"]) == (2.0, 2.0, 10.0, 3)
    assert compile_seconds.medians([*runs, {"error": {"message": "no"}}]) == {"error": {"message": "no"}}


def test_seconds_stand_beside_those_of_the_arm_backend_and_of_vela() -> None:
    records = [compile_seconds.medians([seconds(impl, "a", build)]) for impl, build in (("ethorch", 2.0), ("arm", 50.0))]
    text = compile_seconds.table([record | {"model": "a"} for record in records])
    assert "2.00 / 50.0 (25x) | 0.30 (10% of module to .pte) | 0.50 | 0.90 |" in text
    assert "3.00 / 51.0 (17x)" in text
    growth = compile_seconds.growth_table(records[:1])
    assert "| a | 1000 | 1.00 | 0.00 | 0.00 | 0.00 | 2.00 | 0.50 | 1500 | 1000 |" in growth
