"""What an operation computes, as data: for the plan, which runs it in compiled code.

``Prepared.run`` and its form say the same thing twice. The function is the specification: where the two differ, the form, or
what reads it, is wrong.

Nobody changes a form, a window or what ``prepared`` has. They are not frozen: a stream has thousands, and a frozen dataclass
takes four times as long to make.
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
    """A command that only orders or observes what is executed."""


@dataclass(eq=False)
class Copy:
    """A DMA of one run of bytes."""

    source: Span
    target: Span


@dataclass(eq=False)
class Transfer:
    """A DMA of ``outer`` times ``inner`` runs of ``length`` bytes.

    Attributes:
        source, target: (region, address, stride of the inner loop, stride of the outer loop).
        by_source, by_target: whether the inner loop's number is looked up, for that end.
        index: (region, address, bytes from one outer turn's indices to the next's).
        limit: the largest index allowed.
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
    """A convolution with weights of a stream; ``depthwise`` keeps channels apart."""

    window: Window
    streams: Streams
    stage: OutputStage
    depthwise: bool


@dataclass(eq=False)
class Product:
    """A 1x1 convolution with weights of a feature map [1, O, C]."""

    window: Window
    weights: FeatureMap
    scaling: Scaling
    stage: OutputStage


@dataclass(eq=False)
class Pool:
    """A pool.

    Attributes:
        kind: SUM, AVERAGE (the sum over the valid positions' reciprocal), MAX, MIN, REDUCE_SUM, NONE, ARGMAX_Y or ARGMAX_X.
        window: None for NONE.
        scaling: of the whole OFM, a scale stream, or None where nothing is scaled.
    """

    kind: str
    window: Window | None
    scaling: Scaling | Streams | None
    stage: OutputStage


@dataclass(eq=False)
class Value:
    """What an elementwise operation computes of its operands: a function of int64 arrays, and the same as data.

    Attributes:
        name: ADD, MUL, ... as the mode of U85 is called.
        compute: the function.
        scales: of the operands, before the function; ``compute`` applies them.
        wraps: the result keeps its low 32 bits.
        rounds: a shift to the right rounds half up; else it is a floor.
        mask: the bits of the first operand that count (LSR), or -1.
    """

    name: str
    compute: Callable[..., Ints]
    scales: tuple[Scaling, Scaling] = (IDENTITY, IDENTITY)
    wraps: bool = False
    rounds: bool = False
    mask: int = -1


@dataclass(eq=False)
class Elementwise:
    """An operation element by element. Operands are feature maps, or constants less the zero point."""

    value: Value
    operands: tuple[FeatureMap | int, ...]
    scaling: Scaling | None
    stage: OutputStage


@dataclass(eq=False)
class Resize:
    """A resize. ``rows`` and ``columns``: the denominator n, and for each output index two input indices and the fraction of n
    between them."""

    ifm: FeatureMap
    mode: int
    rows: tuple[int, Ints, Ints, Ints]
    columns: tuple[int, Ints, Ints, Ints]
    scaling: Scaling
    stage: OutputStage
