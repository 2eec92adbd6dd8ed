"""Memory: what operations read and write."""

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
MOST_REGION_BYTES = 1 << 28  # to allocate: sizes come from files, and boards have far less. A caller may bring more.

INTERNAL = -1  # the region number used here for internal memory


@dataclass(frozen=True)
class Span:
    """Bytes of a region that an operation reads or writes as a plain run: weights, scales, DMA."""

    name: str
    region: int
    base: int
    size_bytes: int


Access = FeatureMap | Span  # what an operation reads or writes


def allocate(constants: Bytes, internal_bytes: int, sizes: Mapping[int, int], given: Mapping[int, Bytes]) -> dict[int, Bytes]:
    """The regions of a machine, by number.

    Args:
        constants: region 0.
        internal_bytes: size of internal memory.
        sizes: of regions to allocate; size 0 allocates none (npu-reference pitfall 17).
        given: the caller's memory, used in place; it takes precedence.

    Raises:
        MachineFault: a size is beyond MOST_REGION_BYTES, or a given array is not of contiguous bytes.
    """
    regions = {0: constants}
    for number, size in sizes.items():
        if size > MOST_REGION_BYTES:
            raise MachineFault(f"region {number} of {size} bytes: more than {MOST_REGION_BYTES}; give it as regions=")
        if size:
            regions[number] = np.zeros(size, np.uint8)
    for number, array in given.items():
        if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
            raise MachineFault(f"region {number} has to be a contiguous uint8 array of one dimension")
        regions[number] = array
    regions[INTERNAL] = np.zeros(internal_bytes, np.uint8)
    return regions


class Memory:
    """Regions, and what the NPU keeps from one operation to the next.

    Attributes:
        regions: uint8 arrays by number.
        constants: region 0 as the program has it, read-only.
        chain: boxes in chain buffers, by number.
        accumulator: what an operation that puts nothing out has left for the next, or None.
        written: the feature map that was written last, or None.
        watch: called with each span before it is written.
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
        """A region's bytes; MachineFault when there is no such region."""
        try:
            return self.regions[number]
        except KeyError:
            have = ", ".join(str(n) for n in sorted(self.regions) if n >= 0)
            raise MachineFault(f"region {number} does not exist; there are {have}") from None

    # Feature maps.

    def read(self, fm: FeatureMap) -> Array:
        """A whole box [H, W, C] in its stored type: a view where memory has that shape, else a copy."""
        if fm.storage == STORAGE_CHAINED:
            return self._chained(fm)
        views = self.views(fm)
        if len(views) == 1 and views[0].array.ndim == 3:
            return views[0].array
        out = np.empty(fm.shape, fm.dtype)
        read_rows(views, 0, out)
        return out

    def read_rows(self, fm: FeatureMap, first: int, out: Array) -> None:
        """Fill ``out`` [n, W, C] with rows first..first+n of a box."""
        if fm.storage == STORAGE_CHAINED:
            out[...] = self._chained(fm)[first : first + len(out)]
        else:
            read_rows(self.views(fm), first, out)

    def write(self, fm: FeatureMap, values: Array) -> None:
        """Store a whole box, or keep it in a chain buffer."""
        self.written = fm
        if fm.storage == STORAGE_CHAINED:
            self.chain[fm.region] = values
        else:
            write_rows(self.views(fm), 0, values)

    def write_rows(self, fm: FeatureMap, first: int, values: Array) -> None:
        """Store rows first.. of a box that lies in memory."""
        self.written = fm
        write_rows(self.views(fm), first, values)

    def _chained(self, fm: FeatureMap) -> Array:
        values = self.chain.get(fm.region)
        if values is None or values.shape != fm.shape:
            have = "nothing" if values is None else f"a box of {values.shape}"
            raise MachineFault(f"{fm.name} wants a box of {fm.shape} from chain buffer {fm.region}, which holds {have}")
        return values.astype(fm.dtype, copy=False)

    def views(self, fm: FeatureMap) -> list[View]:
        """The tiles of a feature map in memory; MachineFault where they leave their region."""
        views = self._views.get(fm)
        if views is None:
            if not fm.in_memory:
                raise MachineFault(f"{fm.name} has no place in memory, but the operation wants to access it")
            views = self._views[fm] = fm.views(self.region(fm.region))
        return views

    def overlap(self, a: FeatureMap, b: FeatureMap) -> bool:
        """Whether two maps might share bytes, judged by the ranges their tiles span."""
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
        """A run of bytes, to be read."""
        memory = self.region(span.region)
        if span.base < 0 or span.base + span.size_bytes > memory.size:
            raise MachineFault(
                f"{span.name} covers bytes {span.base:#x}..{span.base + span.size_bytes:#x} of region {span.region}, "
                f"which has {memory.size:#x} bytes"
            )
        return memory[span.base : span.base + span.size_bytes]

    def writable(self, span: Span) -> Bytes:
        """A run of bytes, about to be written."""
        if span.region == 0:
            raise MachineFault(f"{span.name} writes to region 0, which holds constants")
        memory = self.span(span)
        if self.watch is not None:
            self.watch(span)
        return memory

    def lut(self, address: int, size_bytes: int) -> Bytes:
        """A table in internal memory."""
        return self.span(Span("ACTIVATION table", INTERNAL, address, size_bytes))

    # What lasts.

    def is_constant(self, region: int) -> bool:
        """Whether a region's bytes are the program's constants, so that what was decoded from them stays right."""
        return self.regions.get(region) is self.constants

    def decoded(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What ``make`` decodes from bytes that ``key`` stands for: made once for all memories of a program."""
        return self._decoded.get(key, make)

    def kept_accumulator(self, shape: tuple[int, int, int]) -> Ints:
        """What the operation before has left in the accumulator; MachineFault when that has another shape."""
        if self.accumulator is None or self.accumulator.shape != shape:
            have = "none" if self.accumulator is None else str(self.accumulator.shape)
            raise MachineFault(f"ACC_FORMAT.input KEEP wants accumulators of {shape}, found {have}")
        return self.accumulator
