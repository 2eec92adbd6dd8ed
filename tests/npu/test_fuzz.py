"""Hypothesis on what comes from outside: payloads, weight streams, tables of sources. A result or an error of ours, no more.

ETHORCH_FUZZ_EXAMPLES sets how many inputs each test of the long run takes.
"""

from __future__ import annotations

import contextlib
import os
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ethorch.errors import FormatError, MachineFault
from ethorch.npu import Machine, Program, Sources, disassembly
from ethorch.npu.registers import NPUS, table
from ethorch.npu.weights import decode_fast, decode_standard
from tests.npu.test_machine import payload

LONG = int(os.environ.get("ETHORCH_FUZZ_EXAMPLES", "20000"))
quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
long = settings(max_examples=LONG, deadline=None, suppress_health_check=list(HealthCheck), database=None)
targets = st.sampled_from([npu.name.removeprefix("ethos-") for npu in NPUS.values()])


@st.composite
def streams(draw) -> tuple[str, list[list[int]]]:
    """Known commands with values that fit their fields: what gets past the decoder."""
    target = draw(targets)
    rows = sorted(table(target[:3]).values(), key=lambda entry: (entry[0].cmd1, entry[0].code))
    commands = []
    for row, _ in draw(st.lists(st.sampled_from(rows), min_size=1, max_size=60)):
        word = row.code | row.cmd1 << 14
        for _, f in row.named_fields():
            if f.values is not None:
                raw = draw(st.sampled_from(sorted(f.values)))
            else:
                width = bin(f.mask).count("1")
                small = st.integers(0, min(40, (1 << width) - 1))
                raw = draw(st.one_of(small, small, small, st.integers(0, (1 << width) - 1)))
            bits = [position for position in range(64) if f.mask >> position & 1]
            low = [b for b in bits if b >= 32] + [b for b in bits if b < 32]  # an address continues in the first word
            word |= sum((raw >> i & 1) << position for i, position in enumerate(low))
        commands.append([word & 0xFFFFFFFF, word >> 32] if row.cmd1 else [word & 0xFFFFFFFF])
    return target, [*commands, [0xFFFF0000]]


def run_stream(case: tuple[str, list[list[int]]], constants: bytes) -> None:
    target, commands = case
    try:
        program = Program(payload(*commands, target=target), constants)
        disassembly.text(program)
        Machine(program, 4096, 1024, budget=1 << 24, checks=("overlap",)).run()
    except MachineFault:
        pass


def run_bytes(data: bytes) -> None:
    for decode in (decode_standard, decode_fast):
        with contextlib.suppress(MachineFault):
            assert decode(data).dtype == np.int16
    for head in (b"", b"COP1", b"COP2", struct.pack("<4sIIII3I", b"COP1", 0x00100001, 0x1807, 0x10066001, 5, 5, 5, 2 | 64 << 16)):
        with contextlib.suppress(MachineFault):
            Machine(Program(head + data, data), 4096, budget=1 << 24).run()


@quick
@given(streams(), st.binary(max_size=300))
def test_streams(case, constants):
    run_stream(case, constants)


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


@pytest.mark.long
@long
@given(streams(), st.binary(max_size=300))
def test_many_streams(case, constants):
    run_stream(case, constants)


@pytest.mark.long
@long
@given(st.binary(max_size=2000))
def test_many_bytes(data):
    run_bytes(data)
