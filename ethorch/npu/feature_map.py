"""Feature maps: arrays [H, W, C] stored in a region."""

# A feature map has at most four tiles, each with its own base address (npu-reference 3.2). In a tile, the address of an element is
# ``base + y*STRIDE_Y + x*STRIDE_X + c*size`` (NHWC) or ``base + y*STRIDE_Y + x*STRIDE_X + (c//16)*STRIDE_C + (c%16)*size``
# (NHCWB16: bricks of 16 channels). Elements of the last brick beyond channel C are not accessed (npu-reference 3.3).

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from ethorch.npu.arrays import Array, Bytes, Dtype, Ints
from ethorch.npu.stream import Operation
from ethorch.support.errors import MachineFault

BRICK = 16  # channels of an NHCWB16 brick (npu-reference 3.3)
FORMAT_NHCWB16 = 1
STORAGE_TILE2X2, STORAGE_TILE3X1, STORAGE_CHAINED, STORAGE_NONE = 0, 1, 2, 3


def element_type(signed: int, precision: int) -> Dtype:
    """Return the NumPy type that a precision field selects.

    The values 0, 1, 2 and 3 select 8, 16, 32 and 64 bits. int48 is stored in 64 bits (npu-reference 2.5).
    """
    return np.dtype(f"<{'i' if signed else 'u'}{1 << precision}")


@cache
def type_range(dtype: Dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


class Tile(NamedTuple):
    """A rectangle of a feature map, with its own base address."""

    y: int
    x: int
    height: int
    width: int
    base: int
    number: int  # of the register that contains the base, e.g. 2 for IFM_BASE2


@dataclass(frozen=True, eq=False)
class View:
    """A view of a tile in memory.

    Attributes:
        array: [h, w, C], or [h, bricks, w, 16] for NHCWB16.
        rest: View of the last brick if it has fewer than 16 channels, or None.
    """

    tile: Tile
    array: Array
    rest: Array | None = None

    @property
    def arrays(self) -> list[Array]:
        return [self.array] if self.rest is None else [self.array, self.rest]


@dataclass(eq=False)
class FeatureMap:
    """The location and layout of a feature map [H, W, C] in memory. Instances are immutable by convention."""

    name: str
    region: int
    dtype: Dtype
    height: int
    width: int
    depth: int
    bases: tuple[int, ...]
    strides: tuple[int, int, int]  # y, x, c in bytes
    tile_size: tuple[int, int, int]  # HEIGHT0, HEIGHT1, WIDTH0
    bricks: bool
    zero_point: int
    storage: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.depth

    @property
    def elements(self) -> int:
        return self.height * self.width * self.depth

    @property
    def size_bytes(self) -> int:
        return self.elements * self.dtype.itemsize

    @property
    def in_memory(self) -> bool:
        return self.storage in (STORAGE_TILE2X2, STORAGE_TILE3X1)

    @property
    def value_range(self) -> tuple[int, int]:
        return type_range(self.dtype)

    @cached_property
    def tiles(self) -> list[Tile]:
        """The tiles, separated at HEIGHT0, HEIGHT1 and WIDTH0 (npu-reference 3.2). TILE3X1 stacks three tiles vertically."""
        h0, h1, w0 = self.tile_size
        height, width = self.height, self.width
        if height <= h0 and width <= w0:
            return [Tile(0, 0, height, width, self.bases[0], 0)]
        if self.storage == STORAGE_TILE3X1:
            cuts = [0, min(h0, height), min(h0 + h1, height), height]
            boxes = [(cuts[i], 0, cuts[i + 1] - cuts[i], width) for i in range(3)]
        else:
            boxes = [
                (0, 0, min(h0, height), min(w0, width)),
                (0, w0, min(h1, height), width - w0),
                (h0, 0, height - h0, min(w0, width)),
                (h1, w0, height - h1, width - w0),
            ]
        return [Tile(*box, self.bases[number], number) for number, box in enumerate(boxes) if box[2] > 0 and box[3] > 0]

    def extents(self) -> list[tuple[int, int]]:
        """Return the address range [low, end) of each tile. For NHCWB16, the range includes whole bricks."""
        size = self.dtype.itemsize
        sy, sx, sc = self.strides
        channels = (-(-self.depth // BRICK) - 1) * sc + BRICK * size if self.bricks else self.depth * size
        extents = []
        for tile in self.tiles:
            reach = [(tile.height - 1) * sy, (tile.width - 1) * sx]
            low = tile.base + sum(min(step, 0) for step in reach)
            extents.append((low, tile.base + sum(max(step, 0) for step in reach) + channels))
        return extents

    def addresses(self) -> Ints:
        """Return the address of each element as int64 [H, W, C]."""
        channels = np.arange(self.depth)
        if self.bricks:
            offsets = channels // BRICK * self.strides[2] + channels % BRICK * self.dtype.itemsize
        else:
            offsets = channels * self.dtype.itemsize
        addresses = np.empty(self.shape, np.int64)
        for tile in self.tiles:
            rows, columns = np.arange(tile.height)[:, None, None], np.arange(tile.width)[:, None]
            box = tile.base + rows * self.strides[0] + columns * self.strides[1] + offsets
            addresses[tile.y : tile.y + tile.height, tile.x : tile.x + tile.width] = box
        return addresses

    def views(self, memory: Bytes) -> list[View]:
        """Return views of the tiles in the memory of a region.

        Raises:
            MachineFault: A byte is outside the memory, or an address or stride is misaligned.
        """
        return [self._view(tile, memory) for tile in self.tiles]

    def _view(self, tile: Tile, memory: Bytes) -> View:
        size = self.dtype.itemsize
        sy, sx, sc = self.strides
        alignment = BRICK if self.bricks else size
        for field, address in (("base", tile.base), ("STRIDE_Y", sy), ("STRIDE_X", sx), ("STRIDE_C", sc)):
            if address % alignment and (self.bricks or field != "STRIDE_C"):
                raise MachineFault(f"{self.name} {field} {address:#x} is not aligned to {alignment} bytes")
        if not self.bricks:
            shape = tile.height, tile.width, self.depth
            return View(tile, self._array(memory, tile, tile.base, shape, (sy, sx, size)))
        full, rest = divmod(self.depth, BRICK)
        array = self._array(memory, tile, tile.base, (tile.height, full, tile.width, BRICK), (sy, sc, sx, size))
        if not rest:
            return View(tile, array)
        last = self._array(memory, tile, tile.base + full * sc, (tile.height, tile.width, rest), (sy, sx, size))
        return View(tile, array, last)

    def _array(self, memory: Bytes, tile: Tile, base: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        low = base + sum(min(r, 0) for r in reach)
        high = base + sum(max(r, 0) for r in reach) + self.dtype.itemsize
        if 0 in shape:
            low = high = base = 0
        if low < 0 or high > memory.size:
            raise MachineFault(
                f"{self.name} covers bytes {low:#x}..{high:#x} of region {self.region}, which has {memory.size:#x} "
                f"bytes (tile of {tile.height}x{tile.width} at row {tile.y}, base {base:#x})"
            )
        return np.ndarray(shape, self.dtype, memory, base, strides)


@cache
def _registers(prefix: str) -> tuple[str, ...]:
    names = (
        "REGION PRECISION.signed PRECISION.precision STRIDE_Y STRIDE_X STRIDE_C HEIGHT0 HEIGHT1 WIDTH0 PRECISION.format ZERO_POINT"
    )
    return tuple(f"{prefix}_{name}" for name in (*names.split(), *(f"BASE{i}" for i in range(4))))


@cache
def _storage(prefix: str) -> str:
    return f"{prefix}_PRECISION.storage"


def feature_map(op: Operation, prefix: str, shape: tuple[int, int, int]) -> FeatureMap:
    """Return the feature map of ``shape`` that the registers with ``prefix`` (IFM, IFM2 or OFM) describe."""
    state = op.state
    region, signed, precision, sy, sx, sc, h0, h1, w0, form, zero_point, *bases = [state[name] for name in _registers(prefix)]
    return FeatureMap(
        name=prefix,
        region=region,
        dtype=element_type(signed, precision),
        height=shape[0],
        width=shape[1],
        depth=shape[2],
        bases=tuple(bases),
        strides=(sy, sx, sc),
        tile_size=(h0, h1, w0),
        bricks=form == FORMAT_NHCWB16,
        zero_point=zero_point,
        storage=state.get(_storage(prefix), STORAGE_TILE2X2),
    )


def read_rows(views: list[View], first: int, out: Array) -> None:
    """Copy n rows, starting at row ``first``, to ``out`` [n, W, C], whose type must be able to represent all values."""
    for view, rows, part in _overlaps(views, first, out):
        if view.array.ndim == 3:
            part[...] = view.array[rows]
            continue
        full = view.array.shape[1]
        if full:
            by_brick(part, full)[...] = view.array[rows].transpose(0, 2, 1, 3)
        if view.rest is not None:
            part[:, :, full * BRICK :] = view.rest[rows]


def write_rows(views: list[View], first: int, values: Array) -> None:
    """Store ``values`` [n, W, C] in n rows, starting at row ``first``. ``values`` must have the type of the stored elements."""
    for view, rows, part in _overlaps(views, first, values):
        if view.array.ndim == 3:
            view.array[rows] = part
            continue
        full = view.array.shape[1]
        if full:
            view.array[rows].transpose(0, 2, 1, 3)[...] = by_brick(part, full)
        if view.rest is not None:
            view.rest[rows] = part[:, :, full * BRICK :]


def _overlaps(views: list[View], first: int, values: Array) -> Iterator[tuple[View, slice, Array]]:
    for view in views:
        t = view.tile
        low, high = max(first, t.y), min(first + values.shape[0], t.y + t.height)
        if low < high:
            yield view, slice(low - t.y, high - t.y), values[low - first : high - first, t.x : t.x + t.width]


def by_brick(array: Array, full: int) -> Array:
    """Return a view [h, w, full, 16] of the first full*16 channels of an array [h, w, c]."""
    h, w, _ = array.shape
    sy, sx, size = array.strides
    return np.lib.stride_tricks.as_strided(array, (h, w, full, BRICK), (sy, sx, BRICK * size, size))
