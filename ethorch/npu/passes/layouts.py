"""Contiguous layouts for parts of feature maps."""

from __future__ import annotations

from collections.abc import Sequence

from ethorch.npu.feature_map import BRICK, FeatureMap
from ethorch.npu.ir import Op
from ethorch.npu.passes.accesses import Access
from ethorch.npu.passes.segments import ALIGNMENT, Segment

WHOLE = -1  # number of an operation that is not divided


def place_parts(uses: Sequence[tuple[int, list[Op], int, Access]], segment: Segment) -> dict[int, int] | None:
    """Return each part's address in the segment, or None if the parts do not fit or a part has several layouts."""
    layouts: dict[int, set[tuple[object, ...]]] = {}
    maps: dict[int, FeatureMap] = {}
    for number, _, _, access in uses:
        fm = access.fm
        if number == WHOLE or fm is None or len(fm.tiles) > 1 or min(fm.strides) <= 0:
            return None
        steps = [step for step, extent in zip(fm.strides[:2], fm.shape[:2], strict=True) if extent > 1]
        if fm.bricks and fm.depth > BRICK:
            steps.append(fm.strides[2])
        layouts.setdefault(number, set()).add((fm.bases[0], *steps, fm.shape, fm.dtype.itemsize, fm.bricks))
        maps[number] = fm
    if any(len(layout) > 1 for layout in layouts.values()):
        return None
    places, at = {}, -(-segment.low // ALIGNMENT) * ALIGNMENT
    for number in sorted(maps):
        places[number] = at
        at += -(-_size_bytes(maps[number]) // ALIGNMENT) * ALIGNMENT
    return places if at <= -(-segment.high // ALIGNMENT) * ALIGNMENT else None


def _size_bytes(fm: FeatureMap) -> int:
    depth = -(-fm.depth // BRICK) * BRICK if fm.bricks else fm.depth
    return fm.height * fm.width * depth * fm.dtype.itemsize


def with_layout(op: Op, fm: FeatureMap, address: int) -> Op:
    size = fm.dtype.itemsize
    column = BRICK * size if fm.bricks else fm.depth * size
    plane = column * fm.width if fm.bricks else size
    row = plane * -(-fm.depth // BRICK) if fm.bricks else column * fm.width
    changed = {"BASE0": address, "STRIDE_X": column, "STRIDE_Y": row, "STRIDE_C": plane}
    return op.copy(**{f"{fm.name}_{name}": raw for name, raw in changed.items()})
