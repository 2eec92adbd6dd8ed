"""The memory of a machine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ethorch.npu.arrays import Array, Bytes, Ints
from ethorch.npu.feature_map import STORAGE_CHAINED, FeatureMap, View, read_rows, write_rows
from ethorch.npu.memo import Memo
from ethorch.support.errors import MachineFault

SCRATCH, SCRATCH_FAST = 1, 2  # regions (npu-reference 1.4)
MOST_REGION_BYTES = 1 << 28  # allocation limit, because sizes come from files; a caller's memory may be larger

INTERNAL = -1  # the region number used here for internal memory


@dataclass(frozen=True)
class Span:
    """A contiguous range of bytes that an operation accesses: weights, scales, or a DMA transfer's data."""

    name: str
    region: int
    base: int
    size_bytes: int


Access = FeatureMap | Span


def allocate(constants: Bytes, internal_bytes: int, sizes: Mapping[int, int], buffers: Mapping[int, Bytes]) -> dict[int, Bytes]:
    """Return the regions of a machine, keyed by number.

    Args:
        constants: Region 0.
        sizes: Size of each region to allocate. 0 allocates nothing (npu-reference 1.1).
        buffers: Regions that the caller allocated.

    Raises:
        MachineFault: A size exceeds MOST_REGION_BYTES, or a buffer is not a contiguous uint8 array.
    """
    regions = {0: constants}
    for number, size in sizes.items():
        if size > MOST_REGION_BYTES:
            raise MachineFault(
                f"region {number} has {size} bytes; expected at most {MOST_REGION_BYTES}. To use a larger region, "
                "pass its buffer in regions=."
            )
        if size:
            regions[number] = np.zeros(size, np.uint8)
    for number, array in buffers.items():
        if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
            raise MachineFault(
                f"region {number}: expected a contiguous one-dimensional uint8 array, got {array.dtype}{list(array.shape)}"
            )
        regions[number] = array
    regions[INTERNAL] = np.zeros(internal_bytes, np.uint8)
    return regions


class Memory:
    """The regions, and the state of the NPU between operations.

    Attributes:
        constants: Region 0, read-only.
        chain: Contents of the chain buffers, keyed by buffer number.
        accumulator: Accumulators that an operation without an OFM passes to the next operation, or None.
        written: Feature map that was written last, or None.
        watch: Function called with each span before its bytes are written.
    """

    def __init__(self, regions: dict[int, Bytes], constants: Bytes, decoded: Memo[Any]):
        self.regions = regions
        self.constants = constants
        self.chain: dict[int, Array] = {}
        self.accumulator: Ints | None = None
        self.written: FeatureMap | None = None
        self.watch: Callable[[Span], None] | None = None
        self._decoded = decoded
        self._views: dict[FeatureMap, list[View]] = {}
        self._overlaps: dict[tuple[FeatureMap, FeatureMap], bool] = {}

    def region(self, number: int) -> Bytes:
        try:
            return self.regions[number]
        except KeyError:
            have = ", ".join(str(n) for n in sorted(self.regions) if n >= 0)
            raise MachineFault(f"region {number} does not exist; the regions are {have}") from None

    # Feature maps.

    def read(self, fm: FeatureMap) -> Array:
        """Return the elements [H, W, C] of a feature map in their stored type, as a view if possible."""
        if fm.storage == STORAGE_CHAINED:
            return self._read_chain(fm)
        views = self.views(fm)
        if len(views) == 1 and views[0].array.ndim == 3:
            return views[0].array
        out = np.empty(fm.shape, fm.dtype)
        read_rows(views, 0, out)
        return out

    def read_rows(self, fm: FeatureMap, first: int, out: Array) -> None:
        if fm.storage == STORAGE_CHAINED:
            out[...] = self._read_chain(fm)[first : first + len(out)]
        else:
            read_rows(self.views(fm), first, out)

    def write(self, fm: FeatureMap, values: Array) -> None:
        self.written = fm
        if fm.storage == STORAGE_CHAINED:
            self.chain[fm.region] = values
        else:
            write_rows(self.views(fm), 0, values)

    def write_rows(self, fm: FeatureMap, first: int, values: Array) -> None:
        self.written = fm
        write_rows(self.views(fm), first, values)

    def _read_chain(self, fm: FeatureMap) -> Array:
        values = self.chain.get(fm.region)
        if values is None or values.shape != fm.shape:
            have = "nothing" if values is None else f"shape {values.shape}"
            raise MachineFault(f"{fm.name}: expected an array of shape {fm.shape} in chain buffer {fm.region}, got {have}")
        return values.astype(fm.dtype, copy=False)

    def views(self, fm: FeatureMap) -> list[View]:
        """Return views of the tiles of a feature map. Raise MachineFault if a tile is outside its region or misaligned."""
        views = self._views.get(fm)
        if views is None:
            if not fm.in_memory:
                raise MachineFault(f"the operation accesses {fm.name}, which is not stored in memory")
            views = self._views[fm] = fm.views(self.region(fm.region))
        return views

    def overlap(self, a: FeatureMap, b: FeatureMap) -> bool:
        """Return True if two feature maps might share bytes."""
        if a.region != b.region or not a.in_memory or not b.in_memory:
            return False
        key = a, b
        if key not in self._overlaps:
            self._overlaps[key] = any(
                np.may_share_memory(x, y) for va in self.views(a) for x in va.arrays for vb in self.views(b) for y in vb.arrays
            )
        return self._overlaps[key]

    # Runs of bytes.

    def span(self, span: Span) -> Bytes:
        memory = self.region(span.region)
        if span.base < 0 or span.base + span.size_bytes > memory.size:
            raise MachineFault(
                f"{span.name} covers bytes {span.base:#x}..{span.base + span.size_bytes:#x} of region {span.region}, "
                f"which has {memory.size:#x} bytes"
            )
        return memory[span.base : span.base + span.size_bytes]

    def writable(self, span: Span) -> Bytes:
        """Return the writable bytes of a span. Raise MachineFault if the span is in region 0."""
        if span.region == 0:
            raise MachineFault(f"{span.name} writes to region 0, which holds constants")
        memory = self.span(span)
        if self.watch is not None:
            self.watch(span)
        return memory

    def lut(self, address: int, size_bytes: int) -> Bytes:
        return self.span(Span("ACTIVATION table", INTERNAL, address, size_bytes))

    # Persistent state.

    def is_constant(self, region: int) -> bool:
        """Return True if the region contains the program's constants, whose decoded values can be cached."""
        return self.regions.get(region) is self.constants

    def decode(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the result of ``make``, cached per program under ``key``."""
        return self._decoded.get(key, make)

    def read_accumulator(self, shape: tuple[int, int, int]) -> Ints:
        """Return the accumulators of the previous operation. Raise MachineFault if their shape differs from ``shape``."""
        if self.accumulator is None or self.accumulator.shape != shape:
            have = "none" if self.accumulator is None else str(self.accumulator.shape)
            raise MachineFault(f"ACC_FORMAT.input KEEP: expected accumulators of shape {shape}, got {have}")
        return self.accumulator
