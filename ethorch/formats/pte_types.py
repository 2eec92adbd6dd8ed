"""Data types for the contents of a .pte, used by ``pte`` and ``pte_writer``.

Enum values are those of executorch/schema/program.fbs in ExecuTorch 1.4 and 1.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from ethorch.formats.payload import DelegatePayload

#: ScalarType number -> Torch dtype name and bytes per element (exir/_serialize/scalar_type.fbs).
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
#: Torch dtype name -> bytes per element.
ITEM_BYTES = dict(DTYPES.values())

#: Operator whose output shares the address of its input.
VIEW = "executorch_prim::et_view.default"
#: Members of the value union, in order.
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
#: Members of the instruction union, in order.
KERNEL, DELEGATE, MOVE, JUMP_FALSE, FREE = range(1, 6)


@dataclass(frozen=True)
class Extra:
    """The rarely used properties of a tensor.

    Attributes:
        segment: Index in ``Program.mutable`` of the segment that contains the initial value.
        name: Qualified name in the user's module.
        external: Whether the bytes are stored in another file, under ``name``.
        device: Device type and index. CPU is (0, 0).
    """

    segment: int = 0
    name: str | None = None
    external: bool = False
    device: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Value:
    """An entry of a method's value table."""

    kind: str  # ``tensor``, ``int``, ``double``, ``bool``, ``string``, ``none``, or a list such as ``int[]``
    dtype: str = ""  # Torch name of a tensor's type
    shape: tuple[int, ...] = ()
    dim_order: tuple[int, ...] = ()
    dynamism: int = 0  # 0 for a static shape, 1 if the shape is an upper bound, 2 if it is unbounded
    place: tuple[int, int] | None = None  # memory and byte offset of a planned tensor
    # Index of the bytes in ``Program.constants``, or in a segment of ``Program.mutable`` for planned tensors. 0 means none.
    data: int = 0
    extra: Extra | None = None
    items: tuple[int, ...] = ()  # value indices of a list of tensors, or the elements of a list of ints
    number: float = 0  # value of an int, bool or double
    numbers: tuple[float, ...] = ()  # elements of a list of doubles or bools
    text: str = ""
    requires_grad: bool = False  # ignored by the runtime
    layout: int = 0  # ignored by the runtime

    @property
    def scalar(self) -> float | None:
        """The value of an int, bool or double, or None for other kinds."""
        kind = {"int": int, "double": float, "bool": bool}.get(self.kind)
        return None if kind is None else kind(self.number)

    @property
    def planned(self) -> bool:
        return self.place is not None

    @property
    def constant(self) -> bool:
        """True if the tensor has stored bytes or an initial value."""
        return self.data > 0

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}" if self.kind == "tensor" else self.kind


@dataclass(frozen=True)
class Delegate:
    """A delegate of a program.

    Attributes:
        id: Name of the backend.
        named: Named data of the program, which the blob can reference.
    """

    id: str
    blob: bytes = field(repr=False)
    compile_specs: tuple[tuple[str, bytes], ...]
    named: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    @property
    def payload(self) -> DelegatePayload:
        """The parsed blob of an Ethos-U delegate. Raises PayloadError if the blob is not a valid payload."""
        return DelegatePayload.unpack(self.blob, self.named)


@dataclass(frozen=True)
class Call:
    """An instruction that calls an operator by its full name, or a delegate by its index. ``args`` are value indices."""

    operator: str
    delegate: int | None
    args: tuple[int, ...]


@dataclass(frozen=True)
class Move:
    """An instruction that assigns value ``source`` to value ``target``."""

    source: int
    target: int


@dataclass(frozen=True)
class JumpFalse:
    """An instruction that jumps to instruction ``to`` of its chain if the value ``condition`` is false."""

    condition: int
    to: int


@dataclass(frozen=True)
class Free:
    """An instruction that frees the memory of a value."""

    value: int


Instruction = Call | Move | JumpFalse | Free


@dataclass(frozen=True)
class Chain:
    """A sequence of instructions. ``inputs`` and ``outputs`` are value indices. Both are empty in current programs."""

    instructions: tuple[Instruction, ...]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Method:
    """An entry point. ``inputs`` and ``outputs`` are indices into ``values``.

    Attributes:
        memories: Size in bytes of each planned memory. Memory 0 is unused and has size 0.
        structure: Nesting of the inputs and outputs in torch's pytree format, or None if not recorded.
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
        """The calls of all chains, in order."""
        return tuple(step for chain in self.chains for step in chain.instructions if isinstance(step, Call))


@dataclass(frozen=True)
class Program:
    """The contents of a .pte.

    Attributes:
        constants: Bytes of each constant tensor. Tensors without stored bytes use index 0.
        mutable: Segments with initial values of mutable tensors. Tensors without an initial value use index 0.
        named: Data that delegates reference, keyed by name.
    """

    methods: dict[str, Method]
    constants: tuple[bytes | memoryview, ...] = field(default=(b"",), repr=False)
    mutable: tuple[tuple[bytes | memoryview, ...], ...] = field(default=(), repr=False)
    named: dict[str, bytes] = field(default_factory=dict, repr=False)
    version: int = 0
