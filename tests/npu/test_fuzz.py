"""What comes from outside, damaged or made up: a result or an error of ours, no more. ``fuzzing`` makes the inputs.

ETHORCH_FUZZ_EXAMPLES sets how many inputs the long run takes, a million unless told, ETHORCH_FUZZ_FIRST where it starts.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ethorch.npu import Machine, Program, Sources
from ethorch.npu.weights.decode import decode_fast, decode_standard
from ethorch.support.errors import FormatError, MachineFault
from tests.npu import fuzzing

ROOT = Path(__file__).parent.parent.parent
LONG = int(os.environ.get("ETHORCH_FUZZ_EXAMPLES", "1000000"))
FIRST = int(os.environ.get("ETHORCH_FUZZ_FIRST", "1000000"))
quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def fuzz(first: int, count: int, folder: Path) -> str:
    """What ``fuzzing`` prints about these inputs, in a process of its own, which may die of one."""
    progress = folder / "progress"
    command = [sys.executable, "-m", "tests.npu.fuzzing", "--first", str(first), "--count", str(count), "--progress", str(progress)]
    child = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert child.returncode == 0, f"{child.returncode} at input {progress.read_text().split()[:1]}: {child.stdout}{child.stderr}"
    return child.stdout


def test_damaged_inputs(tmp_path):
    """Every kind of input both gets through and is refused, so neither is all there is."""
    counts = dict(re.findall(r"^(\w+, \w+): (\d+)$", fuzz(0, 1500, tmp_path), re.M))
    for kind in ("damaged_program", "assembled_stream", "spliced_stream", "damaged_payload", "damaged_file"):
        assert int(counts[f"{kind}, ran"]) > 5 and int(counts[f"{kind}, refused"]) > 5, counts


@pytest.mark.parametrize("number", [449447])
def test_inputs_that_were_found(number):
    assert fuzzing.one(number).endswith("refused")


@pytest.mark.long
def test_a_million_damaged_inputs(tmp_path):
    fuzz(FIRST, LONG, tmp_path)


@pytest.mark.parametrize(
    ("misdeed", "message"),
    [
        ("raise KeyError('x')", "KeyError"),
        ("while True: pass", "Slow"),
        ("global kept; kept = np.ones(1 << 26)", "memory rose"),
    ],
)
def test_the_fuzzer_notices(misdeed, message, monkeypatch, capsys):
    def misbehave(rnd):
        exec(misdeed, {"np": np})

    monkeypatch.setattr(fuzzing, "KINDS", [(100, misbehave)])
    monkeypatch.setattr(fuzzing, "SECONDS", 0.2)
    monkeypatch.setattr(fuzzing, "MOST_BYTES", 128 << 20)
    monkeypatch.setattr(fuzzing, "WARM_UP", 0)
    assert fuzzing.main(["--count", "1"]) == 1
    assert message in capsys.readouterr().out


def run_bytes(data: bytes) -> None:
    for decode in (decode_standard, decode_fast):
        with contextlib.suppress(MachineFault):
            assert decode(data).dtype in (np.int8, np.int16)
    for head in (b"", b"COP1", b"COP2", struct.pack("<4sIIII3I", b"COP1", 0x00100001, 0x1807, 0x10066001, 5, 5, 5, 2 | 64 << 16)):
        with contextlib.suppress(MachineFault):
            Machine(Program(head + data, data), 4096, budget=1 << 24).run()


@quick
@given(st.binary(max_size=400))
@example(b"")
def test_bytes(data):
    run_bytes(data)


@quick
@given(st.text(max_size=80))
def test_tables_of_sources(text):
    with contextlib.suppress(FormatError):
        Sources.from_json(text)
