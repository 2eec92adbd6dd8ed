"""The operations of a stream, with their waits."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ethorch.npu import registers, stream
from ethorch.npu.feature_map import BRICK
from ethorch.npu.ir.stream import STOP, WAITS, Op, decode_register, rows_by_name, used_registers
from ethorch.npu.output import Activation
from ethorch.npu.prepared import Prepared
from ethorch.npu.registers import Npu
from ethorch.npu.runs import Run
from ethorch.npu.stream import RELEVANT
from ethorch.npu.verify.rejection import Rejection
from ethorch.support.errors import MachineFault


@dataclass(frozen=True)
class Wait:
    """A command that waits until at most ``count`` transfers (if ``is_dma``) or kernels are outstanding."""

    is_dma: bool
    count: int


@dataclass(frozen=True)
class Facts:
    """The registers and accesses of an operation. Copies of an operation share them."""

    name: str
    title: str
    npu: Npu
    parameter: int
    values: Mapping[str, int]
    prepared: Prepared | None
    fault: str = ""  # message of the simulator if the registers are invalid
    reads: tuple[Run, ...] = ()
    writes: tuple[Run, ...] = ()

    @property
    def is_dma(self) -> bool:
        return self.name == "NPU_OP_DMA_START"

    @property
    def mode(self) -> str:
        """The mode of the operation, e.g. ``AVERAGE``, or an empty string if it has none."""
        names = registers.value_names(self.npu.family).get(f"{self.name}.mode")
        return names[self.parameter] if names else ""

    @cached_property
    def activation(self) -> Activation | None:
        stage = getattr(self.prepared.form, "stage", None) if self.prepared else None
        return getattr(stage, "activation", None)

    @cached_property
    def table(self) -> Run | None:
        return next((run for run in self.reads if run.register == "ACTIVATION"), None)


@dataclass
class Instruction:
    op: Op
    waits: tuple[Wait, ...] = ()


@dataclass
class Listing:
    """The instructions of a stream before NPU_OP_STOP."""

    npu: Npu
    instructions: list[Instruction]

    def facts(self) -> list[Facts]:
        return [describe(instruction.op) for instruction in self.instructions]


def decode_instructions(payload: bytes) -> Listing:
    """Decode a driver payload, including waits.

    Raises:
        MachineFault: The payload is malformed, has branches or interrupts, or does not end with NPU_OP_STOP.
    """
    header = stream.parse_header(payload)
    family = header.npu.family
    words = struct.unpack_from(f"<{(header.stop - header.start) // 4}I", payload, header.start)
    state: dict[str, int] = {}
    waits: list[Wait] = []
    instructions: list[Instruction] = []
    for command in stream.commands(payload, header):
        at, name = command.offset // 4, command.row.name
        raw = words[at] >> 16
        if not command.is_operation:
            state[name] = raw << 32 | words[at + 1] if command.row.cmd1 else raw
        elif name in WAITS:
            waits.append(Wait(name == WAITS[0], raw))
        elif name == STOP:
            return Listing(header.npu, instructions)
        elif name in RELEVANT:
            used = {key: state.get(key, 0) for key in used_registers(family, name, raw, state.get("ACC_FORMAT", 0))}
            instructions.append(Instruction(Op(header.npu, name, raw, used, command.offset), tuple(waits)))
            waits = []
        else:
            raise MachineFault(
                f"{name} at byte {command.offset:#x} cannot be verified; expected a kernel, transfer, wait or NPU_OP_STOP. "
                "Remove the command."
            )
    raise MachineFault("the stream ends without NPU_OP_STOP")


def describe(op: Op) -> Facts:
    return op.derive(_describe)


def _describe(op: Op) -> Facts:
    npu, name = op.npu, op.name
    values, fault = _decode_registers(op)
    row = rows_by_name(npu.family)[name]
    title = name
    prepared: Prepared | None = None
    try:
        title = stream.Operation(npu, 0, 0, name, row.decode(row.code | op.parameter << 16), values).title
        if not fault:
            prepared = op.prepared
    except MachineFault as error:
        fault = fault or str(error)
    if prepared is None:
        return Facts(name, title, npu, op.parameter, values, None, fault)
    reads, writes = (tuple(_trim(run, prepared) for run in runs) for runs in (op.reads, op.writes))
    return Facts(name, title, npu, op.parameter, values, prepared, "", reads, writes)


def _decode_registers(op: Op) -> tuple[Mapping[str, int], str]:
    try:
        return op.values, ""
    except MachineFault:
        values = dict(registers.reset_state(op.npu.family))
        fault = ""
        for register, raw in op.registers.items():
            try:
                values.update(decode_register(op.npu.family, register, raw))
            except MachineFault as error:
                fault = fault or f"{register}: {error}"
        return values, fault


def _trim(run: Run, prepared: Prepared) -> Run:
    """Exclude the unused channels of the last brick from an access (npu-reference 3.3)."""
    for fm in prepared.maps:
        if fm.bricks and run.register.startswith(f"{fm.name}_BASE"):
            unused = -fm.depth % BRICK * fm.dtype.itemsize
            return replace(run, high=run.high - unused)
    return run


def reject(facts: Facts, index: int, rule: str, register: str, content: int | str, allowed: str) -> Rejection:
    return Rejection(rule, index, facts.title, register, content, allowed)
