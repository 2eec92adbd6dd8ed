"""Operations as data, which the plan executes in compiled code.

``Prepared.run`` specifies the same computation. If they differ, the form or its reader is wrong.

Forms, windows and the fields of ``Prepared`` are immutable by convention: frozen dataclasses take four times as long to
construct.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ethorch.npu.arithmetic import Scaling, scaling
from ethorch.npu.arrays import Ints
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.filters import Streams
from ethorch.npu.memory import Span
from ethorch.npu.output import OutputStage
from ethorch.npu.window import Window

IDENTITY = scaling(1, 0, "NATURAL")


@dataclass(eq=False)
class Nothing:
    """A command that only orders or observes execution."""


@dataclass(eq=False)
class Copy:
    """A DMA of one contiguous run of bytes."""

    source: Span
    target: Span


@dataclass(eq=False)
class Transfer:
    """A DMA of ``outer`` times ``inner`` runs of ``length`` bytes.

    Attributes:
        source, target: Region, address, inner stride, outer stride.
        by_source, by_target: Whether the index list determines the inner position of that end.
        index: Region, address, and bytes between indices of consecutive outer iterations.
        limit: Largest allowed index.
    """

    length: int
    inner: int
    outer: int
    source: tuple[int, int, int, int]
    target: tuple[int, int, int, int]
    by_source: bool
    by_target: bool
    index: tuple[int, int, int]
    limit: int


@dataclass(eq=False)
class Convolution:
    """A convolution with weights from a stream."""

    window: Window
    streams: Streams
    stage: OutputStage
    depthwise: bool


@dataclass(eq=False)
class Product:
    """A 1x1 convolution with weights from a feature map [1, O, C]."""

    window: Window
    weights: FeatureMap
    scaling: Scaling
    stage: OutputStage


@dataclass(eq=False)
class Pool:
    """A pool.

    Attributes:
        kind: SUM, AVERAGE (divided by the number of valid positions), MAX, MIN, REDUCE_SUM, NONE, ARGMAX_Y or ARGMAX_X.
        window: None for NONE.
        scaling: Scaling of the OFM, a scale stream, or None.
    """

    kind: str
    window: Window | None
    scaling: Scaling | Streams | None
    stage: OutputStage


@dataclass(eq=False)
class Value:
    """An elementwise operation, as a function of int64 arrays and as data.

    Attributes:
        name: U85 name of the mode: ADD, MUL, ...
        compute: The function, including ``scales`` of the operands.
        wraps: Whether the result is truncated to 32 bits.
        rounds: Whether a right shift rounds half up instead of down.
        mask: Bits of the first operand that are used (LSR), or -1.
    """

    name: str
    compute: Callable[..., Ints]
    scales: tuple[Scaling, Scaling] = (IDENTITY, IDENTITY)
    wraps: bool = False
    rounds: bool = False
    mask: int = -1


@dataclass(eq=False)
class Elementwise:
    """An elementwise operation. Operands are feature maps, or constants minus their zero point."""

    value: Value
    operands: tuple[FeatureMap | int, ...]
    scaling: Scaling | None
    stage: OutputStage


@dataclass(eq=False)
class Resize:
    """A resize.

    Attributes:
        rows, columns: Denominator n, and for each output index two input indices and the numerator of the fraction.
    """

    ifm: FeatureMap
    mode: int
    rows: tuple[int, Ints, Ints, Ints]
    columns: tuple[int, Ints, Ints, Ints]
    scaling: Scaling
    stage: OutputStage
