"""Structs for elementwise operations, which compute in int32 if all intermediate values fit, and in int64 otherwise."""

from __future__ import annotations

import ctypes

import numpy as np

from ethorch.npu.arithmetic import Scaling
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.forms import Elementwise
from ethorch.npu.plan import layout
from ethorch.npu.plan.library import buffers
from ethorch.npu.plan.packing import Context, NotKnown
from ethorch.npu.plan.ranges import INT32, Range, combine, magnitude, one_exact_in_double, scale_range, within
from ethorch.npu.plan.stage import Sums, pack_stage

LEAST_PAIRS = 1 << 13  # least number of elements for which a table of all pairs of bytes is faster than int64
_WANTS = {"SHR": layout.WANT_SHIFT, "SHL": layout.WANT_SHIFT, "LSR": layout.WANT_SHIFT, "DIV": layout.WANT_DIVISOR}


def pack_elementwise(c: Context, form: Elementwise) -> layout.Elementwise:
    value, stage = form.value, form.stage
    maps = tuple(o for o in form.operands if isinstance(o, FeatureMap))
    before = [c.range_of(o) if isinstance(o, FeatureMap) else (o, o) for o in form.operands]
    scales = value.scales
    narrow = all(
        within(r, INT32) and (isinstance(o, int) or within(o.value_range, INT32))
        for r, o in zip(before, form.operands, strict=True)
    )
    result: Range | None = None
    if narrow:
        result = _result(form, before)
    narrow = result is not None
    largest = magnitude(result) if result is not None else 1 << 62
    sums = Sums(form.scaling, largest, element_wise=True, wide=not narrow)
    e = layout.Elementwise()
    e.stage = pack_stage(c, stage, sums, maps)
    for place, operand, scale in zip((e.a, e.b), form.operands, scales, strict=False):
        _pack_operand(c, place, operand, scale, narrow, stage.shape)
    if value.name == "LRELU":  # both scales apply to the single operand
        e.b.is_constant = 1
        _pack_scale(c, e.b, scales[1], narrow)
    e.what, e.operands = layout.FUNCTIONS.index(value.name), len(form.operands)
    e.wide, e.wraps, e.rounds, e.mask = not narrow, value.wraps, value.rounds, value.mask
    e.want = _WANTS.get(value.name, layout.WANT_NOTHING)
    as_it_is = e.stage.mode == layout.SCALE_NOTHING and not e.stage.clamps and e.stage.table == layout.TABLE_NONE
    if result is not None and as_it_is and stage.ofm.in_memory and not e.stage.turned and not value.wraps:
        low, high = (bound + stage.ofm.zero_point for bound in result)
        if within((low, high), stage.ofm.value_range):
            c.computed = stage.ofm, (low, high)
    if not narrow and _pays(form, e):
        e.pairs = _pairs(c, e)
    return e


def _result(form: Elementwise, before: list[Range]) -> Range | None:
    value = form.value
    if value.name == "LRELU":
        parts = [scale_range(before[0], s) if _is_exact(before[0], s) else None for s in value.scales]
        if parts[0] is None or parts[1] is None:
            return None
        both = min(parts[0][0], parts[1][0]), max(parts[0][1], parts[1][1])
        return both if within(both, INT32) else None
    after = []
    for r, s in zip(before, value.scales, strict=False):
        if not _is_exact(r, s):
            return None
        after.append(scale_range(r, s))
    if not all(within(r, INT32) for r in after):
        return None
    if value.wraps:
        return INT32 if value.name in ("ADD", "SUB") else None
    combined = combine(value.name, after[0], after[-1], value.mask)
    return combined if combined is not None and within(combined, INT32) else None


def _is_exact(r: Range, s: Scaling) -> bool:
    return s.is_identity or (s.shift.ndim == 0 and one_exact_in_double(magnitude(r), s, 0))


def _pack_operand(
    c: Context, place: layout.Operand, operand: FeatureMap | int, scale: Scaling, narrow: bool, shape: tuple[int, int, int]
) -> None:
    if isinstance(operand, int):
        place.is_constant, place.constant = 1, operand
    else:
        place.map = c.read(operand)
        for bit, extent, ofm_extent in zip((1, 2, 4), operand.shape, shape, strict=True):
            if extent != ofm_extent:
                if extent != 1:
                    raise NotKnown("the operand shapes do not broadcast")
                place.spread |= bit
    _pack_scale(c, place, scale, narrow)


def _pack_scale(c: Context, place: layout.Operand, scale: Scaling, narrow: bool) -> None:
    if scale.shift.ndim:
        raise NotKnown("an operand has per-channel scales")
    if scale.is_identity or not narrow:
        place.scale = c.scale(scale)
    else:
        place.scaled = c.double_scale(scale, 0)


def _pays(form: Elementwise, e: layout.Elementwise) -> bool:
    stage = form.stage
    bytes_only = len(form.operands) == 2 and all(isinstance(o, int) or o.dtype.itemsize == 1 for o in form.operands)
    direct = e.stage.table in (layout.TABLE_NONE, layout.TABLE_DIRECT)
    one_byte = stage.ofm.dtype.itemsize == 1 or e.stage.table == layout.TABLE_DIRECT
    free = not (stage.keeps or stage.input)
    return bytes_only and direct and one_byte and free and stage.ofm.elements >= LEAST_PAIRS and e.want == layout.WANT_NOTHING


def _pairs(c: Context, e: layout.Elementwise) -> int:
    table = np.zeros(1 << 16, np.uint8)
    every = np.arange(256, dtype=np.uint8)
    step = layout.Elementwise.from_buffer_copy(e)
    for place, strides, spread in ((step.a, (1, 1), 2), (step.b, (1, 1), 1)):
        m = place.map
        shape = (256, 1) if spread == 2 else (1, 256)
        place.map = layout.Map(0, 1, 0, 1, m.is_signed, *shape, 1, m.zero_point, *strides, 1)
        place.map.tile[0] = layout.Tile(0, 0, *shape, 0)
        place.spread = spread
    s = step.stage
    s.height, s.width, s.depth, s.whole, s.turned, s.table = 256, 256, 1, 0, 0, layout.TABLE_NONE
    s.out = layout.Map(1, 1, 0, 1, 0, 256, 256, 1, e.stage.out.zero_point, 256, 1, 1)
    s.out.tile[0] = layout.Tile(0, 0, 256, 256, 0)
    machine = layout.Machine()
    machine.region[0], machine.region[1] = every.ctypes.data, table.ctypes.data
    steps = (layout.Step * 1)(layout.Step(layout.KINDS[layout.Elementwise], 0, ctypes.addressof(step)))
    if c.library.ethorch_run(ctypes.addressof(steps), 0, 1, machine, buffers().pointer, None) != 1:
        raise NotKnown("the table of operand pairs cannot be computed")
    return c.hold(table)
