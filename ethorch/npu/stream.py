"""Parse driver payloads into their header, commands and register states."""

# A command either writes a register or is an operation. Registers keep their values and Vela omits redundant writes, so an
# operation depends on all earlier register writes (npu-reference 2.1).

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ethorch.npu import registers
from ethorch.npu.registers import Npu, Register
from ethorch.support.errors import MachineFault

COP1, COP2 = b"COP1", b"COP2"
_ACTION_CONFIG, _ACTION_STREAM, _ACTION_NOP = 1, 2, 5  # driver actions that occur (npu-reference 1.2)


@dataclass(frozen=True)
class Header:
    """The header of a driver payload, with the NPU and the byte range of the command words."""

    npu: Npu
    npu_id: int
    start: int
    stop: int
    local_addressing: bool = False


@dataclass(slots=True)
class Command:
    """A command, with its index, byte offset from the first command word, table row, and decoded values.

    Equal commands share ``values``. Instances are immutable by convention.
    """

    index: int
    offset: int
    row: Register
    values: Mapping[str, int]
    is_operation: bool


@dataclass(eq=False)
class Operation:
    """An NPU_OP_* command, and the register values when it starts. ``op[key]`` reads a register."""

    npu: Npu
    index: int
    offset: int
    name: str
    values: Mapping[str, int]
    state: Mapping[str, int]

    def __getitem__(self, key: str) -> int:
        return self.state[key]

    @property
    def mode(self) -> int:
        return self.values.get(f"{self.name}.mode", 0)

    @property
    def title(self) -> str:
        """The name and mode of the operation, e.g. ``NPU_OP_POOL AVERAGE``."""
        names = registers.value_names(self.npu.family).get(f"{self.name}.mode")
        return f"{self.name} {names[self.mode]}" if names else self.name

    def locate(self, fault: MachineFault) -> MachineFault:
        """Return ``fault`` with the command, its offset and its registers, or unchanged if it already contains a command."""
        if fault.operation is not None:
            return fault
        text = " ".join(f"{k}={v}" for k, v in describe(self).items())
        located = MachineFault(f"command {self.index} at byte {self.offset:#x}, {self.title}: {fault} [{text}]")
        located.operation = self
        return located


class Snapshot(Mapping[str, int]):
    """The register values before one command, computed on first access to save memory."""

    def __init__(self, npu: Npu, stream: list[Command], index: int):
        self._npu, self._stream, self._index = npu, stream, index

    @cached_property
    def _values(self) -> dict[str, int]:
        state = dict(registers.reset_state(self._npu.family))
        for command in self._stream[: self._index]:
            if not command.is_operation:
                state.update(command.values)
        return state

    def __getitem__(self, key: str) -> int:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def parse_header(payload: bytes) -> Header:
    """Parse the header of a COP1 or COP2 driver payload (npu-reference 1.2). Raise MachineFault if the payload is neither."""
    if payload[:4] == COP1:
        return _parse_cop1(payload)
    if payload[:4] == COP2:
        return _parse_cop2(payload)
    raise MachineFault(f"expected a payload that starts with COP1 or COP2, got {payload[:4]!r}")


def _npu(config: int) -> Npu:
    try:
        return registers.NPUS[config]
    except KeyError:
        supported = ", ".join(f"{c:#010x} {n.name}" for c, n in registers.NPUS.items())
        raise MachineFault(f"unknown CONFIG word {config:#010x}; expected one of {supported}") from None


def _words(payload: bytes, offset: int, count: int, subject: str) -> tuple[int, ...]:
    if offset + 4 * count > len(payload):
        raise MachineFault(
            f"the payload ends inside its {subject}: expected at least {offset + 4 * count} bytes, got {len(payload)}"
        )
    return struct.unpack_from(f"<{count}I", payload, offset)


def _parse_cop1(payload: bytes) -> Header:
    at, config, npu_id = 4, None, 0
    while True:
        (tag,) = _words(payload, at, 1, "COP1 header")
        at += 4
        action = tag & 0xFF
        if action == _ACTION_NOP:
            continue
        if action == _ACTION_CONFIG:
            config, npu_id = _words(payload, at, 2, "optimizer configuration")
            at += 8
        elif action == _ACTION_STREAM:
            words = (tag >> 16) | (tag & 0xFF00) << 8
            if config is None:
                raise MachineFault("the payload's command stream precedes its optimizer configuration")
            if at % 16:
                raise MachineFault(f"the command stream starts at byte {at}, which is not a multiple of 16")
            if at + 4 * words > len(payload):
                raise MachineFault(f"expected {words} command words after the header, got {(len(payload) - at) // 4}")
            return Header(_npu(config), npu_id, at, at + 4 * words)
        else:
            raise MachineFault(f"unknown driver action {action:#x} at byte {at - 4} of the payload")


def _parse_cop2(payload: bytes) -> Header:
    version, size_low, size_high, kind, entry, metadata = _words(payload, 4, 6, "COP2 header")
    size = size_low | size_high << 32
    if version != 1 or kind != 1:
        raise MachineFault(f"expected COP2 version 1 with entry type 1, got version {version} with entry type {kind}")
    if 16 + size != len(payload) or entry > size:
        raise MachineFault(f"COP2 declares {size} bytes ({entry} of them in the first entry), but {len(payload) - 16} bytes follow")
    magic, meta_version, _length, config, npu_id, feature = _words(payload, 28, 6, "COP2 metadata")
    if magic != 0x4D554556 or meta_version != 1:  # "VEUM"
        raise MachineFault(
            f"expected COP2 metadata with magic number 0x4d554556 and version 1, got {magic:#x} and version {meta_version}"
        )
    start = -(-(28 + metadata) // 16) * 16
    if start > len(payload):
        raise MachineFault(f"COP2 metadata of {metadata} bytes does not fit into the payload of {len(payload)} bytes")
    return Header(_npu(config), npu_id, start, len(payload), local_addressing=feature == 2)


def commands(payload: bytes, header: Header) -> list[Command]:
    """Decode every command. Raise MachineFault if a command is unknown or illegal."""
    rows = registers.table(header.npu.family)
    size = header.stop - header.start
    words = struct.unpack_from(f"<{size // 4}I", payload, header.start)
    parsed: list[Command] = []
    decoded: dict[int, dict[str, int]] = {}

    def where(at: int) -> str:
        return f"command {len(parsed)} at byte {4 * at:#x} ({words[at]:#010x})"

    at = 0
    while at < len(words):
        word = words[at]
        control = (word >> 14) & 3
        if control > 1:
            raise MachineFault(f"{where(at)}: control bits {control}; expected 0 (CMD0) or 1 (CMD1)")
        if control == 1 and at + 1 == len(words):
            raise MachineFault(f"{where(at)}: the stream ends before this command's second word")
        match = rows.get((control == 1, word & 0x3FF))
        if match is None:
            name = "CMD1" if control else "CMD0"
            raise MachineFault(f"{where(at)}: {header.npu.name} has no {name} with opcode {word & 0x3FF:#05x}")
        row, is_operation = match
        bits = word | words[at + 1] << 32 if control else word
        values = decoded.get(bits)
        if values is None:
            try:
                values = decoded[bits] = row.decode(bits)
            except MachineFault as fault:
                raise MachineFault(f"{where(at)}, {row.name}: {fault}") from None
        parsed.append(Command(len(parsed), 4 * at, row, values, is_operation))
        at += 1 + control
    return parsed


def operations(npu: Npu, stream: list[Command]) -> Iterator[Operation]:
    """Iterate over the operations in stored order, with register values as if no branch were taken."""
    state = dict(registers.reset_state(npu.family))
    for command in stream:
        if command.is_operation:
            op = operation(npu, command, state)
            yield op
            op.state = Snapshot(npu, stream, command.index)
        else:
            state.update(command.values)


def operation(npu: Npu, command: Command, state: Mapping[str, int]) -> Operation:
    return Operation(npu, command.index, command.offset, command.row.name, command.values, state)


# ---------------------------------------------------------------------------------------------------------------------
# Relevant registers

_OUTPUT = ("OFM", "ACTIVATION", "ACC_FORMAT")
_WINDOW = ("KERNEL", "IFM_PAD", "IFM_UPSCALE")
_STREAMS = ("WEIGHT", "SCALE")

# Prefixes of the registers that an operation uses.
RELEVANT: Mapping[str, tuple[str, ...]] = {
    "NPU_OP_CONV": ("IFM_", *_WINDOW, *_STREAMS, *_OUTPUT, "PARALLEL"),
    "NPU_OP_DEPTHWISE": ("IFM_", *_WINDOW, *_STREAMS, *_OUTPUT, "PARALLEL"),
    "NPU_OP_POOL": ("IFM_", *_WINDOW, "SCALE", *_OUTPUT),
    "NPU_OP_ELEMENTWISE": ("IFM_", "IFM2_", "OPA_", "OPB_", "OP_SCALAR", *_OUTPUT),
    "NPU_OP_RESIZE": ("IFM_", "KERNEL", "RESIZE", *_OUTPUT),
    "NPU_OP_DMA_START": ("DMA0",),
}


def describe(op: Operation) -> dict[str, str]:
    """Return the parameters and relevant registers of an operation as text. Omit numeric registers with their reset values."""
    prefixes = RELEVANT.get(op.name, ())
    names = registers.value_names(op.npu.family)
    zero = registers.reset_state(op.npu.family)
    texts = {k.removeprefix(f"{op.name}."): str(v) for k, v in op.values.items()}
    for key, value in op.state.items():
        if not key.startswith(prefixes):
            continue
        if key in names:
            texts[key] = names[key][value]
        elif value != zero[key]:
            texts[key] = hex(value) if "BASE" in key or "DMA0" in key else str(value)
    return texts


Pair = tuple[int, int]


def kernel_stride(op: Operation) -> Pair:
    """Return the stride (y, x), 1..4, from the split bits of KERNEL_STRIDE (npu-reference 2.3)."""
    return (
        1 + op["KERNEL_STRIDE.y0"] + 2 * op["KERNEL_STRIDE.y1"],
        1 + op["KERNEL_STRIDE.x0"] + 2 * op["KERNEL_STRIDE.x1"],
    )
