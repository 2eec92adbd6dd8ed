"""What an operation becomes once its registers are known: a function over memory, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from ethorch.npu.arrays import Array
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.memory import Access, Memory
from ethorch.npu.stream import Operation

# Work units, in which runs are budgeted. A multiplication is one unit. By the time that operations of all kinds take on one
# core, a unit is about a third of a nanosecond.
ELEMENT_WORK = 16  # per element that is read, computed and written
SWEEP_WORK = 4  # per element that one turn of a loop goes over
TURN_WORK = 1 << 13  # per turn of a loop
OPERATION_WORK = 1 << 17  # per operation that computes, however small
COMMAND_WORK = 1 << 13  # per command that computes nothing


@dataclass(eq=False)
class Prepared:
    """A prepared operation.

    Attributes:
        run: executes it; everything that does not depend on memory is already worked out.
        reads, writes: feature maps and spans that it touches, for counters, traces and checks.
        macs: multiplications of a run.
        elements: size of the largest array that a run allocates.
        swept: elements that the loops of a run go over, each counted as often as that happens.
        turns: turns of these loops.
        computes: False for what moves bytes, or only orders what is executed.
        scattered: source and target region of a DMA whose bytes are no plain runs.
        form: the same operation as data (``forms``), for those who run it in another way than ``run``; None where there is none.
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
        """The feature maps among ``reads`` and ``writes``."""
        return [access for access in (*self.reads, *self.writes) if isinstance(access, FeatureMap)]

    @cached_property
    def work(self) -> int:
        """What a run costs, in work units."""
        touched = self.elements + sum(fm.elements for fm in self.maps) + self.dma_bytes
        fixed = OPERATION_WORK if self.computes else COMMAND_WORK
        return fixed + self.macs + ELEMENT_WORK * touched + SWEEP_WORK * self.swept + TURN_WORK * self.turns


Prepare = Callable[[Operation], Prepared]
PREPARE: dict[tuple[str, str], Prepare] = {}


def operation(name: str, *families: str) -> Callable[[Prepare], Prepare]:
    """Register the function that prepares NPU_OP_* ``name`` on the given families."""

    def register(prepare: Prepare) -> Prepare:
        for family in families:
            assert (name, family) not in PREPARE, (name, family)
            PREPARE[name, family] = prepare
        return prepare

    return register


@dataclass
class Lazy:
    """A value that is worked out at the first run. By then sizes have been checked against memory."""

    make: Callable[[], Array]
    value: Array | None = field(default=None)

    def __call__(self) -> Array:
        if self.value is None:
            self.value = self.make()
        return self.value


@dataclass(eq=False)
class Step:
    """An operation, what it became, and the OFM blocks that hardware cuts it into."""

    op: Operation
    prepared: Prepared
    blocks: int = 0
