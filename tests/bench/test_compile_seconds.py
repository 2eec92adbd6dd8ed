"""``bench.compile_seconds`` measures a network in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_a_network_is_measured_step_by_step() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "bench.compile_seconds", "--here", "--models", "ds_cnn", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    record = json.loads(done.stdout)
    record = record[0] if isinstance(record, list) else record
    assert record["delegates"] == 1 and record["vela_runs"] == 1 and record["pte_bytes"] > 10_000
    assert {"export", "prepare", "calibrate", "convert", "build", "verify"} <= record["seconds"].keys()
    assert min(record["seconds"].values()) >= 0 and record["seconds"]["verify"] > 0
