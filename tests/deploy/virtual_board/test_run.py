"""Firmware on the virtual board: every family, polled and by interrupt, with the bytes that the desk gives."""

from __future__ import annotations

import itertools
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ethorch.cli.firmware_commands import _describe_run
from ethorch.deploy import virtual_board
from ethorch.deploy.firmware.project_run import _mark_lower_bounds
from ethorch.deploy.virtual_board import unicorn_engine
from ethorch.support.errors import EthorchError, SpecError
from ethorch.targets import boards
from ethorch.targets.boards.loading import FOLDER, parse
from tests.deploy.virtual_board import support as s

TARGETS = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256", "ethos-u85-1024")


def board_of(target: str) -> boards.Board:
    return boards.load("corstone-320" if "u85" in target else "corstone-300")


@pytest.mark.parametrize("flags", [0, s.BY_INTERRUPT, s.BY_INTERRUPT | s.SPIN_ON_FLAG], ids=["polled", "sleeping", "spinning"])
@pytest.mark.parametrize("target", TARGETS)
def test_the_bytes_are_those_of_the_desk(probe: Path, target: str, flags: int) -> None:
    model, which = s.model(target), board_of(target)
    run = s.run(probe, model, which, s.setup(model, which, flags, runs=2)).check()
    out = model.payload.outputs[0]
    assert run.read(s.ARENA + out.offset, out.nbytes) == model.wanted
    assert s.said(run, "SUM") == [s.checksum(model.wanted)] * 2
    assert s.said(run, "STATUS") == [0x22, 0x22]
    assert (run.ended, run.exit_code, run.npu, len(run.inferences)) == ("exit", 0, target, 2)
    assert s.said(run, "CYCLES") == [run.npu_cycles]


TARGET = "ethos-u55-128"


def probe_run(
    probe: Path, flags: int = 0, target: str = TARGET, options: dict[str, Any] | None = None, **changes: Any
) -> virtual_board.Run:
    model, which = s.model(target), board_of(target)
    return s.run(probe, model, which, s.setup(model, which, flags, **changes), **(options or {}))


def test_the_byte_4_on_the_uart_ends_a_run(probe: Path) -> None:
    run = probe_run(probe, s.END_BY_UART | s.BY_INTERRUPT)
    assert (run.ended, run.exit_code, run.ok) == ("eot", None, True)
    assert "\x04" not in run.text


def test_semihosting_prints_and_gives_arguments(probe: Path) -> None:
    run = probe_run(probe, s.SEMIHOSTING, options={"arguments": "one two"})
    assert run.text.startswith("one two\nCONFIG 00001807\n")
    assert run.ok


def test_a_board_without_a_uart_prints_by_semihosting(probe: Path) -> None:
    run = probe_run(probe, s.SEMIHOSTING, uart=0)
    assert s.said(run, "SUM") == [s.checksum(s.model(TARGET).wanted)]


def test_what_is_printed_is_handed_on_as_it_comes(probe: Path) -> None:
    pieces: list[str] = []
    run = probe_run(probe, options={"on_text": pieces.append})
    assert "".join(pieces) == run.text
    assert len(pieces) > 1


def test_an_exception_of_the_callers_comes_out(probe: Path) -> None:
    def interrupt(_text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe_run(probe, options={"on_text": interrupt})


def test_floating_point_registers_survive(probe: Path) -> None:
    kept = np.float32(1.0)
    for _ in range(20):
        kept = np.float32(kept * np.float32(1.5) + np.float32(0.25))
    assert s.said(probe_run(probe, s.FLOATS), "FLOAT") == [int(kept.view(np.uint32))]


def test_the_system_timer_counts_instructions(probe: Path) -> None:
    run = probe_run(probe, s.SYSTICK)
    assert s.said(run, "TICKS") == [3]
    assert run.instructions is not None
    assert run.instructions > 300_000


def test_outputs_are_not_there_before_the_end(probe: Path) -> None:
    model = s.model(TARGET)
    run = probe_run(probe, s.PEEK_EARLY)
    entry, out = model.payload.inputs[0], model.payload.outputs[0]
    arena = bytearray(model.payload.scratch_bytes)
    arena[entry.offset : entry.offset + entry.nbytes] = model.sent
    before = arena[out.offset : out.offset + 4]
    assert before != model.wanted[:4]
    assert s.said(run, "EARLY") == [int.from_bytes(before, "little")]
    assert s.said(run, "SUM") == [s.checksum(model.wanted)]


@pytest.mark.parametrize("clean", [s.CLEAN, s.CLEAN_BY_SET], ids=["by address", "by set and way"])
def test_a_cache_that_is_kept_in_order_is_no_fault(probe: Path, clean: int) -> None:
    run = probe_run(probe, s.CACHE_ON | clean | s.INVALIDATE, runs=2)
    assert run.ok, run.faults
    assert s.said(run, "SUM") == [s.checksum(s.model(TARGET).wanted)] * 2


def test_a_peripheral_that_the_file_lacks_is_a_note(probe: Path) -> None:
    run = probe_run(probe, s.ABSENT_PERIPHERAL)
    assert run.ok
    assert [note.partition(";")[0] for note in run.notes] == [
        "The board file has no peripheral at 0x40f00004",
        "The board file has no peripheral at 0x40f00000",
    ]


def test_a_uart_that_is_off_is_a_note(probe: Path) -> None:
    run = probe_run(probe, s.UART_OFF)
    assert run.ok
    assert [note for note in run.notes if "transmitter" in note] == list(run.notes)
    assert len(run.notes) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_an_event_counter_counts(probe: Path, target: str) -> None:
    run = probe_run(probe, s.EVENTS, target)
    macs = int(target.rpartition("-")[2])
    assert s.said(run, "EVENT") == [-(-run.inferences[0].macs // macs)]


def test_a_reset_that_the_firmware_asks_for_ends_the_run(probe: Path) -> None:
    assert probe_run(probe, s.RESET_SYSTEM).ended == "reset"


# Limits: nothing hangs.


def test_a_loop_without_end_meets_the_limit_of_instructions(probe: Path) -> None:
    run = probe_run(probe, s.SPIN_FOR_EVER, options={"max_instructions": 1_000_000})
    assert run.ended == "instructions"
    assert run.instructions is not None
    assert 1_000_000 <= run.instructions < 1_001_000


def test_a_loop_without_end_meets_the_limit_of_time(probe: Path) -> None:
    run = probe_run(probe, s.SPIN_FOR_EVER, options={"timeout": 0.2})
    assert (run.ended, run.ok) == ("timeout", False)
    with pytest.raises(EthorchError, match="ended with 'timeout'"):
        run.check()


def test_a_cpu_that_sleeps_for_good_is_seen(probe: Path) -> None:
    run = probe_run(probe, s.SLEEP_FOR_EVER)
    assert (run.ended, s.ids(run)) == ("asleep", ["cpu.asleep"])


# Faults that are brought about.


@pytest.mark.parametrize("how", ["no-interrupt", "never-ends"])
def test_an_npu_that_never_answers(probe: Path, how: str) -> None:
    asleep = probe_run(probe, s.BY_INTERRUPT, options={"inject": (how,)})
    assert (asleep.ended, s.ids(asleep)) == ("asleep", ["cpu.asleep"])
    if how == "never-ends":
        assert "is running and does not end" in asleep.faults[0].text
        polling = probe_run(probe, options={"inject": (how,), "max_instructions": 2_000_000})
        assert polling.ended == "instructions"


def test_corrupted_weights_give_other_bytes(probe: Path) -> None:
    model = s.model(TARGET)
    run = probe_run(probe, options={"more": {s.WEIGHTS: bytes(len(model.payload.weights))}})
    assert s.said(run, "SUM") != [s.checksum(model.wanted)]


# Figures.


def test_cycles_are_velas_where_they_are_given(probe: Path) -> None:
    model = s.model(TARGET)
    assert model.sources is not None
    wanted = sum(source.op_cycles for source in model.sources.all())
    run = probe_run(probe, options={"sources": {model.digest: model.sources}})
    assert s.said(run, "CYCLES") == [run.npu_cycles] == [wanted]
    assert run.inferences[0].estimated_by == "vela" and not run.is_lower_bound
    given = probe_run(probe, options={"cycles": {model.digest: 12345}})
    assert (given.npu_cycles, given.inferences[0].estimated_by) == (12345, "vela")
    own = probe_run(probe)
    assert own.inferences[0].estimated_by == "board" and own.is_lower_bound
    assert "NPU run with at least " in _describe_run(own) and "at least" not in _describe_run(given)
    assert "estimated by Vela" in _describe_run(given)
    assert _mark_lower_bounds("run 0: 35582 cycles of the NPU") == "run 0: at least 35,582 cycles of the NPU"
    assert own.npu_cycles is not None
    assert wanted / 4 < own.npu_cycles < wanted * 4


def test_bytes_are_counted_by_region(probe: Path) -> None:
    run = probe_run(probe, runs=2)
    out = s.model(TARGET).payload.outputs[0]
    found = run.bytes_by_region
    assert set(found) == {0, 1}
    assert found[0]["written"] == 0
    assert found[1]["written"] >= 2 * out.nbytes
    assert run.inferences[0].memories == {0: "ddr-secure", 1: "sram"}


def test_a_trace_has_both_sides_one_after_the_other(probe: Path, tmp_path: Path) -> None:
    run = probe_run(probe, runs=2)
    run.trace(tmp_path / "trace.json")
    rows = [row for row in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if row["ph"] == "X"]
    top = [row for row in rows if row["name"] == "CPU" or row["name"].startswith("inference")]
    assert [row["name"] for row in top] == ["CPU", "inference 0", "CPU", "inference 1", "CPU"]
    for before, after in itertools.pairwise(top):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"])
    assert len(rows) > len(top)  # operators


def test_a_run_as_plain_data(probe: Path) -> None:
    data = json.loads(json.dumps(probe_run(probe, s.UNKNOWN_REGISTER).to_json()))
    assert data["faults"][0]["id"] == "npu.unknown_register"
    assert (data["ok"], data["ended"], data["exit_code"]) == (False, "exit", 0)


# What is asked wrongly.


def test_wrong_arguments_are_named(probe: Path) -> None:
    with pytest.raises(SpecError, match="unknown backend 'renode'"):
        virtual_board.run(probe, backend="renode")
    with pytest.raises(SpecError, match="unknown fault to inject 'fire'"):
        virtual_board.run(probe, inject=["fire"])
    with pytest.raises(SpecError, match="expected timeout to be a positive number of seconds, got 0"):
        virtual_board.run(probe, timeout=0)
    with pytest.raises(SpecError, match=r"expected max_instructions to be a positive number.*got 0"):
        virtual_board.run(probe, max_instructions=0)
    with pytest.raises(SpecError, match="have the same address on board corstone-300"):
        virtual_board.run(probe, npu=["ethos-u55-128", "ethos-u65-256"])


def test_memory_that_is_not_there_cannot_be_read(probe: Path) -> None:
    with pytest.raises(EthorchError, match="has no memory at 0x90000000"):
        probe_run(probe).read(0x90000000, 4)


def test_a_board_with_two_npus(probe: Path) -> None:
    """As on parts that have a U55 beside a U85: each is named, or is the first of its place."""
    second = """
[[npu]]
family = "u85"
macs = [128, 256]
base = 0x48106000
aliases = [0x58106000]
interrupt = 57
clock_hz = 500_000_000
source = "assumed"
"""
    which = parse(((FOLDER / "corstone-300.toml").read_text() + second).encode())
    model = s.model("ethos-u85-256")
    run = s.run(probe, model, which, s.setup(model, which)).check()
    assert run.npu == "ethos-u85-256, ethos-u55-128"
    assert s.said(run, "SUM") == [s.checksum(model.wanted)]
    other = s.run(probe, model, which, s.setup(model, which), npu="ethos-u55-64")
    assert other.npu == "ethos-u55-64, ethos-u85-128"
    assert s.ids(other) == ["npu.configuration"]


def test_ctrl_c_ends_a_run(probe: Path) -> None:
    """A signal that comes while the emulator is at work is handled at the next look at the clock."""
    turns: list[int] = []

    def clock() -> float:
        turns.append(1)
        if len(turns) == 3:
            signal.raise_signal(signal.SIGINT)
        return float(len(turns))  # not this computer's, which may be busy

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("ethorch.deploy.virtual_board.engine.time.perf_counter", clock)
        patch.setattr("ethorch.deploy.virtual_board.unicorn_engine.SLICE", 10_000)
        probe_run(probe, s.SPIN_FOR_EVER)
    assert len(turns) == 3


@pytest.mark.parametrize("backend", ["unicorn", pytest.param("qemu", marks=pytest.mark.tools("qemu-arm"))])
def test_tasks_on_stacks_of_their_own(tmp_path: Path, backend: str) -> None:
    """SVC, PendSV, process stacks, frames with and without floating-point registers: what an RTOS needs."""
    run = virtual_board.run(s.compiled(tmp_path, "tasks.c", "tasks.elf"), backend=backend)
    assert run.check().text == "PASS\n"


@pytest.mark.parametrize("masked_slice", [unicorn_engine.MASKED_SLICE, unicorn_engine.SLICE])
def test_an_exception_waits_for_few_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masked_slice: int) -> None:
    """After a write to the NVIC, after CPSIE, and where the emulator stops in an IT block."""
    monkeypatch.setattr(unicorn_engine, "MASKED_SLICE", masked_slice)
    run = virtual_board.run(s.compiled(tmp_path, "latency.c", "latency.elf")).check()
    limits = {"pendsv": 50, "line": 50, "unmask": masked_slice + 50, "it": 3050}
    waits = [line.split() for line in run.text.splitlines() if line.strip()]
    assert [name for name, _ in waits] == ["pendsv", "line", "unmask", *["it"] * 5]
    assert all(int(instructions) <= limits[name] for name, instructions in waits), run.text
