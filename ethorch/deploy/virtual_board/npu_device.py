"""The registers through which firmware controls the simulated NPU, with checks for firmware errors."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ethorch.deploy.virtual_board import npu_registers as regs
from ethorch.deploy.virtual_board.estimate import OperationActivity, estimate_cycles, list_operations, total
from ethorch.deploy.virtual_board.extents import Extent
from ethorch.deploy.virtual_board.faults import BUS_ERROR, END_REACHED, IRQ_RAISED, PARSE_ERROR, PMU_IRQ, RULES, RUNNING
from ethorch.deploy.virtual_board.guest import Guest
from ethorch.deploy.virtual_board.inference import Inference
from ethorch.deploy.virtual_board.npu_pmu import Pmu
from ethorch.deploy.virtual_board.npu_programs import Programs, ends
from ethorch.npu import Machine, Sources
from ethorch.npu.arrays import Bytes
from ethorch.npu.counters import (
    AXI0_READ_BEATS,
    AXI0_WRITE_BEATS,
    AXI1_READ_BEATS,
    AXI1_WRITE_BEATS,
    BEAT_BYTES,
    CYCLE,
    MAC_ACTIVE,
    NPU_ACTIVE,
    NPU_IDLE,
)
from ethorch.npu.registers import NPUS, U55, U85, Npu
from ethorch.npu.stream import COP1
from ethorch.support.errors import MachineFault
from ethorch.targets.boards.description import Memory, NpuSlot

MOST_STREAM_BYTES = 1 << 26
_HISTORY = 0xFFFF << 16
#: Faults that can be injected.
INJECTIONS = ("no-interrupt", "never-ends")


class Session(Protocol):
    """The callbacks that devices invoke during an emulation."""

    def report(self, id: str, text: str) -> None:
        """Record a fault at the current instruction."""

    def on_npu_start(self, device: NpuDevice) -> None:
        """Handle the start of a run. The implementation must call ``device.finish`` later."""

    @property
    def instructions(self) -> int | None: ...


@dataclass
class _PendingRun:
    inference: Inference
    machine: Machine | None = None
    memories: Mapping[int, Memory] = field(default_factory=dict)
    reads: list[tuple[int, int]] = field(default_factory=list)
    writes: list[tuple[int, int]] = field(default_factory=list)
    status: int = 0  # STATUS bits for the fault that prevents the run


Ranges = Sequence[tuple[int, int]]  # (address, end)


class Coherence(Protocol):
    """The callbacks that check the CPU's cache or copy memory before and after an NPU run."""

    def before_run(self, reads: Ranges, writes: Ranges, exact: bool) -> None:
        """Handle the ranges that the NPU is about to access. If ``exact`` is False, they are upper bounds."""

    def after_run(self, writes: Ranges, exact: bool) -> None:
        """Handle the ranges that the NPU wrote."""


class NpuDevice:
    """An NPU on the bus.

    A write to CMD starts a run, and ``finish`` executes the run later, so that firmware first observes STATUS.running.

    Args:
        slot: Location on the board.
        sources, cycles, inject: See :func:`ethorch.deploy.virtual_board.run`.
    """

    def __init__(
        self,
        session: Session,
        npu: Npu,
        slot: NpuSlot,
        guest: Guest,
        sources: Mapping[str, Sources] | None = None,
        cycles: Mapping[str, int] | None = None,
        inject: Sequence[str] = (),
    ):
        self.session, self.npu, self.slot, self.guest = session, npu, slot, guest
        self.sources, self.cycles, self.inject = sources or {}, cycles or {}, frozenset(inject)
        self.coherence: Coherence | None = None
        self.rows = regs.table(npu)
        self.values: dict[int, int] = {}
        self.status = 0
        self.was_reset = False
        self.inferences: list[Inference] = []
        self.programs = Programs(npu, self.sources)
        self._running: _PendingRun | None = None
        self._pmu = Pmu(npu)
        self._reset_values()

    # The bus.

    @property
    def irq(self) -> bool:
        return "no-interrupt" not in self.inject and bool(self.status & IRQ_RAISED or self._pmu.irq)

    @property
    def running(self) -> bool:
        return self._running is not None

    def read(self, offset: int, size: int = 4) -> int:
        if not self._check_access("read", offset, size):
            return 0
        if offset == regs.STATUS:
            return self.status | (PMU_IRQ if self._pmu.irq else 0)
        row = self.rows.get(offset)
        if row is None:
            if not regs.is_debug_window(offset):
                self._unknown("read", offset)
            return 0
        if self._pmu.owns(offset):
            return self._pmu.read(offset)
        return self.values.get(offset, row.reset)

    def write(self, offset: int, value: int, size: int = 4) -> None:
        if not self._check_access("write", offset, size):
            return
        row = self.rows.get(offset)
        if row is None:
            if not regs.is_debug_window(offset):
                self._unknown("write", offset)
        elif not row.writable:
            self.session.report("npu.read_only_register", f"The firmware writes {value:#x} to {row.name}, a read-only register.")
        elif self.running and not row.live:
            text = f"The firmware writes {value:#x} to {row.name} while the NPU is running."
            self.session.report("npu.write_while_running", text)
        elif offset == regs.CMD:
            self._command(value)
        elif offset == regs.RESET:
            self._reset(value & row.mask)
        elif self._pmu.owns(offset):
            self._pmu.write(offset, value & row.mask)
        else:
            self.values[offset] = value & row.mask

    def _check_access(self, verb: str, offset: int, size: int) -> bool:
        if size == 4 and offset % 4 == 0:
            return True
        self.session.report(
            "npu.register_access", f"The firmware {verb}s {size} bytes at offset {offset:#x} of the NPU's registers."
        )
        return False

    def _unknown(self, verb: str, offset: int) -> None:
        other_npu = next((n.name for n in NPUS.values() if n.family != self.npu.family and offset in regs.table(n)), None)
        hint = (
            f" {other_npu} has {regs.table(next(n for n in NPUS.values() if n.name == other_npu))[offset].name} at this offset."
            if other_npu
            else ""
        )
        self.session.report(
            "npu.unknown_register", f"The firmware {verb}s offset {offset:#x}, where {self.npu.name} has no register.{hint}"
        )

    def _reset_values(self) -> None:
        self.values = {
            offset: self.values.get(offset, row.reset) if row.survives_reset else row.reset for offset, row in self.rows.items()
        }
        self._pmu.reset()
        self.status = 0

    def _reset(self, reset_bits: int) -> None:
        self._running = None
        self._reset_values()
        self.values[regs.PROT] = reset_bits
        self.was_reset = True

    def _command(self, value: int) -> None:
        if value & regs.CMD_CLEAR_IRQ:
            self.status &= ~IRQ_RAISED
        self.status &= ~(value & _HISTORY)
        self.values[regs.CMD] = value & regs.CMD_AFTER_RESET
        if value & regs.CMD_STOP and self._running is not None:
            self._running = None
            self.status &= ~RUNNING
        if value & regs.CMD_RUN:
            self._run()

    # A run.

    def _run(self) -> None:
        if self.running:
            self.session.report("npu.run_while_running", "The firmware writes CMD.run while the NPU is running.")
            return
        if not self.was_reset:
            self.session.report("npu.not_reset", "The firmware writes CMD.run, but has not written RESET since power-on.")
        if self.status & IRQ_RAISED:
            self.session.report(
                "npu.irq_not_acknowledged", "The firmware writes CMD.run while the interrupt of the previous run is raised."
            )
        self.status = (self.status & (_HISTORY | IRQ_RAISED)) | RUNNING
        started = time.perf_counter()
        self._running = self._prepare()
        self._running.inference.seconds = time.perf_counter() - started
        self.session.on_npu_start(self)

    def finish(self) -> None:
        """Execute the run in progress, if any."""
        run = self._running
        if run is None or "never-ends" in self.inject:
            return
        self._running = None
        inference = run.inference
        status = run.status
        if run.machine is not None:
            status |= self._execute(run, run.machine)
        inference.status = self.status = (self.status & ~RUNNING & (_HISTORY | IRQ_RAISED)) | IRQ_RAISED | status | _HISTORY
        inference.ended = self.session.instructions
        self.inferences.append(inference)

    def _fail(self, run: _PendingRun, id: str, text: str) -> None:
        self.session.report(id, text)
        run.status |= RULES[id].status

    def _prepare(self) -> _PendingRun:
        address, size = self._address(regs.QBASE), self.values[regs.QSIZE]
        run = _PendingRun(Inference("", address, size, self.session.instructions))
        if address % 16:
            self._fail(run, "npu.stream_alignment", f"QBASE is {address:#x}; expected a multiple of 16.")
        elif not size or size % 4 or size > MOST_STREAM_BYTES:
            text = f"QSIZE is {size} bytes; expected a positive multiple of 4, at most {MOST_STREAM_BYTES}."
            self._fail(run, "npu.stream_size", text)
        elif self._reach(run, "the command stream at QBASE", address, size, self.values[regs.QCONFIG]) is not None:
            stream = self.guest.bytes_at(address, size)
            assert stream is not None  # guaranteed by _reach
            commands = stream.tobytes()
            run.inference.stream = hashlib.sha256(commands).hexdigest()
            if self._check_configuration(run, address):
                self._load(run, commands)
        return run

    def _address(self, register: int) -> int:
        return self.values[register] | self.values[register + 4] << 32

    def _reach(self, run: _PendingRun, what: str, address: int, size: int, attribute: int, writes: bool = False) -> Memory | None:
        """Return the memory that contains a range. If the NPU cannot access the range, report a fault and return None."""
        location = self.guest.find(address)
        named = f"{what}, {address:#010x}..{address + size:#010x}"
        if location is None:
            seen = ", ".join(str(m) for m in self.guest.board.memories if m.npu_ports)
            self._fail(run, "npu.no_memory", f"The board has no memory for {named}. The NPU can access {seen}.")
            return None
        memory, port = location[0].memory, self.port(attribute)
        if not memory.npu_ports:
            seen = ", ".join(str(m) for m in self.guest.board.memories if m.npu_ports)
            self._fail(
                run,
                "npu.unreachable_memory",
                f"{_capital(named)} is in {memory}, which the NPU cannot access. The NPU can access {seen}.",
            )
        elif port not in memory.npu_ports:
            ways = " or ".join(memory.npu_ports)
            text = f"{_capital(named)} is in {memory}. Attribute {attribute} selects port {port}, but this memory requires {ways}."
            self._fail(run, "npu.port", text)
        elif location[1] + size > memory.size_bytes:
            over = location[1] + size - memory.size_bytes
            self._fail(run, "npu.extent", f"{_capital(named)} extends {over} bytes beyond the end of {memory}.")
        elif writes and not memory.writable:
            self._fail(run, "npu.read_only_memory", f"The stream writes to {named}, which is in {memory}, a read-only memory.")
        elif writes and port == "ext" and self.npu.family == U55:
            text = f"The stream writes to {named} through attribute {attribute}, which is AXI1 of a U55."
            self._fail(run, "npu.read_only_port", text)
        else:
            return memory
        return None

    def port(self, attribute: int) -> str:
        """Return the NPU port that a memory attribute (0 to 3, as in REGIONCFG) selects."""
        if self.npu.family == U85:
            return "ext" if self.values[regs.ATTRIBUTES + 4 * attribute] & 4 else "sram"
        return "ext" if attribute & 2 else "sram"

    def _check_configuration(self, run: _PendingRun, address: int) -> bool:
        """Return True unless a driver payload header for an incompatible NPU precedes the command stream."""
        header = self.guest.bytes_at(address - 32, 32)
        if header is None or header[:4].tobytes() != COP1:
            return True
        config, made_for = (int.from_bytes(header[at : at + 4].tobytes(), "little") for at in (8, 12))
        own_id = regs.ID[self.npu.family]
        named = NPUS[config].name if config in NPUS else f"CONFIG {config:#010x}"
        ignored = (
            0xFF00 if self.npu.family != U85 else 0x3000
        )  # SHRAM bytes and weight decoders, which the driver does not compare either
        if (config ^ self.npu.config) & ~ignored:
            text = f"The stream was compiled for {named} ({config:#010x}); this NPU is {self.npu.name} ({self.npu.config:#010x})."
        elif made_for >> 28 != own_id >> 28 or (made_for >> 20 & 0xFF) > (own_id >> 20 & 0xFF):
            text = f"The stream was compiled for architecture {_architecture(made_for)}; this NPU has {_architecture(own_id)}."
        else:
            return True
        self._fail(run, "npu.configuration", text)
        return False

    def _load(self, run: _PendingRun, commands: bytes) -> None:
        bases = tuple(self._address(regs.BASEP + 8 * region) for region in range(regs.REGIONS))
        try:
            program, used = self.programs.stream(run.inference.stream, commands)
        except MachineFault as fault:
            self._fail(run, "npu.command", f"The stream at {run.inference.stream_address:#x} cannot be executed: {fault}")
            return
        if not ends(program):
            text = "The command stream does not end with NPU_OP_STOP, because QSIZE is too small or the stream is truncated."
            self._fail(run, "npu.stream_end", text)
            return
        exact = not program.has_branches
        run.memories = self._check_memories(run, used, bases, exact)
        if run.status:
            return
        run.inference.memories = {region: memory.name for region, memory in run.memories.items()}
        run.reads = [(bases[r] + a, bases[r] + b) for r, e in used.items() for a, b in e.read]
        run.writes = [(bases[r] + a, bases[r] + b) for r, e in used.items() for a, b in e.written]
        if self.coherence is not None:
            self.coherence.before_run(run.reads, run.writes, exact)
        constants = self._rest(bases[0])[: used[0].end if 0 in used else 0]
        regions = {region: self._rest(bases[region]) for region in used if region}
        run.machine = self.programs.machine(run.inference.stream, constants, regions, bases)

    def _check_memories(self, run: _PendingRun, used: Mapping[int, Extent], bases: Sequence[int], exact: bool) -> dict[int, Memory]:
        # If ``exact`` is False (streams with branches), only region starts are checked; the machine checks each access.
        memories: dict[int, Memory] = {}
        for region, extent in sorted(used.items()):
            if region >= regs.REGIONS:
                text = f"{_capital(extent.last)}, uses region {region}; expected a region below {regs.REGIONS}."
                self._fail(run, "npu.command", text)
                continue
            base, attribute = bases[region], self.values[regs.REGIONCFG] >> 2 * region & 3
            if base % 16:
                self._fail(run, "npu.base_alignment", f"BASEP{region} is {base:#x}; expected a multiple of 16.")
                continue
            label = f"region {region} (BASEP{region} = {base:#x})" + (
                f", up to the last byte accessed by {extent.last}" if exact else ""
            )
            start, size = (base + extent.start, extent.end - extent.start) if exact else (base, 1)
            memory = self._reach(run, label, start, size, attribute, extent.writes and exact)
            if memory is not None:
                memories[region] = memory
        return memories

    def _rest(self, base: int) -> Bytes:
        location = self.guest.find(base)
        if location is None or not location[0].memory.npu_ports:
            return np.zeros(0, np.uint8)
        return location[0].bytes[location[1] :]

    def _execute(self, run: _PendingRun, machine: Machine) -> int:
        inference = run.inference
        before = machine.counters
        status = END_REACHED
        started = time.perf_counter()
        try:
            machine.run()
        except MachineFault as fault:
            outside = "does not exist" in str(fault) or "covers bytes" in str(fault)
            self.session.report("npu.extent" if outside else "npu.command", f"The NPU stops: {fault}")
            status = BUS_ERROR if outside else PARSE_ERROR
        inference.seconds += time.perf_counter() - started
        if self.coherence is not None:  # even after a fault, because earlier commands have written results
            self.coherence.after_run(run.writes, exact=not machine.program.has_branches)
        if status != END_REACHED:
            return status
        operations = list_operations(before, machine.counters)
        inference.macs = sum(operation.macs for operation in operations)
        inference.read_bytes = total([operation.read for operation in operations])
        inference.written_bytes = total([operation.written for operation in operations])
        self._count_cycles(run, operations)
        self._pmu.advance(inference.cycles, self._events(inference))
        self.values[regs.QREAD] = inference.stream_bytes
        return status

    def _count_cycles(self, run: _PendingRun, operations: Sequence[OperationActivity]) -> None:
        inference, sources = run.inference, self.sources.get(run.inference.stream)
        if sources is not None:
            inference.operators = [(str(source), source.op_cycles) for source in sources.all()]
        else:
            rows = [(operation.title, estimate_cycles(operation, self.npu, self.slot, run.memories)) for operation in operations]
            inference.operators = [(title, cycles) for title, cycles in rows if cycles]
        inference.estimated_by = "vela" if sources is not None or inference.stream in self.cycles else "board"
        inference.cycles = self.cycles.get(inference.stream, sum(cycles for _, cycles in inference.operators))

    def _events(self, inference: Inference) -> dict[int, int]:
        beat = BEAT_BYTES[self.npu.family]
        beats = dict.fromkeys((AXI0_READ_BEATS, AXI0_WRITE_BEATS, AXI1_READ_BEATS, AXI1_WRITE_BEATS), 0)
        for sizes, events in (
            (inference.read_bytes, (AXI0_READ_BEATS, AXI1_READ_BEATS)),
            (inference.written_bytes, (AXI0_WRITE_BEATS, AXI1_WRITE_BEATS)),
        ):
            for region, size in sizes.items():
                port = self.port(self.values[regs.REGIONCFG] >> 2 * region & 3)
                beats[events[port == "ext"]] += -(-size // beat)
        cycles = {CYCLE: inference.cycles, NPU_ACTIVE: inference.cycles, NPU_IDLE: 0}
        return {**beats, **cycles, MAC_ACTIVE: -(-inference.macs // self.npu.macs)}


def _architecture(word: int) -> str:
    return f"{word >> 28}.{word >> 20 & 0xFF}.{word >> 16 & 0xF}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
