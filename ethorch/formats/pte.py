"""Reads ExecuTorch's .pte without ExecuTorch: methods, inputs, outputs, operators, delegates.

The file comes from outside, so every offset is checked before it is followed and every index before it is used; what
ExecuTorch's own verification leaves unchecked, and would crash on, is checked here. ProgramError names the place.

Field numbers follow executorch/schema/program.fbs of executorch 1.4 (file identifier ET12).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from ethorch.errors import ProgramError
from ethorch.formats.flatbuffer import Buffer, Table

IDENTIFIER = b"ET12"
_EXTENDED_MAGIC = b"eh00"  # runtime/executor's extended header: where the flatbuffer ends and segments begin

# ScalarType number -> torch's name, bytes (exir/_serialize/scalar_type.fbs).
_DTYPES = {
    0: ("uint8", 1),
    1: ("int8", 1),
    2: ("int16", 2),
    3: ("int32", 4),
    4: ("int64", 8),
    5: ("float16", 2),
    6: ("float32", 4),
    7: ("float64", 8),
    11: ("bool", 1),
    15: ("bfloat16", 2),
    27: ("uint16", 2),
    28: ("uint32", 4),
    29: ("uint64", 8),
}
# Union members, in order: number -> kind of value.
_KINDS = (
    "missing",
    "none",
    "int",
    "bool",
    "double",
    "tensor",
    "string",
    "int[]",
    "double[]",
    "bool[]",
    "tensor[]",
    "tensor?[]",
)
_KERNEL, _DELEGATE, _MOVE, _JUMP_FALSE, _FREE = range(1, 6)

# More than any real program has: bounds the time a file of vectors that all overlap can take.
_MAX_ITEMS = 20_000_000
MAX_PLANNED_BYTES = 2**31  # the runtime allocates and clears the plan; NPU systems have a thousandth of this


@dataclass(frozen=True)
class Value:
    """One entry of a method's value table.

    Attributes:
        kind: ``tensor``, ``int``, ``double``, ``bool``, ``string``, ``none``, or a list such as ``int[]``.
        dtype, shape, dim_order: of a tensor; ``dtype`` is torch's name of it.
        dynamic: whether a tensor's shape is only an upper bound.
        planned: whether the memory plan has a place for a tensor.
        constant: whether a tensor's bytes are in the file.
        items: of a list of tensors, their indices in the value table.
        number: of an int, bool or double.
    """

    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    dim_order: tuple[int, ...] = ()
    dynamic: bool = False
    planned: bool = False
    constant: bool = False
    items: tuple[int, ...] = ()
    number: float = 0

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}" if self.kind == "tensor" else self.kind


@dataclass(frozen=True)
class Delegate:
    """A delegate: whom it is for, its blob, and the compile specs it was made with."""

    id: str
    blob: bytes = field(repr=False)
    compile_specs: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Call:
    """An instruction that calls an operator (by full name) or a delegate (by number), with indices of its values."""

    operator: str
    delegate: int | None
    args: tuple[int, ...]


@dataclass(frozen=True)
class Method:
    """One entry point. ``inputs`` and ``outputs`` are indices into ``values``."""

    name: str
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[str, ...]
    delegates: tuple[Delegate, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Program:
    """A .pte: its methods by name."""

    methods: dict[str, Method]


def read(data: bytes) -> Program:
    """Parse and check a .pte; ProgramError for anything malformed."""
    return _Reader(data).program()


class _Reader(Buffer):
    def __init__(self, data: bytes):
        super().__init__(memoryview(data), _MAX_ITEMS)
        self.file = self.data
        self.segment_base = 0

    def error(self, what: str, problem: str) -> ProgramError:
        return ProgramError(f"{what} {problem}; the .pte is damaged or was not made by ExecuTorch.")

    def program(self) -> Program:
        if len(self.file) < 8 or bytes(self.file[4:8]) != IDENTIFIER:
            raise ProgramError(f"this is no .pte of ExecuTorch: bytes 4 to 8 are {bytes(self.file[4:8])!r}, not {IDENTIFIER!r}.")
        if bytes(self.file[8:12]) == _EXTENDED_MAGIC:
            self._extended_header()
        root = Table(self, self.number("<I", 0, "program"), "program")
        self._check_segments(root)
        methods: dict[str, Method] = {}
        for plan in root.tables(1, "execution plan"):
            method = self._method(root, plan)
            if method.name in methods:
                raise self.error(f"method {method.name!r}", "occurs twice")
            methods[method.name] = method
        if not methods:
            raise self.error("the program", "has no method")
        return Program(methods)

    def _extended_header(self) -> None:
        self.check(8, 24, "extended header")
        length, program_bytes, self.segment_base = struct.unpack_from("<IQQ", self.file, 12)
        if length < 24 or not 32 <= program_bytes <= len(self.file):
            raise self.error("extended header", f"({length} bytes) claims a program of {program_bytes} bytes")
        if self.segment_base > len(self.file) or (self.segment_base and self.segment_base < program_bytes):
            raise self.error("extended header", f"puts segments at byte {self.segment_base} of {len(self.file)}")
        if length >= 32:
            segment_bytes = self.number("<Q", 32, "extended header")
            if self.segment_base + segment_bytes > len(self.file):
                end = self.segment_base + segment_bytes
                raise ProgramError(f"the .pte is truncated: it has {len(self.file)} bytes, its segments end at {end}.")
        self.data = self.file[:program_bytes]

    def _check_segments(self, root: Table) -> None:
        for segment in root.tables(4, "segment", optional=True):
            offset, size = segment.number(0, "<Q"), segment.number(1, "<Q")
            if (size and not self.segment_base) or self.segment_base + offset + size > len(self.file):
                raise self.error(segment.what, f"({size} bytes at {offset}) lies outside the file")

    def _segment(self, root: Table, index: int, what: str) -> bytes:
        for number, segment in enumerate(root.tables(4, "segment", optional=True)):
            if number == index:
                start = self.segment_base + segment.number(0, "<Q")
                return bytes(self.file[start : start + segment.number(1, "<Q")])
        raise self.error(what, f"refers to segment {index}, which is not there")

    def _method(self, root: Table, plan: Table) -> Method:
        name = plan.text(0, "method name")
        what = f"method {name!r}"
        buffers = plan.numbers(8, "q", f"{what} buffer sizes")
        if any(size < 0 for size in buffers) or sum(buffers) > MAX_PLANNED_BYTES:
            raise self.error(what, f"plans memory of {list(buffers)} bytes")
        values = tuple(self._value(root, entry, buffers) for entry in plan.tables(2, f"{what} value"))
        for index, value in enumerate(values):
            for item in value.items:
                if not (0 <= item < len(values)) and not (item == -1 and value.kind == "tensor?[]"):
                    raise self.error(f"{what} value {index}", f"lists value {item} of {len(values)}")
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
        moved: set[int] = set()
        calls = tuple(self._calls(plan, what, values, operators, delegates, moved))
        given = {*ends[0], *ends[1], *moved}
        for call in calls:
            for arg in call.args:
                for index in (arg, *(item for item in values[arg].items if values[arg].kind.startswith("tensor"))):
                    value = values[index] if index >= 0 else Value("none")
                    if value.kind == "tensor" and not (value.planned or value.constant or index in given):
                        raise self.error(f"{what} value {index}", f"({value}) is used, but has no memory")
        return Method(name, values, ends[0], ends[1], operators, delegates, calls)

    def _index(self, index: int, count: int, what: str, kind: str) -> int:
        if not 0 <= index < count:
            raise self.error(what, f"refers to {kind} {index} of {count}")
        return index

    def _value(self, root: Table, entry: Table, buffers: tuple[int, ...]) -> Value:
        number = entry.number(0, "<B")
        if not 1 <= number < len(_KINDS):
            raise self.error(entry.what, f"is of unknown type {number}")
        kind = _KINDS[number]
        table = entry.required(1, entry.what)
        if kind == "tensor":
            return self._tensor(table, buffers)
        if kind in ("tensor[]", "tensor?[]", "int[]"):
            form = "q" if kind == "int[]" else "i"
            return Value(kind, items=table.numbers(0, form, entry.what))
        if kind in ("int", "bool"):
            return Value(kind, number=table.number(0, "<q" if kind == "int" else "<?"))
        if kind == "double":
            return Value(kind, number=table.double(0))
        return Value(kind)

    def _tensor(self, table: Table, buffers: tuple[int, ...]) -> Value:
        what = table.what
        code = table.number(0, "<b")
        dtype, item_bytes = _DTYPES.get(code, (f"ScalarType {code}", 0))
        shape = table.numbers(2, "i", f"{what} shape")
        order = table.numbers(3, "B", f"{what} dim order")
        if any(size < 0 for size in shape) or len(shape) > 16:
            raise self.error(what, f"has shape {list(shape)}")
        if sorted(order) != list(range(len(shape))):
            raise self.error(what, f"has dim order {list(order)} for {len(shape)} dimensions")
        if not item_bytes:
            raise self.error(what, f"has {dtype}, which no kernel here knows")
        nbytes = prod(shape) * item_bytes
        if nbytes > MAX_PLANNED_BYTES:
            raise self.error(what, f"of shape {list(shape)} has {nbytes} bytes")
        if table.number(1, "<i"):
            raise self.error(what, "has a storage offset, which the runtime does not support")
        dynamism = table.number(8, "<b")
        if dynamism not in (0, 1, 2):
            raise self.error(what, f"has shape dynamism {dynamism}")
        allocation = table.table(6, f"{what} allocation")
        if allocation is not None:
            memory = allocation.number(0, "<I")
            offset = allocation.number(1, "<I") | allocation.number(2, "<I") << 32
            if not 1 <= memory < len(buffers) or offset + nbytes > buffers[memory]:
                raise self.error(what, f"is planned at byte {offset} of memory {memory}, outside of {list(buffers)}")
        constant = bool(table.number(5, "<I"))
        return Value("tensor", dtype, shape, order, bool(dynamism), allocation is not None, constant)

    def _delegate(self, root: Table, entry: Table) -> Delegate:
        name = entry.text(0, f"{entry.what} id")
        processed = entry.required(1, f"{entry.what} data")
        index = processed.number(1, "<I")
        if processed.number(0, "<b"):
            blob = self._segment(root, index, processed.what)
        else:
            for number, inline in enumerate(root.tables(3, "delegate data", optional=True)):
                if number == index:
                    blob = inline.blob(0, inline.what)
                    break
            else:
                raise self.error(processed.what, f"refers to inline data {index}, which is not there")
        specs = entry.tables(2, f"{entry.what} compile spec")
        return Delegate(name, blob, tuple((spec.text(0, spec.what), spec.blob(1, spec.what)) for spec in specs))

    def _calls(
        self,
        plan: Table,
        what: str,
        values: tuple[Value, ...],
        operators: tuple[str, ...],
        delegates: tuple[Delegate, ...],
        moved: set[int],
    ) -> Iterator[Call]:
        """The calls of a method in order; ``moved`` collects the values that another one is moved into."""
        for chain in plan.tables(5, f"{what} chain"):
            count = chain.length(2, f"{what} instructions")
            body: list[Call | None] = []  # the chain so far
            for instruction in chain.tables(2, f"{what} instruction"):
                body.append(None)
                kind, args = instruction.number(0, "<B"), instruction.required(1, instruction.what)
                if kind in (_KERNEL, _DELEGATE):
                    indices = args.numbers(1, "i", args.what)
                    for index in indices:
                        self._index(index, len(values), args.what, "value")
                    number = args.number(0, "<i")
                    if kind == _KERNEL:
                        name = operators[self._index(number, len(operators), args.what, "operator")]
                        call = Call(name, None, indices)
                    else:
                        call = Call("", self._index(number, len(delegates), args.what, "delegate"), indices)
                    body[-1] = call
                    yield call
                elif kind in (_MOVE, _FREE):
                    for number in range(2 if kind == _MOVE else 1):
                        self._index(args.number(number, "<i"), len(values), args.what, "value")
                    if kind == _MOVE:
                        moved.add(args.number(1, "<i"))
                elif kind == _JUMP_FALSE:
                    condition = self._index(args.number(0, "<i"), len(values), args.what, "value")
                    to = self._index(args.number(1, "<i"), count + 1, args.what, "instruction")
                    if values[condition].kind not in ("bool", "tensor"):
                        raise self.error(args.what, f"jumps on {values[condition]}")
                    if to < len(body) and not _counts(body[to:], condition):
                        raise self.error(args.what, f"jumps back to instruction {to} without counting: it may never end")
                else:
                    raise self.error(instruction.what, f"is of unknown type {kind}")


def _counts(loop: list[Call | None], condition: int) -> bool:
    """Whether a loop ends by counting, as all that ExecuTorch emits do: its condition compares what it adds to.

    exir/emit/_emitter.py makes loops only for map and scan, with executorch_prim::add and executorch_prim::eq.
    """
    calls = [call for call in loop if call is not None]
    compared = {
        arg for call in calls if call.operator.startswith("executorch_prim::eq") and condition in call.args for arg in call.args
    } - {condition}
    return any(call.operator.startswith("executorch_prim::add") and compared & set(call.args) for call in calls)
