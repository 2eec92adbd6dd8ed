"""Write a .pte with the ``flatbuffers`` package. ``pte.read`` returns an equal ``Program``.

Constants, initial values and named data are in segments after the flatbuffer. The extended header locates the segments.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence

import flatbuffers

from ethorch.formats.pte import EXTENDED_MAGIC, IDENTIFIER
from ethorch.formats.pte_types import (
    DELEGATE,
    DTYPES,
    FREE,
    JUMP_FALSE,
    KERNEL,
    KINDS,
    MOVE,
    Call,
    Chain,
    Delegate,
    Extra,
    Instruction,
    JumpFalse,
    Method,
    Move,
    Program,
    Value,
)
from ethorch.support.errors import ProgramError

TENSOR_ALIGNMENT = 16  # alignment of constants in their segment and of planned tensors, required by kernels and NPUs
_BLOB_ALIGNMENT = 16  # alignment of delegate blobs in the file, because ``ethosu`` firmware reads blobs in place
_SEGMENT_ALIGNMENT = 128  # as in ExecuTorch
_HEADER_BYTES = 32  # a multiple of every alignment in the flatbuffer, which follows the header
_CODES = {name: code for code, (name, _) in DTYPES.items()}

Fields = dict[int, tuple[str, int | float]]


def write(program: Program) -> bytes:
    """Return ``program`` as a .pte.

    Raises:
        ProgramError: The kind or dtype of a value is unknown, or a method calls an operator that is not in its ``operators``.
    """
    writer = _Writer()
    root = writer.program(program)
    writer.builder.Finish(root, file_identifier=IDENTIFIER)
    data = bytes(writer.builder.Output())
    return _with_segments(data, writer.segments) if writer.segments else data


def _with_segments(data: bytes, segments: Sequence[bytes]) -> bytes:
    program_bytes = len(data) + _HEADER_BYTES
    base = _align(program_bytes, _SEGMENT_ALIGNMENT)
    body = b"".join(segment.ljust(_align(len(segment), _SEGMENT_ALIGNMENT), b"\0") for segment in segments)
    header = EXTENDED_MAGIC + struct.pack("<IQQQ", _HEADER_BYTES, program_bytes, base, len(body))
    root = struct.unpack_from("<I", data)[0] + _HEADER_BYTES
    head = struct.pack("<I", root) + data[4:8] + header + data[8:]
    return head.ljust(base, b"\0") + body


def _align(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


class _Writer:
    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(1 << 16)
        self.segments: list[bytes] = []
        self.places: list[tuple[int, int]] = []  # offset and size of each segment
        self.blobs: list[bytes] = []  # deduplicated blobs of delegates

    # --- flatbuffers --------------------------------------------------------------------------------------------------

    # ``fields`` maps field numbers to (format, value). The format is one of ``struct``, or ``o`` for an offset.
    def table(self, fields: Fields) -> int:
        b = self.builder
        b.StartObject(max(fields, default=-1) + 1)
        put: dict[str, Callable[[int, int | float, int], None]] = {
            "o": b.PrependUOffsetTRelativeSlot,
            "b": b.PrependInt8Slot,
            "B": b.PrependUint8Slot,
            "?": b.PrependBoolSlot,
            "i": b.PrependInt32Slot,
            "I": b.PrependUint32Slot,
            "q": b.PrependInt64Slot,
            "Q": b.PrependUint64Slot,
            "d": b.PrependFloat64Slot,
        }
        for number, (kind, value) in fields.items():
            put[kind](number, value, 0)
        return int(b.EndObject())

    def vector(self, items: Iterable[int | float], kind: str) -> int:
        b, items = self.builder, list(items)
        if kind == "o":
            b.StartVector(4, len(items), 4)
            for item in reversed(items):
                b.PrependUOffsetTRelative(item)
            return int(b.EndVector())
        size = struct.calcsize(kind)
        return self.block(struct.pack(f"<{len(items)}{kind}", *items), len(items), size, size)

    def block(self, data: bytes, count: int, item_bytes: int, alignment: int) -> int:
        b = self.builder
        self.make_room(len(data) + alignment + 16)
        b.StartVector(item_bytes, count, alignment)
        b.head -= len(data)
        b.Bytes[b.head : b.head + len(data)] = data
        return int(b.EndVector())

    def make_room(self, size: int) -> None:
        b = self.builder
        if b.head < size:
            more = max(size, len(b.Bytes))
            b.Bytes = bytearray(more) + b.Bytes
            b.head += more

    def text(self, text: str) -> int:
        return int(self.builder.CreateString(text))

    # --- the program --------------------------------------------------------------------------------------------------

    def program(self, program: Program) -> int:
        plans = self.vector([self.method(method) for method in program.methods.values()], "o")
        inline = self.vector([self.table({0: ("o", self.blob(blob))}) for blob in self.blobs], "o")
        constants = self.contents(program.constants)
        mutable = [self.contents(contents) for contents in program.mutable]
        fields: Fields = {0: ("I", program.version), 1: ("o", plans), 2: ("o", self.vector([], "o")), 3: ("o", inline)}
        fields[5] = ("o", constants)
        if mutable:
            fields[6] = ("o", self.vector(mutable, "o"))
        if program.named:
            names = [(self.text(name), self.segment(data)) for name, data in program.named.items()]
            entries = [self.table({0: ("o", name), 1: ("I", segment)}) for name, segment in names]
            fields[7] = ("o", self.vector(entries, "o"))
        segments = [self.table({0: ("Q", offset), 1: ("Q", size)}) for offset, size in self.places]
        fields[4] = ("o", self.vector(segments, "o"))
        return self.table(dict(sorted(fields.items(), reverse=True)))

    def blob(self, blob: bytes) -> int:
        return self.block(blob, len(blob), 1, _BLOB_ALIGNMENT)

    def segment(self, data: bytes) -> int:
        offset = sum(_align(len(segment), _SEGMENT_ALIGNMENT) for segment in self.segments)
        self.places.append((offset, len(data)))
        self.segments.append(data)
        return len(self.segments) - 1

    def contents(self, contents: Sequence[bytes | memoryview]) -> int:
        offsets, pieces, at = [], [], 0
        for data in contents:
            offsets.append(at)
            padded = bytes(data).ljust(_align(len(data), TENSOR_ALIGNMENT), b"\0")
            pieces.append(padded)
            at += len(padded)
        number = self.segment(b"".join(pieces)) if at else 0
        where = self.vector(offsets, "Q")
        return self.table({1: ("o", where), 0: ("I", number)})

    def method(self, method: Method) -> int:
        fields: Fields = {0: ("o", self.text(method.name))}
        if method.structure is not None:
            inputs, outputs = map(self.text, method.structure)
            fields[1] = ("o", self.table({0: ("o", inputs), 1: ("o", outputs)}))
        fields[2] = ("o", self.vector([self.value(value) for value in method.values], "o"))
        fields[3] = ("o", self.vector(method.inputs, "i"))
        fields[4] = ("o", self.vector(method.outputs, "i"))
        fields[5] = ("o", self.vector([self.chain(chain, method) for chain in method.chains], "o"))
        fields[6] = ("o", self.vector([self.operator(name) for name in method.operators], "o"))
        fields[7] = ("o", self.vector([self.delegate(delegate) for delegate in method.delegates], "o"))
        fields[8] = ("o", self.vector(method.memories, "q"))
        return self.table(dict(sorted(fields.items(), reverse=True)))

    def operator(self, name: str) -> int:
        base, _, overload = name.partition(".")
        texts = self.text(base), self.text(overload)
        return self.table({0: ("o", texts[0]), 1: ("o", texts[1])})

    def delegate(self, delegate: Delegate) -> int:
        if delegate.blob not in self.blobs:
            self.blobs.append(delegate.blob)
        reference = self.table({1: ("I", self.blobs.index(delegate.blob))})
        pairs = [(self.text(key), self.block(value, len(value), 1, 1)) for key, value in delegate.compile_specs]
        specs = self.vector([self.table({0: ("o", key), 1: ("o", value)}) for key, value in pairs], "o")
        name = self.text(delegate.id)
        return self.table({0: ("o", name), 1: ("o", reference), 2: ("o", specs)})

    # --- values -------------------------------------------------------------------------------------------------------

    def value(self, value: Value) -> int:
        if value.kind not in KINDS[1:]:
            raise ProgramError(f"cannot write a value of kind {value.kind!r}; expected one of {', '.join(KINDS[1:])}.")
        content = self.tensor(value) if value.kind == "tensor" else self.table(self.simple(value))
        return self.table({0: ("B", KINDS.index(value.kind)), 1: ("o", content)})

    def simple(self, value: Value) -> Fields:
        if value.kind in ("int", "bool", "double"):
            return {0: ({"int": "q", "bool": "?", "double": "d"}[value.kind], value.number)}
        if value.kind == "string":
            return {0: ("o", self.text(value.text))}
        if value.kind in ("double[]", "bool[]"):
            return {0: ("o", self.vector(value.numbers, "d" if value.kind == "double[]" else "?"))}
        if value.kind in ("int[]", "tensor[]", "tensor?[]"):
            return {0: ("o", self.vector(value.items, "q" if value.kind == "int[]" else "i"))}
        return {}

    def tensor(self, value: Value) -> int:
        if value.dtype not in _CODES:
            raise ProgramError(f"cannot write a tensor of dtype {value.dtype!r}; expected one of {', '.join(_CODES)}.")
        fields: Fields = {
            0: ("b", _CODES[value.dtype]),
            4: ("?", value.requires_grad),
            5: ("I", value.data),
            7: ("b", value.layout),
        }
        fields[8] = ("b", value.dynamism)
        fields[2] = ("o", self.vector(value.shape, "i"))
        fields[3] = ("o", self.vector(value.dim_order, "B"))
        if value.place is not None:
            memory, offset = value.place
            fields[6] = ("o", self.table({0: ("I", memory), 1: ("I", offset & 0xFFFFFFFF), 2: ("I", offset >> 32)}))
        if value.extra is not None:
            fields[9] = ("o", self.extra(value.extra))
        return self.table(fields)

    def extra(self, extra: Extra) -> int:
        fields: Fields = {0: ("Q", extra.segment), 2: ("b", extra.external), 3: ("b", extra.device[0]), 4: ("b", extra.device[1])}
        if extra.name is not None:
            fields[1] = ("o", self.text(extra.name))
        return self.table(fields)

    # --- instructions -------------------------------------------------------------------------------------------------

    def chain(self, chain: Chain, method: Method) -> int:
        numbers = {name: index for index, name in enumerate(method.operators)}
        steps = self.vector([self.instruction(step, numbers) for step in chain.instructions], "o")
        inputs, outputs = self.vector(chain.inputs, "i"), self.vector(chain.outputs, "i")
        return self.table({0: ("o", inputs), 1: ("o", outputs), 2: ("o", steps)})

    def instruction(self, step: Instruction, numbers: dict[str, int]) -> int:
        kind, fields = self.step(step, numbers)
        content = self.table(fields)
        return self.table({0: ("B", kind), 1: ("o", content)})

    def step(self, step: Instruction, numbers: dict[str, int]) -> tuple[int, Fields]:
        if isinstance(step, Call):
            args = self.vector(step.args, "i")
            if step.delegate is not None:
                return DELEGATE, {0: ("i", step.delegate), 1: ("o", args)}
            if step.operator not in numbers:
                raise ProgramError(f"an instruction calls {step.operator}, which is not one of the method's operators.")
            return KERNEL, {0: ("i", numbers[step.operator]), 1: ("o", args)}
        if isinstance(step, Move):
            return MOVE, {0: ("i", step.source), 1: ("i", step.target)}
        if isinstance(step, JumpFalse):
            return JUMP_FALSE, {0: ("i", step.condition), 1: ("i", step.to)}
        return FREE, {0: ("i", step.value)}
