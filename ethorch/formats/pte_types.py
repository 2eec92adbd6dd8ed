"""What a .pte holds: a program's methods, their values, instructions and delegates. ``pte`` reads it, ``pte_writer`` writes it.

Numbers follow executorch/schema/program.fbs of executorch 1.4 and 1.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from ethorch.formats.payload import DelegatePayload

#: ScalarType number -> torch's name, bytes (exir/_serialize/scalar_type.fbs).
DTYPES = {
    0: ("uint8", 1),
    1: ("int8", 1),
    2: ("int16", 2),
    3: ("int32", 4),
    4: ("int64", 8),
    5: ("float16", 2),
    6: ("float32", 4),
    7: ("float64", 8),
    8: ("complex32", 4),
    9: ("complex64", 8),
    10: ("complex128", 16),
    11: ("bool", 1),
    15: ("bfloat16", 2),
    27: ("uint16", 2),
    28: ("uint32", 4),
    29: ("uint64", 8),
}
#: Bytes of an element, by torch's name of its dtype.
ITEM_BYTES = dict(DTYPES.values())

#: Union members, in order: number -> kind of value.
KINDS = (
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
#: Members of the union of instructions.
KERNEL, DELEGATE, MOVE, JUMP_FALSE, FREE = range(1, 6)


@dataclass(frozen=True)
class Extra:
    """What few tensors have.

    Attributes:
        segment: which of the program's ``mutable`` the initial contents are in.
        name: the tensor's name in the user's module.
        external: whether its bytes are in another file, under that name.
        device: number of a kind of device and of a device of that kind; CPU is (0, 0).
    """

    segment: int = 0
    name: str | None = None
    external: bool = False
    device: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Value:
    """One entry of a method's value table.

    Attributes:
        kind: ``tensor``, ``int``, ``double``, ``bool``, ``string``, ``none``, or a list such as ``int[]``.
        dtype, shape, dim_order: of a tensor; ``dtype`` is torch's name of it.
        dynamism: 0, or 1 where a tensor's shape is an upper bound, or 2 where it is nothing.
        place: (number of a memory, byte in it) that the memory plan has for a tensor.
        data: where a tensor's bytes are in the file: the index among the program's ``constants``, or among ``mutable`` for a tensor
            that has a place too; 0 for no bytes.
        extra: see Extra.
        items: of a list of tensors, their indices in the value table; of a list of ints, those.
        number: of an int, bool or double.
        numbers: of a list of doubles or bools.
        text: of a string.
        requires_grad, layout: as the file has them; the runtime reads neither.
    """

    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    dim_order: tuple[int, ...] = ()
    dynamism: int = 0
    place: tuple[int, int] | None = None
    data: int = 0
    extra: Extra | None = None
    items: tuple[int, ...] = ()
    number: float = 0
    numbers: tuple[float, ...] = ()
    text: str = ""
    requires_grad: bool = False
    layout: int = 0

    @property
    def planned(self) -> bool:
        """Has the memory plan a place for the tensor?"""
        return self.place is not None

    @property
    def constant(self) -> bool:
        """Are a tensor's bytes, or its initial ones, in the file?"""
        return self.data > 0

    @property
    def nbytes(self) -> int:
        """Size of a tensor."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}" if self.kind == "tensor" else self.kind


@dataclass(frozen=True)
class Delegate:
    """A delegate.

    Attributes:
        id: whom it is for.
        blob: what it is given.
        compile_specs: what it was made with.
        named: the program's named data, which it may refer to.
    """

    id: str
    blob: bytes = field(repr=False)
    compile_specs: tuple[tuple[str, bytes], ...]
    named: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    @property
    def payload(self) -> DelegatePayload:
        """The blob of an Ethos-U delegate, read. PayloadError for anything malformed, and what no Ethos-U delegate is."""
        return DelegatePayload.unpack(self.blob, self.named)


@dataclass(frozen=True)
class Call:
    """An instruction that calls an operator (by full name) or a delegate (by number), with indices of its values."""

    operator: str
    delegate: int | None
    args: tuple[int, ...]


@dataclass(frozen=True)
class Move:
    """An instruction that lets one value stand for another; both are indices."""

    source: int
    target: int


@dataclass(frozen=True)
class JumpFalse:
    """An instruction that goes on at instruction ``to`` of its chain if the value ``condition`` is false."""

    condition: int
    to: int


@dataclass(frozen=True)
class Free:
    """An instruction that frees the memory of a value."""

    value: int


Instruction = Call | Move | JumpFalse | Free


@dataclass(frozen=True)
class Chain:
    """Instructions that run one after the other; what it takes and gives, as indices of values. No program of today fills those."""

    instructions: tuple[Instruction, ...]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Method:
    """One entry point. ``inputs`` and ``outputs`` are indices into ``values``.

    Attributes:
        memories: bytes of each memory that the plan has; the first is no memory and has 0.
        structure: how the inputs and the outputs nest, in the words of torch's pytree; None where the file does not say.
    """

    name: str
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[str, ...]
    delegates: tuple[Delegate, ...]
    chains: tuple[Chain, ...]
    memories: tuple[int, ...] = (0,)
    structure: tuple[str, str] | None = None

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of all chains in order."""
        return tuple(step for chain in self.chains for step in chain.instructions if isinstance(step, Call))


@dataclass(frozen=True)
class Program:
    """A .pte.

    Attributes:
        methods: by name.
        constants: contents of constant tensors; the first stands for none.
        mutable: for each such segment, the initial contents of mutable tensors; the first of each stands for none.
        named: contents that delegates find by name.
        version: of the schema.
    """

    methods: dict[str, Method]
    constants: tuple[bytes | memoryview, ...] = field(default=(b"",), repr=False)
    mutable: tuple[tuple[bytes | memoryview, ...], ...] = field(default=(), repr=False)
    named: dict[str, bytes] = field(default_factory=dict, repr=False)
    version: int = 0
