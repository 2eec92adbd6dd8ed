"""Data structures of a firmware plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ethorch.figures.persistent_buffers import Reads
from ethorch.formats.payload import DelegatePayload
from ethorch.formats.pte_types import Method, Program

TENSORS, ARENA, CONSTANTS = "tensors", "arena", "constants"
ALIGNMENT = 16


def align(size: int, alignment: int = ALIGNMENT) -> int:
    """Round up to a multiple of ``alignment``."""
    return -(-size // alignment) * alignment


@dataclass(frozen=True)
class Place:
    """The location of a tensor: a buffer of the firmware and a byte offset."""

    buffer: str
    offset: int


@dataclass(frozen=True)
class Copy:
    """A copy before or after a delegate, or the implementation of a view or move."""

    source: Place
    target: Place
    nbytes: int


@dataclass(frozen=True)
class Kernel:
    """A call to a CPU operator. ``args`` contains value indices."""

    number: int
    operator: str
    args: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """A run of a delegate, with copies to the NPU's memory before the run and copies from it after the run."""

    number: int
    delegate: int
    before: tuple[Copy, ...]
    after: tuple[Copy, ...]


@dataclass(frozen=True)
class Codes:
    """The integer values of a float input or output, and their quantization parameters."""

    index: int
    scale: float
    zero_point: int


@dataclass(frozen=True)
class Boundary:
    """An input or output of the model.

    Attributes:
        codes: Integer values of a float input or output, or None if the input or output is not converted.
    """

    side: str
    number: int
    index: int
    codes: Codes | None

    @property
    def title(self) -> str:
        """The name in messages, e.g. ``input 0``."""
        return f"{self.side} {self.number}"


Step = Kernel | Run | Copy


class Constants:
    """Constant tensors of all methods, concatenated and aligned to 16 bytes."""

    def __init__(self, program: Program):
        self.program, self.data = program, b""
        self._known: dict[int, int] = {}

    def offset(self, number: int) -> int:
        if number not in self._known:
            self._known[number] = len(self.data)
            content = bytes(self.program.constants[number])
            self.data += content + bytes(align(len(content)) - len(content))
        return self._known[number]


@dataclass(frozen=True)
class Bases:
    """Memory locations of a method that shares buffers with other methods.

    Attributes:
        private_offset: Offset in the CPU's buffer at which the method's private planned memory 1 starts.
        shared: Locations of planned memories 2, 3, ..., which contain shared state.
        reads: Delegate number -> tensors that it accesses in place. See ``reads_in_place``.
    """

    private_offset: int
    shared: tuple[Place, ...]
    reads: Mapping[int, Reads]


@dataclass(frozen=True)
class Plan:
    """The steps and memory of one method."""

    method: Method
    payloads: dict[int, DelegatePayload]  # delegate number -> payload that the firmware runs
    places: dict[int, Place]  # value index -> location of the tensor
    convert_in: tuple[Kernel, ...]  # quantizes the inputs
    body: tuple[Step, ...]
    convert_out: tuple[Kernel, ...]  # dequantizes the outputs
    inputs: tuple[Boundary, ...]
    outputs: tuple[Boundary, ...]
    arena_bytes: int  # bytes of the largest delegate's feature maps (region 1) and of the state stored after them
    tensors_bytes: int  # bytes of the CPU's tensors
    codes_tensors_bytes: int  # bytes of the CPU's tensors if inputs and outputs are integer values
    end: int  # end of the method's private memory in the CPU's buffer
    initial: tuple[tuple[Place, bytes], ...]  # location and initial value of each buffer
    states: tuple[int, ...]  # indices of tensors that persist between runs
    states_in_arena: tuple[int, ...] = ()  # indices of states that remain in the arena
    reaches: Mapping[int, int] = field(default_factory=dict)  # delegate number -> bytes of the arena that the delegate accesses

    @property
    def keeps_state(self) -> bool:
        """True if a run depends on earlier runs."""
        return bool(self.states)

    @property
    def has_codes(self) -> bool:
        """True if a float input or output is also available as integer values."""
        return any(end.codes for end in (*self.inputs, *self.outputs))
