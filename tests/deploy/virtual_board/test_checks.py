"""Every check of the virtual board: what trips it, what the firmware sees, and what the diagnosis names."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ethorch.deploy.virtual_board.faults import BUS_ERROR, END_REACHED, IRQ_RAISED, PARSE_ERROR, RULES, RUNNING
from ethorch.targets import boards
from ethorch.targets.boards.loading import FOLDER, parse
from tests.deploy.virtual_board import support as s

TARGET = "ethos-u55-128"
DONE, BUS, PARSE = IRQ_RAISED | END_REACHED, IRQ_RAISED | BUS_ERROR, IRQ_RAISED | PARSE_ERROR
ITCM, FLASH = 0x10004000, 0x08000000


@dataclass(frozen=True)
class Case:
    """A fault.

    Attributes:
        said: words of its diagnosis.
        status: STATUS that the firmware reads; None where it does not come that far.
        flags, changes: what the probe does differently.
        ended: how the run ends.
        more: further bytes in memory.
        options: of ``virtual_board.run``.
        flash: ports of the NPU that lead to a flash, if the board has one.
        cut: bytes that QSIZE is too short by.
    """

    said: tuple[str, ...]
    status: int | None = DONE
    flags: int = 0
    changes: dict[str, Any] = field(default_factory=dict)
    ended: str = "exit"
    more: dict[int, bytes] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    flash: str = ""
    cut: int = 0


def bases(**at: int) -> dict[str, Any]:
    """BASEP with some of them elsewhere."""
    found = [s.WEIGHTS, s.ARENA, s.STAGING, 0, 0, 0, 0, 0]
    for name, address in at.items():
        found[int(name[1:])] = address
    return {"base": tuple(found)}


CACHED = s.CACHE_ON | s.CLEAN | s.INVALIDATE
CASES = {
    "npu.not_reset": Case(("not written RESET", "Reset_Handler"), flags=s.NO_RESET),
    "npu.unknown_register": Case(("offset 0x1ff8",), flags=s.UNKNOWN_REGISTER),
    "npu.register_access": Case(("reads 1 bytes at offset 0x10",), flags=s.BYTE_ACCESS),
    "npu.read_only_register": Case(("0x1 to ID",), flags=s.WRITE_ID),
    "npu.write_while_running": Case(("0x0 to REGIONCFG while the NPU is running",), flags=s.WRITE_WHILE_RUNNING),
    "npu.run_while_running": Case(("CMD.run while the NPU is running",), flags=s.RUN_TWICE),
    "npu.irq_not_acknowledged": Case(
        ("previous run is raised",), IRQ_RAISED | RUNNING, flags=s.NO_ACKNOWLEDGE, changes={"runs": 2}
    ),
    "npu.stream_alignment": Case(("multiple of 16",), PARSE, changes={"stream": s.STREAM + 36}),
    "npu.base_alignment": Case(("BASEP0 is 0x70100004",), PARSE, changes=bases(b0=s.WEIGHTS + 4)),
    "npu.stream_size": Case(("QSIZE is 6 bytes",), PARSE, changes={"stream_bytes": 6}),
    "npu.no_memory": Case(("no memory for region 0", "0x90000000", "The NPU can access bram"), BUS, changes=bases(b0=0x90000000)),
    "npu.unreachable_memory": Case(("is in itcm", "cannot access", "The NPU can access bram"), BUS, changes=bases(b0=ITCM)),
    "npu.port": Case(
        ("port sram, but this memory requires ext",), BUS, changes={**bases(b0=FLASH), "region_config": 0x10}, flash="ext"
    ),
    "npu.read_only_port": Case(("AXI1 of a U55", "region 1"), BUS, changes={"region_config": 0x1F}),
    "npu.read_only_memory": Case(("a read-only memory", "flash"), BUS, changes=bases(b1=FLASH), flash="ext,sram"),
    "npu.extent": Case(("bytes beyond the end of sram", "command"), BUS, changes=bases(b1=0x311FFF00)),
    "npu.configuration": Case(
        ("compiled for ethos-u55-128 (0x00001807)", "this NPU is ethos-u55-256"), PARSE, options={"npu": "ethos-u55-256"}
    ),
    "npu.command": Case(("cannot be executed", "opcode"), PARSE, more={s.STREAM + 32: struct.pack("<I", 0x3FF)}),
    "npu.stream_end": Case(("NPU_OP_STOP",), IRQ_RAISED, cut=4),
    "cache.not_cleaned": Case(("but CPU writes to ", "cache line", "0x31"), flags=CACHED & ~s.CLEAN),
    "cache.not_invalidated": Case(("which the NPU wrote", "adler"), flags=CACHED & ~s.INVALIDATE),
    "cpu.memory": Case(("reads 4 bytes at 0x90000000",), None, flags=s.WILD_READ, ended="fault"),
    "cpu.read_only": Case(("writes 4 bytes at 0x08000400", "flash"), None, flags=s.WRITE_CODE, ended="fault", flash="ext"),
    "cpu.instruction": Case(("instruction",), None, flags=s.UNDEFINED, ended="fault"),
    "cpu.exception": Case(("Arm instead of Thumb state",), None, flags=s.ARM_STATE, ended="fault"),
    "cpu.breakpoint": Case(("breakpoint 0x1",), None, flags=s.BREAKPOINT, ended="fault"),
    "cpu.asleep": Case(("interrupt 56, which is not enabled",), None, flags=s.BY_INTERRUPT | s.NO_ENABLE, ended="asleep"),
    "cpu.vector": Case(("exception 72", "0x00000000"), None, flags=s.BY_INTERRUPT | s.NO_HANDLER, ended="fault"),
    "cpu.interrupt_storm": Case(("interrupt 56",), None, flags=s.BY_INTERRUPT | s.HANDLER_IDLES, ended="fault"),
}


def with_flash(ports: str) -> boards.Board:
    """Corstone-300 with a flash that these ports reach."""
    flash = f"""
[[memory]]
name = "flash"
kind = "flash"
base = {FLASH:#x}
size_bytes = 0x100000
npu_ports = {ports.split(",")}
source = "assumed"
"""
    return parse(((FOLDER / "corstone-300.toml").read_text() + flash).encode())


def test_every_check_has_a_case() -> None:
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize("id", CASES)
def test_a_check_trips(probe: Path, id: str) -> None:
    case, model = CASES[id], s.model(TARGET)
    which = with_flash(case.flash) if case.flash else boards.load("corstone-300")
    changes = {"stream_bytes": len(model.stream) - case.cut, **case.changes}
    run = s.run(probe, model, which, s.setup(model, which, case.flags, **changes), more=case.more, **case.options)
    assert s.ids(run) == [id], run.text
    (fault,) = run.faults
    for words in case.said:
        assert words in str(fault)
    assert "probe.c:" in fault.place
    assert run.ended == case.ended
    assert not run.ok
    if case.status is not None:
        assert s.said(run, "STATUS")[-1] == case.status
        assert run.exit_code == (case.status != DONE)
