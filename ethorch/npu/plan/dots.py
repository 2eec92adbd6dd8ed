"""Fuse elementwise products with their sums. Vela emits products of activation matrices in this form on U55 and U65."""

# The stream repeats a MUL of bytes into a 32-bit buffer and a REDUCE_SUM over its channels. Products that are overwritten before
# any other read are not stored, so memory can differ from hardware after a fault.

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from itertools import pairwise

from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.forms import Copy, Elementwise, Nothing, Pool
from ethorch.npu.memory import Span
from ethorch.npu.plan import layout
from ethorch.npu.plan.packing import Context, same_place
from ethorch.npu.plan.ranges import INT16, INT32, magnitude, of_map, within
from ethorch.npu.prepared import Step

Packed = list[tuple[Step, ctypes.Structure | None]]
LOOK_AHEAD = 64  # steps within which the products must be overwritten


def fuse_dots(c: Context, packed: Packed) -> None:
    """Replace each fusible REDUCE_SUM with a ``Dot``, and the MUL before it with ``Nothing``."""
    active = [k for k, (step, _) in enumerate(packed) if not isinstance(step.prepared.form, Nothing)]
    for at, (first, second) in enumerate(pairwise(active)):
        dot = _dot(c, packed[first], packed[second])
        if dot is None:
            continue
        product = packed[first][0].prepared.writes[0]
        assert isinstance(product, FeatureMap)
        if _is_overwritten(c, product, (packed[k][0] for k in active[at + 2 : at + 2 + LOOK_AHEAD])):
            packed[first] = packed[first][0], layout.Nothing()
            packed[second] = packed[second][0], dot


def _dot(
    c: Context, product: tuple[Step, ctypes.Structure | None], total: tuple[Step, ctypes.Structure | None]
) -> layout.Dot | None:
    mul, pool = product[1], total[1]
    of, by = product[0].prepared.form, total[0].prepared.form
    if not (isinstance(mul, layout.Elementwise) and isinstance(pool, layout.Pool)):
        return None
    if not (isinstance(of, Elementwise) and isinstance(by, Pool)) or of.value.name != "MUL" or by.kind != "REDUCE_SUM" or pool.wide:
        return None
    s, w = mul.stage, by.window
    plain = s.mode == layout.SCALE_NOTHING and not s.clamps and s.table == layout.TABLE_NONE and not s.whole and not mul.wide
    if not plain or w is None or w.stride != (1, 1) or not same_place(w.ifm, of.stage.ofm) or w.ifm.dtype != of.stage.ofm.dtype:
        return None
    a, b = of.operands
    if not (isinstance(a, FeatureMap) and isinstance(b, FeatureMap)) or mul.a.spread or mul.b.spread & 4:
        return None
    for fm in (a, b):
        if fm.dtype.itemsize != 1 or fm.bricks or not fm.in_memory or len(fm.tiles) != 1 or not within(of_map(fm), INT16):
            return None
        if not by.stage.keeps and c.overlap(fm, by.stage.ofm):
            return None
    add = w.ifm.depth * (of.stage.ofm.zero_point - w.ifm.zero_point)
    if w.ifm.depth * magnitude(of_map(a)) * magnitude(of_map(b)) + abs(add) >= INT32[1]:
        return None
    return layout.Dot(mul.a.map, mul.b.map, pool.stage, mul.b.spread, w.ifm.depth, add, 0)


def _is_overwritten(c: Context, fm: FeatureMap, later: Iterable[Step]) -> bool:
    for step in later:
        prepared = step.prepared
        if prepared.scattered is not None or prepared.form is None:
            return False
        for access in prepared.reads:
            if access.region == fm.region and any(
                start < b and a < stop for start, stop in c.reaches(fm) for a, b in _spans(c, access)
            ):
                return False
        if not isinstance(prepared.form, Copy):
            for access in prepared.writes:
                if isinstance(access, FeatureMap) and same_place(access, fm):
                    return True
    return False


def _spans(c: Context, access: FeatureMap | Span) -> list[tuple[int, int]]:
    if isinstance(access, Span):
        return [(access.base, access.base + access.size_bytes)]
    return c.reaches(access) if access.in_memory else []
