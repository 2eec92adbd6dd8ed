"""Prepared operations, which run on a ``Memory``, and their cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from ethorch.npu.arrays import Array
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.memory import Access, Memory
from ethorch.npu.stream import Operation

# Work units of the budget of runs. One multiplication is one unit, about a third of a nanosecond on one core.
ELEMENT_WORK = 16  # per element that is read, computed and written
SWEEP_WORK = 4  # per element and loop iteration
TURN_WORK = 1 << 13  # per loop iteration
OPERATION_WORK = 1 << 17  # per operation that computes
COMMAND_WORK = 1 << 13  # per command that does not compute


@dataclass(eq=False)
class Prepared:
    """A prepared operation.

    Attributes:
        reads, writes: Feature maps and spans that the operation accesses, for counters, traces and checks.
        macs: Multiplications per run.
        elements: Number of elements of the largest array that a run allocates.
        swept: Elements that all loop iterations of a run process.
        turns: Loop iterations per run.
        computes: False for DMA transfers, and for commands that the simulator ignores.
        scattered: Source and target regions of an indexed DMA transfer, or None.
        form: The operation as data (see ``forms``), or None.
    """

    run: Callable[[Memory], None]
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    macs: int = 0
    elements: int = 0
    swept: int = 0
    turns: int = 0
    weight_bytes: int = 0
    dma_bytes: int = 0
    computes: bool = True
    scattered: tuple[int, int] | None = None
    form: object | None = None

    @property
    def maps(self) -> list[FeatureMap]:
        return [access for access in (*self.reads, *self.writes) if isinstance(access, FeatureMap)]

    @cached_property
    def work(self) -> int:
        """The cost of one run in work units."""
        touched = self.dma_bytes or self.elements + sum(fm.elements for fm in self.maps)
        fixed = OPERATION_WORK if self.computes else COMMAND_WORK
        return fixed + self.macs + ELEMENT_WORK * touched + SWEEP_WORK * self.swept + TURN_WORK * self.turns


Prepare = Callable[[Operation], Prepared]
PREPARE: dict[tuple[str, str], Prepare] = {}


def operation(name: str, *families: str) -> Callable[[Prepare], Prepare]:
    """Return a decorator that registers a function that prepares the command ``name`` for ``families``."""

    def register(prepare: Prepare) -> Prepare:
        for family in families:
            assert (name, family) not in PREPARE, (name, family)
            PREPARE[name, family] = prepare
        return prepare

    return register


@dataclass
class Lazy:
    """A value computed on the first run, after its size has been checked against the memory."""

    make: Callable[[], Array]
    value: Array | None = field(default=None)

    def __call__(self) -> Array:
        if self.value is None:
            self.value = self.make()
        return self.value


@dataclass(eq=False)
class Step:
    """An operation, its prepared form, and the number of its OFM blocks."""

    op: Operation
    prepared: Prepared
    blocks: int = 0
