"""Find the layout of a feature map from the addresses of its elements."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ethorch.npu.arrays import Ints
from ethorch.npu.feature_map import BRICK, FeatureMap
from ethorch.npu.ir import Op

_FORMAT = 1 << 6  # bit of IFM_PRECISION and similar registers that selects NHCWB16 (npu-reference 2.5)


class AddressTable:
    """The new addresses of the elements of a feature map."""

    def __init__(self, fm: FeatureMap, after: Ints):
        before = fm.addresses()
        self.region, self.item_bytes, self.low = fm.region, fm.dtype.itemsize, int(before.min())
        self._after = np.full(int(before.max()) - self.low + 1, -1, np.int64)
        self._after[(before - self.low).ravel()] = after.ravel()

    def find(self, addresses: Ints) -> Ints | None:
        """Return the new address for each old address, or None if an old address is not in the table."""
        offsets = addresses - self.low
        if offsets.min() < 0 or offsets.max() >= len(self._after):
            return None
        found: Ints = self._after[offsets]
        return None if found.min() < 0 else found


def iterate_layouts(op: Op, fm: FeatureMap, addresses: Ints, place: FeatureMap) -> Iterator[dict[str, int]]:
    """Yield register values that assign the new addresses [H, W, C] in ``place`` to the elements of ``fm``."""
    if len(fm.tiles) != 1:
        return
    for bricks in (fm.bricks, not fm.bricks):
        if bricks and fm.name == "OFM" and fm.depth % BRICK and not place.bricks:
            continue  # the rest of the last brick may contain other data
        strides = _fit(addresses, fm.dtype.itemsize, bricks)
        if strides is not None:
            sy, sx, sc = strides
            precision = op.registers[f"{fm.name}_PRECISION"] & ~_FORMAT | (_FORMAT if bricks else 0)
            registers = {"BASE0": int(addresses[0, 0, 0]), "STRIDE_Y": sy, "STRIDE_X": sx, "STRIDE_C": sc}
            registers |= {"PRECISION": precision, "REGION": place.region}
            yield {f"{fm.name}_{name}": raw for name, raw in registers.items()}


def _fit(addresses: Ints, item_bytes: int, bricks: bool) -> tuple[int, int, int] | None:
    """Return the strides (y, x, c) of addresses [H, W, C], or None if they are irregular."""
    height, width, depth = addresses.shape
    base = int(addresses[0, 0, 0])
    sx = int(addresses[0, 1, 0]) - base if width > 1 else (BRICK if bricks else depth) * item_bytes
    sy = int(addresses[1, 0, 0]) - base if height > 1 else sx * width
    sc = (int(addresses[0, 0, BRICK]) - base if depth > BRICK else sx * width) if bricks else item_bytes
    channels = np.arange(depth)
    steps = channels // BRICK * sc + channels % BRICK * item_bytes if bricks else channels * item_bytes
    rows, columns = np.arange(height)[:, None, None], np.arange(width)[:, None]
    fits = min(sy, sx, sc) > 0 and np.array_equal(addresses, base + rows * sy + columns * sx + steps)
    return (sy, sx, sc) if fits else None
