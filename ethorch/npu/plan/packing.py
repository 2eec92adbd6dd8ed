"""Pack feature maps and scalings into structs, and prove that addresses are valid."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ethorch.npu.arithmetic import Scaling
from ethorch.npu.arrays import Array, Bytes
from ethorch.npu.feature_map import BRICK, STORAGE_CHAINED, FeatureMap
from ethorch.npu.filters import Streams
from ethorch.npu.memory import INTERNAL, Memory, Span
from ethorch.npu.plan import layout
from ethorch.npu.plan.constants import Constants, reaches
from ethorch.npu.plan.ranges import Range
from ethorch.npu.prepared import Step
from ethorch.support.errors import MachineFault

LANES = 16  # maximum number of lanes in a vector; arrays for vector loads are padded by up to two vectors


class NotKnown(Exception):
    """The error raised for an operation that must run in Python."""


@dataclass(eq=False)
class Box:
    """A chained feature map, stored at byte ``base`` of the plan's memory."""

    shape: tuple[int, int, int]
    size: int
    base: int


@dataclass(eq=False)
class Context:
    """The state while a stream is packed."""

    memory: Memory  # memory of the machine, or of another machine whose regions have the same sizes
    constants: Constants  # bytes that are constant at the current point of the stream
    library: ctypes.CDLL
    carries: bool = True  # whether operations that use chain buffers or kept accumulators are packed, instead of running in Python
    own_bytes: int = 0  # size of the memory that belongs to the plan
    chains: dict[int, Box] = field(default_factory=dict)
    accumulator: tuple[tuple[int, int, int], int] | None = None
    kept_alive: list[object] = field(default_factory=list)  # arrays and structs to which pointers in structs refer
    # Packed filters, shared by stripes of a layer and time steps of a recurrent network.
    filters: dict[Hashable, object] = field(default_factory=dict)
    # Feature maps whose values have a narrower range than their type, keyed by region and base address.
    stored_ranges: dict[tuple[int, int], tuple[FeatureMap, Range]] = field(default_factory=dict)
    computed: tuple[FeatureMap, Range] | None = None  # entry that the current operation adds to ``stored_ranges``, or None
    modes: dict[Hashable, tuple[int, Range | None]] = field(default_factory=dict)
    _reaches: dict[FeatureMap, list[tuple[int, int]]] = field(default_factory=dict)
    _scales: dict[tuple[object, ...], layout.Scale | layout.DoubleScale] = field(default_factory=dict)

    def hold(self, array: Array) -> int:
        """Return the address of an array's contents, which is valid as long as the plan exists."""
        array = np.ascontiguousarray(array)
        self.kept_alive.append(array)
        return int(array.__array_interface__["data"][0])  # three times as fast as ``ctypes.data``

    def allocate(self, size: int) -> int:
        base = self.own_bytes
        self.own_bytes += -(-size // 64) * 64
        return base

    def reader(self, streams: Streams) -> Callable[[Span], Bytes]:
        """Return a function that reads weight and scale streams. Raise NotKnown if they are not constant."""
        bytes_by_span: dict[Span, Bytes] = {}
        for span in streams.spans:
            self.memory.span(span)
            data = self.constants.read(span)
            if data is None:
                raise NotKnown("weights or scales may change between runs")
            bytes_by_span[span] = data
        return bytes_by_span.__getitem__

    # Feature maps.

    def read(self, fm: FeatureMap) -> layout.Map:
        if fm.storage == STORAGE_CHAINED:
            box = self.chains.get(fm.region) if self.carries else None
            if box is None or box.shape != fm.shape or box.size != fm.dtype.itemsize:
                raise NotKnown("no compiled step wrote this box to its chain buffer")
            return self._own_map(fm, box.base)
        return self._in_memory(fm)

    def write(self, fm: FeatureMap) -> layout.Map:
        """Pack a feature map that is written. Raise NotKnown if its region is read-only, or two elements can share a byte."""
        if fm.storage == STORAGE_CHAINED:
            if not self.carries:
                raise NotKnown("chain buffers of this stream are processed in Python")
            box = Box(fm.shape, fm.dtype.itemsize, self.allocate(fm.size_bytes))
            self.chains[fm.region] = box
            return self._own_map(fm, box.base)
        if not fm.in_memory or not self.memory.region(fm.region).flags.writeable:
            raise NotKnown("the OFM is not in writable memory")
        if not _is_apart(fm, self.reaches(fm)):
            raise NotKnown("elements of the OFM may share bytes")
        return self._in_memory(fm)

    def _own_map(self, fm: FeatureMap, base: int) -> layout.Map:
        size = fm.dtype.itemsize
        strides = fm.width * fm.depth * size, fm.depth * size, size
        packed = self._map(fm, layout.OWN_INDEX, False, strides)
        packed.tiles, packed.tile[0] = 1, layout.Tile(0, 0, fm.height, fm.width, base)
        return packed

    def _in_memory(self, fm: FeatureMap) -> layout.Map:
        if not fm.in_memory or not 0 <= fm.region < layout.INTERNAL_INDEX:
            raise NotKnown("a feature map is not stored in memory")
        size = self.memory.region(fm.region).size
        for start, stop in self.reaches(fm):
            if start < 0 or stop > size:
                raise NotKnown("a feature map exceeds its region")
        alignment = BRICK if fm.bricks else fm.dtype.itemsize
        if alignment > 1:
            addresses = (*(tile.base for tile in fm.tiles), *fm.strides[: 3 if fm.bricks else 2])
            if any(address % alignment for address in addresses):
                raise NotKnown("a feature map is not aligned")
        packed = self._map(fm, fm.region, fm.bricks, fm.strides)
        packed.tiles = len(fm.tiles)
        for number, tile in enumerate(fm.tiles):
            packed.tile[number] = layout.Tile(tile.y, tile.x, tile.height, tile.width, tile.base)
        return packed

    @staticmethod
    def _map(fm: FeatureMap, region: int, bricks: bool, strides: tuple[int, int, int]) -> layout.Map:
        kind = fm.dtype
        sizes = fm.height, fm.width, fm.depth
        return layout.Map(region, 0, bricks, kind.itemsize, kind.kind == "i", *sizes, fm.zero_point, *strides)

    def overlap(self, a: FeatureMap, b: FeatureMap) -> bool:
        """Return True if two feature maps can share bytes. Feature maps in the memory of the plan never do."""
        if a.region != b.region or not a.in_memory or not b.in_memory:
            return False
        for x in self.reaches(a):
            for y in self.reaches(b):
                if x[0] < y[1] and y[0] < x[1]:
                    return True
        return False

    def reaches(self, fm: FeatureMap) -> list[tuple[int, int]]:
        extents = self._reaches.get(fm)
        if extents is None:
            extents = self._reaches[fm] = reaches(fm)
        return extents

    # Ranges of values.

    def range_of(self, fm: FeatureMap) -> Range:
        """Return the range of (value - zero point) in a feature map, from ``stored_ranges`` or the data type."""
        low, high = fm.value_range
        if (fm.region, fm.bases[0]) in self.stored_ranges:
            stored, bounds = self.stored_ranges[fm.region, fm.bases[0]]
            if stored.dtype == fm.dtype and same_place(stored, fm):
                low, high = bounds
        return low - fm.zero_point, high - fm.zero_point

    def advance(self, step: Step) -> None:
        """Remove overwritten feature maps from ``stored_ranges``, and add the entry of the current operation."""
        written = [fm for fm in step.prepared.writes if isinstance(fm, FeatureMap) and fm.in_memory]
        spans = [(a.region, a.base, a.base + a.size_bytes) for a in step.prepared.writes if isinstance(a, Span)]
        spans += [(fm.region, *reach) for fm in written for reach in self.reaches(fm)]
        if step.prepared.scattered is not None:
            spans.append((step.prepared.scattered[1], 0, 1 << 62))
        if self.stored_ranges and spans:
            gone = [
                key
                for key, (fm, _) in self.stored_ranges.items()
                if any(fm.region == r and start < b and a < stop for r, start, stop in spans for a, b in self.reaches(fm))
            ]
            for key in gone:
                del self.stored_ranges[key]
        if self.computed is not None:
            fm = self.computed[0]
            self.stored_ranges[fm.region, fm.bases[0]] = self.computed
            self.computed = None

    # Scalings.

    def scale(self, s: Scaling | None) -> layout.Scale:
        """Pack a scaling computed in int64. None is the identity."""
        if s is None or s.is_identity:
            return layout.Scale(is_identity=1)
        packed = self._share("integer", s, 0, self._scale)
        assert isinstance(packed, layout.Scale)
        return packed

    def double_scale(self, s: Scaling, zero_point: int) -> layout.DoubleScale:
        """Pack a scaling that is computed in float64 and adds the zero point. ``ranges.exact_in_double`` must be True."""
        packed = self._share("double", s, zero_point, self._double_scale)
        assert isinstance(packed, layout.DoubleScale)
        return packed

    def _share(
        self, kind: str, s: Scaling, zero_point: int, make: Callable[[Scaling, int], layout.Scale | layout.DoubleScale]
    ) -> layout.Scale | layout.DoubleScale:
        if s.shift.ndim:
            return make(s, zero_point)
        key = kind, int(s.multiplier), int(s.shift), s.rounding, s.double, zero_point
        if key not in self._scales:
            self._scales[key] = make(s, zero_point)
        return self._scales[key]

    def _scale(self, s: Scaling, _: int) -> layout.Scale:
        if not s.shift.ndim:
            return self._one_scale(s)
        shift = np.asarray(s.shift, np.int64)
        if shift.min(initial=0) < 0 or shift.max(initial=0) > 63:
            raise NotKnown("a shift is outside 0..63")
        above, below = s.addends
        columns = np.zeros((4, above.size + 2 * LANES), np.int64)
        for row, column in zip(columns, (s.multiplier, shift, above, below), strict=True):
            row[: above.size] = column
        return layout.Scale(*self._rows(columns), above.ndim > 0, 0, bool(np.any(above != below)))

    def _one_scale(self, s: Scaling) -> layout.Scale:
        shift, (above, below) = int(s.shift), map(int, s.addends)
        if not 0 <= shift <= 63:
            raise NotKnown("a shift is outside 0..63")
        columns = np.zeros((4, 1 + 2 * LANES), np.int64)
        columns[:, 0] = int(s.multiplier), shift, above, below
        return layout.Scale(*self._rows(columns), 0, 0, above != below)

    def _double_scale(self, s: Scaling, zero_point: int) -> layout.DoubleScale:
        if not s.shift.ndim:
            return self._one_double_scale(s, zero_point)
        above, below = s.addends
        unit = np.ldexp(1.0, np.asarray(s.shift))
        columns = np.zeros((3, above.size + 2 * LANES))
        columns[0, : above.size] = s.multiplier / unit
        columns[1, : above.size] = above / unit + zero_point
        columns[2, : above.size] = below / unit + zero_point
        return layout.DoubleScale(*self._rows(columns), above.ndim > 0, bool(np.any(above != below)))

    def _one_double_scale(self, s: Scaling, zero_point: int) -> layout.DoubleScale:
        unit, (above, below) = float(1 << int(s.shift)), map(int, s.addends)
        columns = np.zeros((3, 1 + 2 * LANES))
        columns[:, 0] = int(s.multiplier) / unit, above / unit + zero_point, below / unit + zero_point
        return layout.DoubleScale(*self._rows(columns), 0, above != below)

    def _rows(self, columns: Array) -> list[int]:
        address = self.hold(columns)
        return [address + row * columns.strides[0] for row in range(len(columns))]


def _is_apart(fm: FeatureMap, spans: list[tuple[int, int]]) -> bool:
    size = fm.dtype.itemsize
    sy, sx, sc = map(abs, fm.strides)
    if len(fm.tiles) == 1 and not fm.bricks and sx >= fm.depth * size and (fm.height == 1 or sy >= fm.width * sx):
        return True
    for tile in fm.tiles:
        steps = [(tile.height, sy), (tile.width, sx)]
        if fm.bricks:
            steps.append((-(-fm.depth // BRICK), sc))
            extent = min(fm.depth, BRICK) * size
        else:
            extent = fm.depth * size
        for count, stride in sorted(steps, key=lambda step: step[1]):
            if count > 1:
                if stride < extent:
                    return False
                extent += (count - 1) * stride
    ordered = sorted(spans)
    return all(a[1] <= b[0] for a, b in pairwise(ordered))


def same_place(a: FeatureMap, b: FeatureMap) -> bool:
    """Return True if the elements of two feature maps have the same addresses."""
    if a.region != b.region or a.bases[0] != b.bases[0] or a.shape != b.shape:
        return False

    def layout_of(fm: FeatureMap) -> tuple[object, ...]:
        tiles = [(t.y, t.x, t.height, t.width, t.base) for t in fm.tiles]
        return fm.region, fm.shape, fm.dtype.itemsize, fm.bricks, fm.strides[: 3 if fm.bricks else 2], tiles

    return a.in_memory and b.in_memory and layout_of(a) == layout_of(b)


def region_index(region: int) -> int:
    if region == INTERNAL:
        return layout.INTERNAL_INDEX
    if not 0 <= region < layout.INTERNAL_INDEX:
        raise MachineFault(f"region {region} does not exist; expected a region from 0 to {layout.INTERNAL_INDEX - 1}")
    return region
