"""What a plan is made of: places of tensors, steps, the boundary of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ethorch.figures.persistent_buffers import Reads
from ethorch.formats.payload import DelegatePayload
from ethorch.formats.pte_types import Method, Program

TENSORS, ARENA, CONSTANTS = "tensors", "arena", "constants"
ALIGNMENT = 16


def align(size: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of an alignment."""
    return -(-size // alignment) * alignment


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: a buffer of the firmware, and the first byte in it."""

    buffer: str
    offset: int


@dataclass(frozen=True)
class Copied:
    """Bytes that go from one place to another around a delegate's run, or instead of an operator."""

    source: Place
    target: Place
    nbytes: int


@dataclass(frozen=True)
class Kernel:
    """A call of an operator on the CPU: its number among the instructions, its name, its values."""

    number: int
    operator: str
    args: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """A run of a delegate: which one; what is copied into the NPU's memory before it, and out of it after it."""

    number: int
    delegate: int
    before: tuple[Copied, ...]
    after: tuple[Copied, ...]


@dataclass(frozen=True)
class Codes:
    """The codes of a float input or output: the value in the program that holds them, and what they mean."""

    index: int
    scale: float
    zero_point: int


@dataclass(frozen=True)
class Boundary:
    """An input or output of the model.

    Attributes:
        index: of its value in the method.
        codes: of floats that the firmware converts at its boundary, the codes; None where there are none.
    """

    side: str
    number: int
    index: int
    codes: Codes | None

    @property
    def title(self) -> str:
        """``input 0``."""
        return f"{self.side} {self.number}"


Step = Kernel | Run | Copied


class Constants:
    """Contents of constant tensors one after the other, each 16-aligned; several methods of a program share them."""

    def __init__(self, program: Program):
        self.program, self.data = program, b""
        self._known: dict[int, int] = {}

    def offset(self, number: int) -> int:
        """Where the program's constant of this number lies."""
        if number not in self._known:
            self._known[number] = len(self.data)
            content = bytes(self.program.constants[number])
            self.data += content + bytes(align(len(content)) - len(content))
        return self._known[number]


@dataclass(frozen=True)
class Bases:
    """Where firmware has the memories of a method that shares its buffers with others.

    Attributes:
        own: the first byte of memory 1, which is the method's own, in the CPU's buffer.
        shared: where memories 2, 3, ... begin, which hold what is kept from call to call.
        reads: of the method, as ``in_place.reads_in_place`` finds it.
    """

    own: int
    shared: tuple[Place, ...]
    reads: Mapping[int, Reads]


@dataclass(frozen=True)
class Plan:
    """A method as firmware runs it.

    Attributes:
        method: as the file has it.
        payloads: of its delegates, by number, with the commands that firmware runs.
        places: by value, of each tensor that has one.
        convert_in, body, convert_out: steps in order; the first and the last only convert between floats and codes.
        inputs, outputs: in order.
        arena_bytes: of the NPU's feature maps (region 1): of the largest delegate; and behind them, what is kept there.
        tensors_bytes: of the CPU's tensors; ``codes_tensors_bytes`` where the firmware gives and takes codes.
        end: of what the method's own memory and its inputs and outputs take of the CPU's buffer.
        initial: what mutable tensors begin with: their places and contents. All else begins with zeros.
        states: tensors that are kept from run to run, as indices of values.
        kept_in_arena: states that lie in the arena between runs, as indices of values.
        reaches: bytes of the arena that a run of each delegate accesses, by number.
    """

    method: Method
    payloads: dict[int, DelegatePayload]
    places: dict[int, Place]
    convert_in: tuple[Kernel, ...]
    body: tuple[Step, ...]
    convert_out: tuple[Kernel, ...]
    inputs: tuple[Boundary, ...]
    outputs: tuple[Boundary, ...]
    arena_bytes: int
    tensors_bytes: int
    codes_tensors_bytes: int
    end: int
    initial: tuple[tuple[Place, bytes], ...]
    states: tuple[int, ...]
    kept_in_arena: tuple[int, ...] = ()
    reaches: Mapping[int, int] = field(default_factory=dict)

    @property
    def keeps_state(self) -> bool:
        """True if a run depends on the runs before it."""
        return bool(self.states)

    @property
    def has_codes(self) -> bool:
        """True if a float input or output can be passed as codes instead."""
        return any(end.codes for end in (*self.inputs, *self.outputs))
