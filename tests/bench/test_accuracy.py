"""The accuracy benchmark's table and accounting."""

from __future__ import annotations

import torch

from bench.accuracy import build, float_operators, measure, table


def record(impl: str, db: list[float], seconds: float, nodes: int) -> dict:
    steps = {"prepare": seconds, "calibrate": 0.0, "convert": seconds}
    return {"impl": impl, "model": "net", "sqnr_db": db, "seconds": steps, "nodes": nodes}


def test_table_compares_means() -> None:
    text = table([record("ethorch", [10.0, 20.0], 1.0, 50), record("arm", [10.0, 18.0], 4.0, 100)])
    assert text.splitlines()[-1] == "| net | 15.00 | 14.00 | +1.00 ± 1.00 | 2.0 | 8.0 | 0.25 | 50 | 100 |"


def test_a_failure_is_named_by_its_step() -> None:
    failed = {"impl": "arm", "model": "net", "error": {"step": "prepare"}}
    assert "fails: prepare" in table([record("ethorch", [10.0], 1.0, 50), failed])


def test_seeds_are_other_networks_with_other_inputs() -> None:
    first, second = build("autoencoder", 0), build("autoencoder", 1)
    weights = [next(case.build().parameters()) for case in (first, second)]
    assert not torch.equal(*weights) and not torch.equal(first.example_inputs()[0], second.example_inputs()[0])


def test_measures_a_small_network_whole() -> None:
    found = measure("ethorch", "autoencoder", seeds=1, calibration=4, fresh=2)
    assert "error" not in found and 5 < found["sqnr_db"][0] < 60 and found["nodes"] > 30
    assert all(seconds > 0 for seconds in found["seconds"].values())
    assert all("relu" in name for name in found["float_operators"]), "a ReLU behind a linear layer is observed with it"


def test_what_is_left_in_float_is_found() -> None:
    graph = torch.export.export(torch.nn.Sequential(torch.nn.Tanh()), (torch.randn(3),)).module(check_guards=False)
    assert float_operators(graph) == ["aten.tanh.default"]
