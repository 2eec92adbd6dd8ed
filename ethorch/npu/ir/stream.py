"""Operations of a command stream."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, TypeVar

from ethorch.npu import ops, stream
from ethorch.npu.feature_map import STORAGE_CHAINED, STORAGE_NONE
from ethorch.npu.ir.image import Image
from ethorch.npu.memory import INTERNAL
from ethorch.npu.prepared import PREPARE, Prepared
from ethorch.npu.registers import U85, Npu, Register, reset_state, table
from ethorch.npu.runs import Run, iterate_reads, iterate_writes
from ethorch.npu.stream import RELEVANT
from ethorch.support.errors import MachineFault

T = TypeVar("T")
assert ops  # importing it fills PREPARE

DMA = "NPU_OP_DMA_START"
WAITS = ("NPU_OP_DMA_WAIT", "NPU_OP_KERNEL_WAIT")
STOP = "NPU_OP_STOP"
#: Registers of every kernel besides those of ``RELEVANT``.
_OF_KERNELS = ("BLOCKDEP", "AB_START", "PARALLEL_MODE")
_ACC_IFM2 = 2 << 4  # ACC_FORMAT.input in 16 bits (npu-reference 2.3)


@dataclass
class Op:
    """A kernel or a DMA transfer.

    Attributes:
        parameter: Bits 16 to 31 of the command, e.g. the mode of a pooling operation.
        registers: Raw register values by name.
        key: Byte offset of the command in the decoded stream, or a negative number for a new operation.
        before: Key of the previous kernel in the decoded stream (-1 for the first kernel), or None to derive BLOCKDEP.
        origin: Key of the decoded operation from which this one was copied or split, or None.
    """

    npu: Npu
    name: str
    parameter: int
    registers: dict[str, int]
    key: int
    before: int | None = None
    origin: int | None = None
    _values: dict[str, int] | None = field(default=None, repr=False, compare=False)
    _derived: dict[Callable[[Op], Any], Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_dma(self) -> bool:
        return self.name == DMA

    @property
    def values(self) -> dict[str, int]:
        """The decoded registers, e.g. ``IFM_PRECISION.signed``. Unused registers are 0."""
        if self._values is None:
            values = dict(reset_state(self.npu.family))
            for name, raw in self.registers.items():
                values.update(decode_register(self.npu.family, name, raw))
            self._values = values
        return self._values

    @property
    def prepared(self) -> Prepared:
        """The operation as the simulator executes it.

        Raises:
            MachineFault: The registers are invalid.
        """
        return self.derive(_prepare)

    def derive(self, function: Callable[[Op], T]) -> T:
        """Return ``function(self)``. The result is cached until a register changes."""
        if function not in self._derived:
            self._derived[function] = function(self)
        derived: T = self._derived[function]
        return derived

    def set_registers(self, **raw: int) -> None:
        self.registers.update(raw)
        self._values, self._derived = None, {}

    def copy(self, **raw: int) -> Op:
        if not raw:
            return replace(self, registers=dict(self.registers))
        return replace(self, registers={**self.registers, **raw}, _values=self._change_values(raw), _derived={})

    def _change_values(self, raw: Mapping[str, int]) -> dict[str, int] | None:
        """Return the decoded registers updated by ``raw``, or None if they are not cached or a value is illegal."""
        if self._values is None:
            return None
        values = dict(self._values)
        try:
            for name, content in raw.items():
                values.update(decode_register(self.npu.family, name, content))
        except MachineFault:
            return None
        return values

    @property
    def reads(self) -> tuple[Run, ...]:
        """The byte ranges that the operation may read, including internal memory."""
        return self.derive(_list_runs)[0]

    @property
    def writes(self) -> tuple[Run, ...]:
        return self.derive(_list_runs)[1]


def _prepare(op: Op) -> Prepared:
    row = rows_by_name(op.npu.family)[op.name]
    operation = stream.Operation(op.npu, 0, op.key, op.name, row.decode(row.code | op.parameter << 16), op.values)
    return PREPARE[op.name, op.npu.family](operation)


def _list_runs(op: Op) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    prepared = op.prepared
    return (*iterate_reads(prepared), *_table(prepared)), tuple(iterate_writes(prepared))


def _table(prepared: Prepared) -> tuple[Run, ...]:
    stage = getattr(prepared.form, "stage", None)
    if stage is None or stage.activation.table is None or stage.activation.built_in is not None:
        return ()
    address = stage.activation.address
    return (Run("ACTIVATION", INTERNAL, address, address, address + stage.activation.table.size_bytes),)


def create_transfer(npu: Npu, key: int, origin: int | None = None, **raw: int) -> Op:
    """Return a DMA transfer whose other registers are 0."""
    return Op(npu, DMA, 0, dict.fromkeys(used_registers(npu.family, DMA, 0, 0), 0) | raw, key, origin=origin)


@dataclass
class Stream:
    npu: Npu
    payload: bytes  # source of the header
    ops: list[Op]  # without waits and the final stop
    stop: int  # bits 16 to 31 of the final stop
    image: Image = field(default_factory=Image)

    def new_key(self) -> int:
        """Return an unused negative key. All lower keys are unused, too."""
        return min([0, *(op.key for op in self.ops)]) - 1


def group_chains(ops: Sequence[Op]) -> list[list[Op]]:
    """Group the kernels of each chain with the transfers between them. Every other operation is a group of its own."""
    groups: list[list[Op]] = []
    is_open = False
    for op in ops:
        if is_open:
            groups[-1].append(op)
        else:
            groups.append([op])
        if not op.is_dma:
            is_open = op.values.get("OFM_PRECISION.storage", 0) in (STORAGE_CHAINED, STORAGE_NONE)
    return groups


@cache
def rows_by_name(family: str) -> Mapping[str, Register]:
    return {row.name: row for row, _ in table(family).values()}


def used_registers(family: str, name: str, parameter: int, acc_format: int) -> tuple[str, ...]:
    has_weights = name == "NPU_OP_CONV" and parameter & 1
    has_accumulators = name in RELEVANT and name != DMA and acc_format & 0x30 == _ACC_IFM2
    return _used_registers(family, name, bool(family == U85 and (has_weights or has_accumulators)))


@cache
def _used_registers(family: str, name: str, reads_ifm2: bool) -> tuple[str, ...]:
    prefixes = (*RELEVANT[name], "IFM2_") if reads_ifm2 else RELEVANT[name]
    kernels = () if name == DMA else _OF_KERNELS
    names = (row.name for row, is_operation in table(family).values() if not is_operation)
    return tuple(key for key in names if key.startswith(prefixes) or key in kernels)


@lru_cache(maxsize=1 << 16)
def decode_register(family: str, name: str, raw: int) -> Mapping[str, int]:
    """Return the fields of a register. Raise MachineFault if a value is illegal."""
    row = rows_by_name(family)[name]
    return row.decode(row.code | (raw >> 32) << 16 | (raw & 0xFFFFFFFF) << 32 if row.cmd1 else row.code | raw << 16)


def write_words(family: str, name: str, raw: int) -> list[int]:
    row = rows_by_name(family)[name]
    if row.cmd1:
        return [row.code | 1 << 14 | (raw >> 32) << 16, raw & 0xFFFFFFFF]
    return [row.code | raw << 16]


def decode(payload: bytes, image: Image | None = None) -> Stream:
    """Decode a driver payload.

    Raises:
        MachineFault: The payload is malformed, or has branches or unsupported commands.
    """
    header = stream.parse_header(payload)
    family = header.npu.family
    commands = stream.commands(payload, header)
    words = struct.unpack_from(f"<{(header.stop - header.start) // 4}I", payload, header.start)
    state: dict[str, int] = {}
    operations: list[Op] = []
    before = -1
    for command in commands:
        at, name = command.offset // 4, command.row.name
        raw = words[at] >> 16
        if not command.is_operation:
            state[name] = raw << 32 | words[at + 1] if command.row.cmd1 else raw
        elif name == STOP:
            return Stream(header.npu, payload, operations, raw, image or Image())
        elif name in RELEVANT:
            used = {key: state.get(key, 0) for key in used_registers(family, name, raw, state.get("ACC_FORMAT", 0))}
            operations.append(Op(header.npu, name, raw, used, command.offset, before, command.offset))
            before = before if name == DMA else command.offset
        elif name not in WAITS:
            raise MachineFault(
                f"{name} at byte {command.offset:#x} is not supported; expected a kernel, transfer, wait or NPU_OP_STOP"
            )
    raise MachineFault("the stream ends without NPU_OP_STOP")
