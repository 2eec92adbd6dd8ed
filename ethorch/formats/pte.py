"""Read untrusted .pte files without ExecuTorch. Every offset and index is checked before use.

Field numbers are those of executorch/schema/program.fbs in ExecuTorch 1.4 (file identifier ET12).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path

from ethorch.formats.flatbuffer import Buffer, Table
from ethorch.formats.pte_types import (
    DELEGATE,
    DTYPES,
    FREE,
    JUMP_FALSE,
    KERNEL,
    KINDS,
    MOVE,
    VIEW,
    Call,
    Chain,
    Delegate,
    Extra,
    Free,
    Instruction,
    JumpFalse,
    Method,
    Move,
    Program,
    Value,
)
from ethorch.support.errors import ProgramError, SpecError
from ethorch.support.wording import did_you_mean

IDENTIFIER = b"ET12"
_BUNDLED = b"BP08"
EXTENDED_MAGIC = b"eh00"  #: extended header of runtime/executor, with the end of the flatbuffer and the start of segments

# Larger than any real program. Limits the parsing time of files with overlapping vectors.
_MAX_ITEMS = 20_000_000
MAX_PLANNED_BYTES = 2**31  # the runtime allocates and clears planned memory; NPU systems have a thousandth of this


def read(data: bytes) -> Program:
    """Parse and check a .pte. Raise ProgramError if it is malformed."""
    return _Reader(data).program()


def contents(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a .pte. Raise ProgramError, with the file name, if the file is unreadable or malformed."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ProgramError(f"cannot read {os.fspath(path)}: {error.strerror}.") from None
    try:
        read(data)
    except ProgramError as error:
        raise ProgramError(f"{os.fspath(path)}: {error}") from None
    return data


def entry_point(program: Program, method: str | None = None) -> str:
    """Return ``method``. Default: ``forward``, or the first non-constant method if ``forward`` does not exist.

    Raises:
        SpecError: The method does not exist.
    """
    entries = [name for name, candidate in program.methods.items() if not is_figure(candidate)]
    if method is None and entries:
        return "forward" if "forward" in entries else entries[0]
    if method not in entries:
        raise SpecError(
            f"the program has no method {method!r}; it has {', '.join(map(repr, entries))}.{did_you_mean(method or '', entries)}"
            if entries
            else "the program has no method to run, because its methods have no inputs and only return constants. "
            "Use the constants in the application, or compile a model whose outputs depend on an input."
        )
    return method


def is_figure(method: Method) -> bool:
    """Return True if a method only returns a constant."""
    return not method.inputs and not method.calls and not method.delegates


class _Reader(Buffer):
    def __init__(self, data: bytes):
        super().__init__(memoryview(data), _MAX_ITEMS)
        self.file = self.data
        self.segment_base = 0
        self.segments: list[memoryview] = []
        self.named: dict[str, bytes] = {}

    def error(self, what: str, problem: str) -> ProgramError:
        return ProgramError(f"{what} {problem}; the .pte is damaged or was not written by ExecuTorch.")

    def program(self) -> Program:
        if len(self.file) < 8 or bytes(self.file[4:8]) != IDENTIFIER:
            found = bytes(self.file[4:8])
            source = "the .pte of the bundled program" if found == _BUNDLED else "a .pte, or a folder written by Program.save"
            raise ProgramError(
                f"bytes 4 to 7 of the file are {found!r}; expected {IDENTIFIER!r}, the identifier of a .pte. Pass {source}."
            )
        if bytes(self.file[8:12]) == EXTENDED_MAGIC:
            self._read_extended_header()
        root = Table(self, self.number("<I", 0, "program"), "program")
        self.segments = list(self._segments(root))
        entries = root.tables(7, "named data", optional=True)
        self.named = {entry.text(0, entry.what): self._segment(entry.number(1, "<I"), entry.what) for entry in entries}
        methods: dict[str, Method] = {}
        for plan in root.tables(1, "execution plan"):
            method = self._method(root, plan)
            if method.name in methods:
                raise self.error(f"method {method.name!r}", "occurs twice")
            methods[method.name] = method
        if not methods:
            raise self.error("the program", "has no method")
        tensors = [v for method in methods.values() for v in method.values if v.data and not (v.extra and v.extra.external)]
        mutable = tuple(
            self._contents(entry, [v for v in tensors if v.planned and (v.extra.segment if v.extra else 0) == number])
            for number, entry in enumerate(root.tables(6, "mutable data", optional=True))
        )
        for value in tensors:
            if value.planned and (value.extra.segment if value.extra else 0) >= len(mutable):
                raise self.error(f"tensor {value}", "has its initial value in mutable data that does not exist")
        constants = self._constants(root, [v for v in tensors if not v.planned])
        return Program(methods, constants, mutable, self.named, root.number(0, "<I"))

    def _read_extended_header(self) -> None:
        self.check(8, 24, "extended header")
        length, program_bytes, self.segment_base = struct.unpack_from("<IQQ", self.file, 12)
        if length < 24 or not 32 <= program_bytes <= len(self.file):
            raise self.error("extended header", f"({length} bytes) declares a program of {program_bytes} bytes")
        if self.segment_base > len(self.file) or (self.segment_base and self.segment_base < program_bytes):
            raise self.error("extended header", f"locates segments at byte {self.segment_base} of {len(self.file)}")
        if length >= 32:
            segment_bytes = self.number("<Q", 32, "extended header")
            if self.segment_base + segment_bytes > len(self.file):
                end = self.segment_base + segment_bytes
                raise ProgramError(f"the .pte is truncated: it has {len(self.file)} bytes, but its segments end at byte {end}.")
        self.data = self.file[:program_bytes]

    def _segments(self, root: Table) -> Iterator[memoryview]:
        for segment in root.tables(4, "segment", optional=True):
            offset, size = segment.number(0, "<Q"), segment.number(1, "<Q")
            start = self.segment_base + offset
            if (size and not self.segment_base) or start + size > len(self.file):
                raise self.error(segment.what, f"({size} bytes at offset {offset}) exceeds the file")
            yield self.file[start : start + size]

    def _segment(self, index: int, what: str) -> bytes:
        return bytes(self.segments[self._index(index, len(self.segments), what, "segment")])

    def _constants(self, root: Table, tensors: list[Value]) -> tuple[bytes | memoryview, ...]:
        # Before ExecuTorch 0.4, constants were stored in the flatbuffer.
        if root.has(2) and root.length(2, "constant buffer"):
            return (b"", *(entry.blob(0, entry.what) for entry in list(root.tables(2, "constant buffer"))[1:]))
        entry = root.table(5, "constant segment")
        if entry is None:
            if tensors:
                raise self.error(f"tensor {tensors[0]}", "is constant in a program without constants")
            return (b"",)
        return self._contents(entry, tensors)

    def _contents(self, entry: Table, tensors: list[Value]) -> tuple[bytes | memoryview, ...]:
        offsets = entry.numbers(1, "Q", f"{entry.what} offsets")
        sizes = dict.fromkeys(range(1, len(offsets)), 0)
        for value in tensors:
            index = self._index(value.data, max(len(offsets), 1), f"tensor {value}", "contents")
            sizes[index] = max(sizes[index], value.nbytes)
        if not any(sizes.values()):
            return (b"",) * max(len(offsets), 1)
        segment = self.segments[self._index(entry.number(0, "<I"), len(self.segments), entry.what, "segment")]
        contents: list[bytes | memoryview] = [b""]
        for index, size in sizes.items():
            if offsets[index] + size > len(segment):
                raise self.error(entry.what, f"locates {size} bytes at {offsets[index]} of a segment of {len(segment)} bytes")
            contents.append(segment[offsets[index] : offsets[index] + size])  # not copied, because many may overlap
        return tuple(contents)

    def _method(self, root: Table, plan: Table) -> Method:
        name = plan.text(0, "method name")
        what = f"method {name!r}"
        buffers = plan.numbers(8, "q", f"{what} buffer sizes")
        if any(size < 0 for size in buffers) or sum(buffers) > MAX_PLANNED_BYTES:
            raise self.error(what, f"plans memory of {list(buffers)} bytes")
        values = tuple(self._value(entry, buffers) for entry in plan.tables(2, f"{what} value"))
        for index, value in enumerate(values):
            for item in value.items:
                if not (0 <= item < len(values)) and not (item == -1 and value.kind == "tensor?[]"):
                    raise self.error(f"{what} value {index}", f"refers to value {item} of {len(values)}")
        operators = tuple(
            op.text(0, "operator name") + ("." + overload if (overload := op.text(1, "operator overload")) else "")
            for op in plan.tables(6, f"{what} operator")
        )
        delegates = tuple(self._delegate(root, entry) for entry in plan.tables(7, f"{what} delegate"))
        ends = []
        for number, kind in ((3, "input"), (4, "output")):
            indices = plan.numbers(number, "i", f"{what} {kind}s")
            for index in indices:
                self._index(index, len(values), f"{what} {kind}", "value")
            ends.append(indices)
        chains = tuple(self._chains(plan, what, values, operators, delegates))
        assigned = {*ends[0], *ends[1], *(step.target for chain in chains for step in chain.instructions if isinstance(step, Move))}
        container = plan.table(1, f"{what} structure")
        described = container is not None and container.has(0) and container.has(1)
        structure = (container.text(0, what), container.text(1, what)) if container is not None and described else None
        method = Method(name, values, ends[0], ends[1], operators, delegates, chains, buffers, structure)
        assigned.update(call.args[-1] for call in method.calls if call.operator == VIEW and call.args)
        for call in method.calls:
            for arg in call.args:
                for index in (arg, *(item for item in values[arg].items if values[arg].kind.startswith("tensor"))):
                    used = values[index] if index >= 0 else Value("none")
                    if used.kind == "tensor" and all(used.shape) and not (used.planned or used.constant or index in assigned):
                        raise self.error(f"{what} value {index}", f"({used}) is used, but has no memory")
        return method

    def _index(self, index: int, count: int, what: str, kind: str) -> int:
        if not 0 <= index < count:
            raise self.error(what, f"refers to {kind} {index} of {count}")
        return index

    def _value(self, entry: Table, buffers: tuple[int, ...]) -> Value:
        number = entry.number(0, "<B")
        if not 1 <= number < len(KINDS):
            raise self.error(entry.what, f"is of unknown type {number}")
        kind = KINDS[number]
        table = entry.require_table(1, entry.what)
        if kind == "tensor":
            return self._tensor(table, buffers)
        if kind in ("tensor[]", "tensor?[]", "int[]"):
            form = "q" if kind == "int[]" else "i"
            return Value(kind, items=table.numbers(0, form, entry.what))
        if kind in ("int", "bool"):
            return Value(kind, number=table.number(0, "<q" if kind == "int" else "<?"))
        if kind == "double":
            return Value(kind, number=table.double(0))
        if kind in ("double[]", "bool[]"):
            return Value(kind, numbers=table.numbers(0, "d" if kind == "double[]" else "?", entry.what))
        return Value(kind, text=table.text(0, entry.what)) if kind == "string" else Value(kind)

    def _tensor(self, table: Table, buffers: tuple[int, ...]) -> Value:
        what = table.what
        code = table.number(0, "<b")
        dtype, item_bytes = DTYPES.get(code, (f"ScalarType {code}", 0))
        shape = table.numbers(2, "i", f"{what} shape")
        order = table.numbers(3, "B", f"{what} dim order")
        if any(size < 0 for size in shape) or len(shape) > 16:
            raise self.error(what, f"has shape {list(shape)}")
        if sorted(order) != list(range(len(shape))):
            raise self.error(what, f"has dim order {list(order)} for {len(shape)} dimensions")
        if not item_bytes:
            raise self.error(what, f"has {dtype}, which is not supported")
        nbytes = prod(shape) * item_bytes
        if nbytes > MAX_PLANNED_BYTES:
            raise self.error(what, f"of shape {list(shape)} has {nbytes} bytes, more than {MAX_PLANNED_BYTES}")
        if table.number(1, "<i"):
            raise self.error(what, "has a storage offset, which the runtime does not support")
        dynamism = table.number(8, "<b")
        if dynamism not in (0, 1, 2):
            raise self.error(what, f"has shape dynamism {dynamism}")
        allocation, place = table.table(6, f"{what} allocation"), None
        if allocation is not None:
            memory = allocation.number(0, "<I")
            offset = allocation.number(1, "<I") | allocation.number(2, "<I") << 32
            if not 1 <= memory < len(buffers) or offset + nbytes > buffers[memory]:
                raise self.error(
                    what, f"is planned at byte {offset} of memory {memory}, outside the memories of {list(buffers)} bytes"
                )
            place = (memory, offset)
        value = Value("tensor", dtype, shape, order, dynamism, place, table.number(5, "<I"), self._extra(table))
        return replace(value, requires_grad=bool(table.number(4, "<?")), layout=table.number(7, "<b"))

    def _extra(self, table: Table) -> Extra | None:
        entry = table.table(9, f"{table.what} extra information")
        if entry is None:
            return None
        name = entry.text(1, entry.what) if entry.has(1) else None
        return Extra(entry.number(0, "<Q"), name, entry.number(2, "<b") == 1, (entry.number(3, "<b"), entry.number(4, "<b")))

    def _delegate(self, root: Table, entry: Table) -> Delegate:
        name = entry.text(0, f"{entry.what} id")
        processed = entry.require_table(1, f"{entry.what} data")
        index = processed.number(1, "<I")
        if processed.number(0, "<b"):
            blob = self._segment(index, processed.what)
        else:
            for number, inline in enumerate(root.tables(3, "delegate data", optional=True)):
                if number == index:
                    blob = inline.blob(0, inline.what)
                    break
            else:
                raise self.error(processed.what, f"refers to inline data {index}, which does not exist")
        specs = entry.tables(2, f"{entry.what} compile spec")
        return Delegate(name, blob, tuple((spec.text(0, spec.what), spec.blob(1, spec.what)) for spec in specs), self.named)

    def _chains(
        self, plan: Table, what: str, values: tuple[Value, ...], operators: tuple[str, ...], delegates: tuple[Delegate, ...]
    ) -> Iterator[Chain]:
        for chain in plan.tables(5, f"{what} chain"):
            count = chain.length(2, f"{what} instructions")
            body: list[Instruction] = []
            for entry in chain.tables(2, f"{what} instruction"):
                step = self._instruction(entry, values, operators, delegates)
                if isinstance(step, JumpFalse):
                    self._index(step.to, count + 1, entry.what, "instruction")
                    if values[step.condition].kind not in ("bool", "tensor"):
                        raise self.error(entry.what, f"jumps on {values[step.condition]}, which is neither a bool nor a tensor")
                    if step.to <= len(body) and not _counts(body[step.to :], step.condition):
                        raise self.error(entry.what, f"jumps back to instruction {step.to} without counting, so it may never end")
                body.append(step)
            ends = [chain.numbers(number, "i", chain.what) if chain.has(number) else () for number in (0, 1)]
            yield Chain(tuple(body), *ends)

    def _instruction(
        self, entry: Table, values: tuple[Value, ...], operators: tuple[str, ...], delegates: tuple[Delegate, ...]
    ) -> Instruction:
        kind, table = entry.number(0, "<B"), entry.require_table(1, entry.what)

        def value(index: int) -> int:
            return self._index(index, len(values), table.what, "value")

        if kind in (KERNEL, DELEGATE):
            args = tuple(map(value, table.numbers(1, "i", table.what)))
            number = table.number(0, "<i")
            if kind == KERNEL:
                return Call(operators[self._index(number, len(operators), table.what, "operator")], None, args)
            return Call("", self._index(number, len(delegates), table.what, "delegate"), args)
        if kind == MOVE:
            return Move(value(table.number(0, "<i")), value(table.number(1, "<i")))
        if kind == JUMP_FALSE:
            return JumpFalse(value(table.number(0, "<i")), table.number(1, "<i"))
        if kind == FREE:
            return Free(value(table.number(0, "<i")))
        raise self.error(entry.what, f"is of unknown type {kind}")


def _counts(loop: list[Instruction], condition: int) -> bool:
    # exir/emit/_emitter.py emits loops only for map and scan, which increment the value that the condition compares.
    calls = [step for step in loop if isinstance(step, Call)]
    compared = {
        arg for call in calls if call.operator.startswith("executorch_prim::eq") and condition in call.args for arg in call.args
    } - {condition}
    return any(call.operator.startswith("executorch_prim::add") and compared & set(call.args) for call in calls)
