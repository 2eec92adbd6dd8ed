"""Firmware on the virtual board: every family, polled and by interrupt, with the bytes that the desk gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from ethorch import board
from tests.board import support as s

TARGETS = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256", "ethos-u85-1024")


def board_of(target: str) -> board.Board:
    return board.load("corstone-320" if "u85" in target else "corstone-300")


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
