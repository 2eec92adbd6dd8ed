"""The same firmware in QEMU: the same bytes as on unicorn and on the desk. Skipped, with the reason, without qemu-system-arm."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ethorch.deploy import virtual_board
from ethorch.deploy.virtual_board.faults import BUS_ERROR, IRQ_RAISED, PARSE_ERROR
from ethorch.deploy.virtual_board.qemu_process import COMMAND
from ethorch.support.errors import EmulatorError
from ethorch.targets import boards
from tests.deploy.virtual_board import support as s

needs_qemu = pytest.mark.tools("qemu-arm")
TARGET = "ethos-u55-128"


def probe_run(
    probe: Path, flags: int = 0, target: str = TARGET, options: dict[str, Any] | None = None, **changes: Any
) -> virtual_board.Run:
    model, which = s.model(target), boards.load("corstone-300")
    return s.run(probe, model, which, s.setup(model, which, flags, **changes), backend="qemu", **(options or {}))


@needs_qemu
@pytest.mark.parametrize("flags", [0, s.BY_INTERRUPT, s.BY_INTERRUPT | s.SPIN_ON_FLAG], ids=["polled", "sleeping", "spinning"])
@pytest.mark.parametrize("target", [TARGET, "ethos-u65-256"])
def test_the_bytes_are_those_of_the_desk(probe: Path, target: str, flags: int) -> None:
    model = s.model(target)
    run = probe_run(probe, flags, target, runs=2).check()
    assert s.said(run, "SUM") == [s.checksum(model.wanted)] * 2
    assert s.said(run, "CYCLES") == [run.npu_cycles]
    assert (run.ended, run.exit_code, run.instructions, len(run.inferences)) == ("exit", 0, None, 2)


@needs_qemu
def test_the_byte_4_on_the_uart_ends_a_run(probe: Path) -> None:
    run = probe_run(probe, s.END_BY_UART)
    assert (run.ended, run.exit_code, run.ok) == ("eot", None, True)


@needs_qemu
def test_semihosting_prints_and_gives_arguments(probe: Path) -> None:
    run = probe_run(probe, s.SEMIHOSTING, options={"arguments": "one, two"})
    assert run.text.startswith("one, two\nCONFIG 00001807\n")


@needs_qemu
def test_an_arena_in_dram_is_seen_in_place(probe: Path) -> None:
    """QEMU and this process map one file."""
    model = s.model(TARGET)
    arena, entry, out = 0x70C00000, model.payload.inputs[0], model.payload.outputs[0]
    base = (s.WEIGHTS, arena, s.STAGING, 0, 0, 0, 0, 0)
    run = probe_run(probe, base=base, input_at=arena + entry.offset, output_at=arena + out.offset)
    assert s.said(run, "SUM") == [s.checksum(model.wanted)]


@needs_qemu
@pytest.mark.parametrize(
    "changes, id, status",
    [
        ({"base": (0x10004000, s.ARENA, s.STAGING, 0, 0, 0, 0, 0)}, "npu.unreachable_memory", BUS_ERROR),
        ({"stream_bytes": 6}, "npu.stream_size", PARSE_ERROR),
        ({"base": (s.WEIGHTS + 4, s.ARENA, s.STAGING, 0, 0, 0, 0, 0)}, "npu.base_alignment", PARSE_ERROR),
    ],
)
def test_checks_trip_here_too(probe: Path, changes: dict[str, Any], id: str, status: int) -> None:
    run = probe_run(probe, s.BY_INTERRUPT, **changes)
    assert s.ids(run) == [id]
    assert "probe.c:" in run.faults[0].place
    assert s.said(run, "STATUS") == [IRQ_RAISED | status]
    assert run.exit_code == 1


@needs_qemu
def test_after_a_fault_memory_has_what_the_npu_wrote_before(probe: Path) -> None:
    """The last quarter of the weights is missing, so the first convolution writes its result and the second one fails."""
    model, which = s.model(TARGET), boards.load("corstone-300")
    kept = len(model.payload.weights) * 3 // 4
    weights = model.payload.weights[:kept].ljust(len(model.payload.weights), b"\0")
    parameters = s.setup(model, which, s.BY_INTERRUPT, output_at=s.ARENA, output_bytes=model.payload.scratch_bytes)
    here, there = (
        s.run(probe, model, which, parameters, backend=backend, more={s.WEIGHTS: weights}) for backend in ("qemu", "unicorn")
    )
    assert s.ids(here) == s.ids(there) == ["npu.command"]
    assert s.said(here, "STATUS") == [IRQ_RAISED | PARSE_ERROR]
    assert s.said(here, "SUM") == s.said(there, "SUM")


@needs_qemu
def test_a_loop_without_end_meets_the_limit_of_time(probe: Path) -> None:
    before = running()
    assert probe_run(probe, s.SPIN_FOR_EVER, options={"timeout": 1}).ended == "timeout"
    assert running() == before, "QEMU is gone"


@needs_qemu
def test_an_npu_that_never_ends(probe: Path) -> None:
    run = probe_run(probe, s.BY_INTERRUPT, options={"timeout": 1, "inject": ["never-ends"]})
    assert (run.ended, run.ok) == ("timeout", False)


def running() -> set[str]:
    """Process numbers of the QEMUs that this process has started."""
    words = ["pgrep", "-P", str(os.getpid()), "-x", COMMAND]
    return set(subprocess.run(words, capture_output=True, text=True, check=False).stdout.split())


def test_qemu_that_is_not_there(probe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(EmulatorError, match=r"qemu-system-arm is not on PATH.*apt-get install"):
        virtual_board.run(probe, backend="qemu")


def test_boards_that_qemu_cannot_be(probe: Path) -> None:
    with pytest.raises(EmulatorError, match=r"board corstone-320: expected qemu to be one of mps3-an547, got none"):
        virtual_board.run(probe, "corstone-320", backend="qemu")
    with pytest.raises(EmulatorError, match="QEMU does not count instructions"):
        virtual_board.run(probe, backend="qemu", max_instructions=5)
