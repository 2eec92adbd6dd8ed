"""``bench.compile_seconds`` measures a network step by step."""

from __future__ import annotations

import json

import pytest
import torch
from ethosu import regor

from bench import compile_seconds


def test_a_network_is_measured_step_by_step(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(regor, "compile", regor.compile)  # restores what the benchmark wraps
    threads = torch.get_num_threads()
    try:
        assert compile_seconds.main(["--here", "--models", "ds_cnn"]) == 0
    finally:
        torch.set_num_threads(threads)
    record = json.loads(capfd.readouterr().out)
    assert record["delegates"] == 1 and record["vela_runs"] == 1 and record["pte_bytes"] > 10_000
    assert {"export", "prepare", "calibrate", "convert", "build", "verify"} <= record["seconds"].keys()
    assert min(record["seconds"].values()) >= 0 and record["seconds"]["verify"] > 0
