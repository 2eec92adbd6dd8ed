"""The bytes that accesses cover."""

from __future__ import annotations

import numpy as np

from ethorch.npu.arrays import Array
from ethorch.npu.feature_map import BRICK, FeatureMap
from ethorch.npu.memory import Access, Span
from ethorch.support.errors import MachineFault


def view_bytes(access: Access, memory: Array) -> list[Array]:
    """Return views of the accessed elements of ``memory``, an array with one element for each byte of a region."""
    if isinstance(access, Span):
        return [memory[access.base : access.base + access.size_bytes]]
    step = memory.itemsize
    size, (sy, sx, sc) = access.dtype.itemsize, access.strides
    views: list[Array] = []
    for tile in access.tiles:
        parts: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = [
            (tile.base, (tile.height, tile.width, access.depth * size), (sy, sx, 1))
        ]
        if access.bricks:
            full, rest = divmod(access.depth, BRICK)
            parts = [(tile.base, (tile.height, full, tile.width, BRICK * size), (sy, sc, sx, 1))] if full else []
            if rest:
                parts.append((tile.base + full * sc, (tile.height, tile.width, rest * size), (sy, sx, 1)))
        for base, shape, strides in parts:
            try:
                view: Array = np.ndarray(shape, memory.dtype, memory, base * step, tuple(step * stride for stride in strides))
            except ValueError as error:
                raise MachineFault(f"a tile of {shape} bytes at {base:#x} exceeds its region of {memory.size} bytes.") from error
            views.append(view)
    return views


def is_stored(access: Access) -> bool:
    """Return True unless the access is to a feature map that is chained or has no storage."""
    return not isinstance(access, FeatureMap) or access.in_memory
