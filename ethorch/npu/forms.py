"""Operations as data, for analysis and for compiled execution.

``Prepared.run`` defines the correct results. Instances are immutable by convention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ethorch.npu.arithmetic import Scaling, scaling
from ethorch.npu.arrays import Ints
from ethorch.npu.feature_map import STORAGE_TILE2X2, FeatureMap
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
    """A DMA transfer of one contiguous range of bytes."""

    source: Span
    target: Span


@dataclass(eq=False)
class Transfer:
    """A DMA transfer of ``outer`` * ``inner`` ranges of ``length`` bytes each.

    Attributes:
        source, target: Region, address, and inner and outer strides in bytes.
        by_source, by_target: Whether indices select the ranges in the source or target (gather or scatter).
        index: Region and address of the indices, and their stride in bytes between outer iterations.
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

    @property
    def is_indexed(self) -> bool:
        return self.by_source or self.by_target

    @property
    def source_rows(self) -> FeatureMap | None:
        """The source as bytes [outer, inner, length], or None if indices select the ranges."""
        return None if self.by_source else self._create_map("DMA0_SRC", *self.source)

    @property
    def target_rows(self) -> FeatureMap | None:
        return None if self.by_target else self._create_map("DMA0_DST", *self.target)

    def _create_map(self, name: str, region: int, base: int, inner: int, outer: int) -> FeatureMap:
        shape, strides, tile = (self.outer, self.inner, self.length), (outer, inner, 1), (self.outer, self.outer, self.inner)
        return FeatureMap(name, region, np.dtype(np.int8), *shape, (base,), strides, tile, False, 0, STORAGE_TILE2X2)


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
    """A pooling operation.

    Attributes:
        kind: SUM, AVERAGE (divided by the number of valid positions), MAX, MIN, REDUCE_SUM, NONE, ARGMAX_Y or ARGMAX_X.
        window: Kernel window, or None for NONE.
        scaling: Scaling of the OFM, streams with per-channel scales, or None for AVERAGE.
    """

    kind: str
    window: Window | None
    scaling: Scaling | Streams | None
    stage: OutputStage


@dataclass(eq=False)
class Value:
    """The function of an elementwise operation, both as a Python function and as data.

    Attributes:
        name: U85 name of the mode: ADD, MUL, ...
        compute: Function of int64 arrays, which also applies ``scales`` to its operands.
        wraps: Whether the result is truncated to 32 bits.
        rounds: Whether right shifts round to nearest (half up) instead of down.
        mask: Mask of the first operand's bits that LSR uses, or -1 for all bits.
    """

    name: str
    compute: Callable[..., Ints]
    scales: tuple[Scaling, Scaling] = (IDENTITY, IDENTITY)
    wraps: bool = False
    rounds: bool = False
    mask: int = -1


@dataclass(eq=False)
class Elementwise:
    """An elementwise operation. Each operand is a feature map, or a constant with the zero point already subtracted."""

    value: Value
    operands: tuple[FeatureMap | int, ...]
    scaling: Scaling | None
    stage: OutputStage


@dataclass(eq=False)
class Resize:
    """A resize operation of U85.

    Attributes:
        rows, columns: Denominator of the weights, and for each output index, both input indices and the second weight's numerator.
    """

    ifm: FeatureMap
    mode: int
    rows: tuple[int, Ints, Ints, Ints]
    columns: tuple[int, Ints, Ints, Ints]
    scaling: Scaling
    stage: OutputStage
