"""What an operation becomes once its registers are known: a function over a machine, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.stream import Operation

if TYPE_CHECKING:
    from ethorch.npu.machine import Machine


@dataclass(frozen=True)
class Span:
    """Bytes of a region that an operation reads or writes as a plain run: weights, scales, DMA."""

    name: str
    region: int
    base: int
    size_bytes: int


@dataclass(frozen=True, eq=False)
class Kernel:
    """A prepared operation.

    Attributes:
        run: executes it on a machine; everything that does not depend on memory is already worked out.
        reads, writes: feature maps and spans it touches, for counters, traces and checks.
        elements: the largest array a run allocates; ``macs`` its multiplications; ``passes`` how often it goes over its
            arrays. They bound a hostile stream.
        scattered: source and target region of a DMA whose bytes are no plain runs.
    """

    run: Callable[[Machine], None]
    reads: tuple[FeatureMap | Span, ...] = ()
    writes: tuple[FeatureMap | Span, ...] = ()
    macs: int = 0
    elements: int = 0
    weight_bytes: int = 0
    dma_bytes: int = 0
    is_kernel: bool = True
    passes: int = 1
    scattered: tuple[int, int] | None = None


Prepare = Callable[[Operation], Kernel]
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
    """A value worked out at the first run, when sizes have been checked against the machine's memory."""

    make: Callable[[], np.ndarray]
    value: np.ndarray | None = field(default=None)

    def __call__(self) -> np.ndarray:
        if self.value is None:
            self.value = self.make()
        return self.value
