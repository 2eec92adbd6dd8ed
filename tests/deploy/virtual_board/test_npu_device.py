"""The NPU's registers by themselves, without a CPU: values, masks, resets, counters, of all families."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ethorch.deploy.virtual_board import npu_registers as regs
from ethorch.deploy.virtual_board.faults import BUS_ERROR, END_REACHED, IN_RESET, IRQ_RAISED, PMU_IRQ, RUNNING
from ethorch.deploy.virtual_board.guest import Guest
from ethorch.deploy.virtual_board.npu_device import NpuDevice
from ethorch.npu import Program
from ethorch.targets import boards
from tests.deploy.virtual_board import support as s

TARGETS = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")
U85 = "ethos-u85-256"


class Session:
    """Writes down what a device says."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, str]] = []
        self.begun: list[NpuDevice] = []
        self.instructions = 0

    def report(self, id: str, text: str) -> None:
        self.reports.append((id, text))

    def on_npu_start(self, device: NpuDevice) -> None:
        self.begun.append(device)

    @property
    def ids(self) -> list[str]:
        return [id for id, _ in self.reports]


def device_of(target: str, **options: Any) -> tuple[NpuDevice, Session]:
    """A device with the small model in memory and its registers as a driver would set them."""
    which = boards.load("corstone-320" if "u85" in target else "corstone-300")
    session, guest, (slot, npu) = Session(), Guest(which), which.npu(target)
    device = NpuDevice(session, npu, slot, guest, **options)
    model = s.model(target)
    for address, content in ((s.STREAM, model.payload.commands), (s.WEIGHTS, model.payload.weights)):
        place = guest.bytes_at(address, len(content))
        assert place is not None
        place[:] = np.frombuffer(content, np.uint8)
    told = s.setup(model, which)
    device.write(regs.RESET, 0)
    header = len(model.payload.commands) - len(model.stream)
    for offset, value in ((regs.QBASE, s.STREAM + header), (regs.QSIZE, len(model.stream)), (regs.QCONFIG, told.queue_config)):
        device.write(offset, value)
    for region, base in enumerate(told.base):
        device.write(regs.BASEP + 8 * region, base)
    device.write(regs.REGIONCFG, told.region_config)
    if device.npu.family == "u85":
        for n, value in enumerate(told.attributes):
            device.write(regs.ATTRIBUTES + 4 * n, value)
    return device, session


@pytest.mark.parametrize(
    "target, id, config, part",
    [
        ("ethos-u55-128", 0x10104201, 0x00001807, 0x80),
        ("ethos-u65-256", 0x10066001, 0x10003008, 0x81),
        ("ethos-u85-256", 0x20007001, 0x20000118, 0x82),
    ],
)
def test_who_it_is(target: str, id: int, config: int, part: int) -> None:
    device, _ = device_of(target)
    assert [device.read(offset) for offset in (0, regs.CONFIG, 0xFE0, 0xFF0, 0xFF4, 0xFF8, 0xFFC)] == [
        id,
        config,
        part,
        0x0D,
        0xF0,
        5,
        0xB1,
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_a_reset(target: str) -> None:
    device, session = device_of(target)
    device.write(regs.RESET, 3)
    assert device.read(regs.PROT) == 3
    assert not device.read(regs.STATUS) & IN_RESET
    assert device.read(regs.QBASE) == 0
    assert device.read(regs.CMD) == regs.CMD_AFTER_RESET
    assert not session.reports


@pytest.mark.parametrize("target, high", [("ethos-u55-128", 0), ("ethos-u65-256", 0xFF), (U85, 0xFF)])
def test_addresses_have_32_or_40_bits(target: str, high: int) -> None:
    device, _ = device_of(target)
    device.write(regs.QBASE_HI, 0xFFFFFFFF)
    assert device.read(regs.QBASE_HI) == high


def test_an_address_beyond_32_bits_is_no_memory() -> None:
    device, session = device_of(U85)
    device.write(regs.BASEP + 12, 1)
    device.write(regs.CMD, regs.CMD_RUN)
    device.finish()
    assert session.ids == ["npu.no_memory"]
    assert device.read(regs.STATUS) & 0xFFFF == IRQ_RAISED | BUS_ERROR


@pytest.mark.parametrize("target", TARGETS)
def test_a_run_from_beginning_to_end(target: str) -> None:
    device, session = device_of(target)
    device.write(regs.CMD, regs.CMD_RUN | regs.CMD_CLOCK | regs.CMD_POWER)
    assert (device.read(regs.STATUS) & 0xFFFF, device.irq, session.begun) == (RUNNING, False, [device])
    device.finish()
    assert (device.read(regs.STATUS), device.irq) == (IRQ_RAISED | END_REACHED | 0xFFFF0000, True)
    assert device.read(regs.QREAD) == device.read(regs.QSIZE)
    device.write(regs.CMD, regs.CMD_CLEAR_IRQ | 0xFFFF0000)
    assert (device.read(regs.STATUS), device.irq) == (END_REACHED, False)
    assert not session.reports


def test_a_run_that_is_stopped_does_not_happen() -> None:
    device, _ = device_of(TARGETS[0])
    device.write(regs.CMD, regs.CMD_RUN)
    device.write(regs.CMD, regs.CMD_STOP)
    device.finish()
    assert (device.read(regs.STATUS), device.inferences) == (0, [])


def test_a_run_is_lost_by_a_reset() -> None:
    device, _ = device_of(TARGETS[0])
    device.write(regs.CMD, regs.CMD_RUN)
    device.write(regs.RESET, 0)
    device.finish()
    assert (device.read(regs.STATUS), device.inferences) == (0, [])


@pytest.mark.parametrize("target", TARGETS)
def test_what_another_family_has_there_is_said(target: str) -> None:
    device, session = device_of(target)
    own, other = (regs.PMU_OFFSET[device.npu.family] + regs.PMCR, 0x1180 if device.npu.family != "u85" else 0x180)
    assert device.read(own) >> 11 == regs.EVENT_COUNTERS[device.npu.family]
    device.read(other)
    ((id, text),) = session.reports
    assert id == "npu.unknown_register"
    assert "has PMCR at this offset" in text


def test_the_debug_window_is_no_fault() -> None:
    device, session = device_of(TARGETS[0])
    device.write(0x400, 5)
    assert (device.read(0x400), device.read(0x100), session.reports) == (0, 0, [])


@pytest.mark.parametrize("target", TARGETS)
def test_the_cycle_counter_overflows_with_an_interrupt(target: str) -> None:
    device, _ = device_of(target)
    pmu, cycles = regs.PMU_OFFSET[device.npu.family], 1 << 31
    device.write(pmu + regs.PMCR, 0b111)
    device.write(pmu + regs.PMCNTENSET, cycles)
    device.write(pmu + regs.PMINTSET, cycles)
    device.write(pmu + regs.PMCCNTR, 0xFFFFFFFF)
    device.write(pmu + regs.PMCCNTR_HI, 0xFFFF)
    device.write(regs.CMD, regs.CMD_RUN)
    device.finish()
    took = device.inferences[0].cycles
    assert took > 0
    assert (device.read(pmu + regs.PMCCNTR), device.read(pmu + regs.PMCCNTR_HI)) == (took - 1, 0)
    assert device.read(pmu + regs.PMOVSSET) == cycles
    device.write(regs.CMD, regs.CMD_CLEAR_IRQ)
    assert device.read(regs.STATUS) & PMU_IRQ
    assert device.irq
    device.write(pmu + regs.PMOVSCLR, cycles)
    assert not device.irq


def test_a_counter_that_is_off_stands_still() -> None:
    device, _ = device_of(TARGETS[0])
    device.write(regs.PMCNTENSET, 1 << 31)
    device.write(regs.CMD, regs.CMD_RUN)
    device.finish()
    assert device.read(regs.PMCCNTR) == 0
    device.write(regs.PMCR, 1)
    device.write(regs.PMCNTENCLR, 1 << 31)
    device.write(regs.CMD, regs.CMD_CLEAR_IRQ)
    device.write(regs.CMD, regs.CMD_RUN)
    device.finish()
    assert device.read(regs.PMCCNTR) == 0


@pytest.mark.parametrize(
    "target, attributes, port",
    [
        ("ethos-u55-128", None, "sram sram ext ext"),
        ("ethos-u65-256", None, "sram sram ext ext"),
        (U85, (4, 0, 4, 0), "ext sram ext sram"),
    ],
)
def test_attributes_lead_to_ports(target: str, attributes: tuple[int, ...] | None, port: str) -> None:
    device, _ = device_of(target)
    for n, value in enumerate(attributes or ()):
        device.write(regs.ATTRIBUTES + 4 * n, value)
    assert " ".join(device.port(n) for n in range(4)) == port


@pytest.mark.parametrize("target", TARGETS)
def test_weights_that_change_are_decoded_anew(target: str) -> None:
    """As when a model is replaced in flash between two runs."""
    device, session = device_of(target)
    model = s.model(target)
    out = model.payload.outputs[0]
    results = []
    for content in (model.payload.weights, bytes(len(model.payload.weights)), model.payload.weights):
        place = device.guest.bytes_at(s.WEIGHTS, len(content))
        arena = device.guest.bytes_at(s.ARENA, model.payload.scratch_bytes)
        assert place is not None and arena is not None
        place[:] = np.frombuffer(content, np.uint8)
        arena[:] = 0
        device.write(regs.CMD, regs.CMD_RUN)
        device.finish()
        device.write(regs.CMD, regs.CMD_CLEAR_IRQ)
        results.append(arena[out.offset : out.offset + out.nbytes].tobytes())
    assert results[0] == results[2] != results[1]
    assert set(session.ids) <= {"npu.command"}  # zeros may be no weight stream


def test_a_stream_for_a_newer_architecture_is_refused() -> None:
    device, session = device_of("ethos-u65-256")
    place = device.guest.bytes_at(device.read(regs.QBASE) - 32 + 12, 4)
    assert place is not None
    place[:] = np.frombuffer((0x10206001).to_bytes(4, "little"), np.uint8)
    device.write(regs.CMD, regs.CMD_RUN)
    assert session.ids == ["npu.configuration"]
    assert "architecture 1.2.0; this NPU has 1.0.6" in session.reports[0][1]


def test_a_program_over_other_constants_shares_what_was_prepared() -> None:
    model = s.model(TARGETS[0])
    first = Program(model.payload.commands)
    steps = first.steps()
    second = first.with_constants(model.payload.weights)
    assert second.steps() is steps
    assert (second.constants.tobytes(), first.constants.size) == (model.payload.weights, 0)
    assert second.decoded is not first.decoded
    with pytest.raises(ValueError, match="read-only"):
        second.constants[0] = 1
