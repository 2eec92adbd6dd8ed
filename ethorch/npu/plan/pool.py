"""Structs for pools and resizes. A pool that computes the identity is replaced with a move."""

from __future__ import annotations

import numpy as np

from ethorch.npu import arithmetic
from ethorch.npu.arithmetic import Scaling
from ethorch.npu.arrays import Ints
from ethorch.npu.filters import Scales, Streams
from ethorch.npu.forms import Pool, Resize
from ethorch.npu.ops.pool import valid_positions
from ethorch.npu.plan import layout
from ethorch.npu.plan.convolution import pack_window
from ethorch.npu.plan.packing import Context, NotKnown
from ethorch.npu.plan.ranges import INT32, magnitude, within
from ethorch.npu.plan.stage import Sums, pack_stage
from ethorch.npu.window import UPSCALE_NONE, Window


def pack_pool(c: Context, form: Pool) -> layout.Pool | layout.Move:
    scaling, bias = _scaling(c, form)
    if form.window is None:
        stage = pack_stage(c, form.stage, Sums(scaling, 1 << 62, bias=bias), ())
        return layout.Pool(stage=stage, kind=layout.POOLS.index("NONE"), wide=1)
    w = form.window
    if w.is_pointwise and w.stride == (1, 1) and _is_identity(form, w, scaling, bias):
        return layout.Move(c.read(w.ifm), pack_stage(c, form.stage, Sums(None, 0, element_wise=True), (w.ifm,)))
    window = pack_window(c, w)
    reach = magnitude(c.range_of(w.ifm))
    terms = {"SUM": w.taps, "AVERAGE": w.taps, "REDUCE_SUM": w.ifm.depth}.get(form.kind, 1)
    wide = terms * reach >= INT32[1] or abs(w.ifm.zero_point) > INT32[1] or not within(w.ifm.value_range, INT32)
    wide = wide or form.kind.startswith("ARGMAX")
    sums = Sums(scaling, terms * reach + (0 if bias is None else int(np.abs(bias).max())), bias=bias, wide=wide)
    pool = layout.Pool(window, pack_stage(c, form.stage, sums, (w.ifm,)), layout.POOLS.index(form.kind))
    pool.wide = wide
    if form.kind == "AVERAGE":
        multiplier, shift = arithmetic.reciprocal(valid_positions(w).ravel())
        pool.multiplier, pool.shift = c.hold(multiplier), c.hold(shift)
    least, most = w.ifm.value_range
    pool.fill = {"SUM": w.ifm.zero_point, "AVERAGE": w.ifm.zero_point, "MIN": most}.get(form.kind, least)
    return pool


def _scaling(c: Context, form: Pool) -> tuple[Scaling | None, Ints | None]:
    if not isinstance(form.scaling, Streams):
        return form.scaling, None
    scales = form.scaling.decode(c.reader(form.scaling))
    if not isinstance(scales, Scales):
        raise NotKnown("the pool has weights")
    return scales.scaling, scales.bias


def _is_identity(form: Pool, w: Window, scaling: Scaling | None, bias: Ints | None) -> bool:
    stage = form.stage
    if form.kind not in ("SUM", "MAX", "MIN", "AVERAGE") or stage.keeps or stage.input or stage.activation.table is not None:
        return False
    if stage.ofm.dtype != w.ifm.dtype or (bias is not None and bias.any()):
        return False
    low, high = w.ifm.value_range
    if stage.activation.clamp is not None and not within((low, high), stage.activation.clamp):
        return False
    if form.kind == "AVERAGE" or scaling is None or scaling.is_identity:
        return w.ifm.zero_point == stage.ofm.zero_point and w.upscale == UPSCALE_NONE and form.kind != "AVERAGE"
    if w.ifm.dtype.itemsize > 2 or scaling.shift.ndim:
        return False
    values = np.arange(low, high + 1, dtype=np.int64)
    return bool(np.array_equal(stage.quantize(values - w.ifm.zero_point, scaling), values))


def pack_resize(c: Context, form: Resize) -> layout.Resize:
    stage = pack_stage(c, form.stage, Sums(form.scaling, 1 << 62, wide=True), (form.ifm,))
    (row_n, *rows), (column_n, *columns) = form.rows, form.columns
    arrays = [c.hold(a.astype(np.int64)) for a in (*rows, *columns)]
    return layout.Resize(c.read(form.ifm), stage, form.mode, 0, row_n, column_n, *arrays)
