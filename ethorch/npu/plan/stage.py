"""The output stage as a struct. Accumulators are scaled in float64 if the result is exact, and in int64 otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ethorch.npu import arithmetic
from ethorch.npu.arithmetic import Scaling
from ethorch.npu.arrays import Array, Ints
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.filters import FLOAT64_EXACT
from ethorch.npu.output import ACC_IFM2, ACC_KEEP, ACC_RESET, Activation, OutputStage
from ethorch.npu.plan import layout
from ethorch.npu.plan.packing import Context, NotKnown, same_place
from ethorch.npu.plan.ranges import (
    INT16,
    INT32,
    Range,
    all_exact_in_double,
    exact_in_double,
    magnitude,
    one_exact_in_double,
    within,
)

_FORMULAS: dict[object, int] = {
    arithmetic.interpolate_16: layout.TABLE_16_16,
    arithmetic.interpolate_32: layout.TABLE_16_32,
    arithmetic.tanh_16: layout.TABLE_TANH,
    arithmetic.sigmoid_16: layout.TABLE_SIGMOID,
}


@dataclass(eq=False)
class Sums:
    """The properties of the accumulators that the output stage scales.

    Attributes:
        largest: Bound on |accumulator + offset + bias|, a scalar or one element per channel.
        offset, bias: int64 values per channel, or None. Kept accumulators are added between ``offset`` and ``bias``.
        element_wise: Whether each OFM element depends only on the corresponding input elements.
        wide: Whether the accumulators are int64 and are scaled as integers.
    """

    scaling: Scaling | None
    largest: int | Array
    offset: Ints | None = None
    bias: Ints | None = None
    element_wise: bool = False
    wide: bool = False


def pack_stage(c: Context, stage: OutputStage, sums: Sums, reads: tuple[FeatureMap, ...]) -> layout.Stage:
    """Pack an output stage. If its mode permits int32 accumulators, they must include offset and bias.

    Raises:
        NotKnown: The operation must run in Python.
        MachineFault: The operation fails in Python too.
    """
    s = layout.Stage()
    s.height, s.width, s.depth = stage.shape
    s.axis[:] = stage.transpose
    s.reverse = stage.reverse
    s.turned = stage.transpose != (0, 1, 2) or stage.reverse >= 0
    if stage.ifm2 is not None:
        s.ifm2, s.adds_ifm2 = c.read(stage.ifm2), 1
        reads = (*reads, stage.ifm2)
    _pack_accumulator(c, stage, s)
    if stage.keeps:
        s.out.bytes = 1
    else:
        s.out = c.write(stage.ofm)
        apart = all(not c.overlap(fm, stage.ofm) or (sums.element_wise and same_place(fm, stage.ofm)) for fm in reads)
        s.whole = s.turned or not apart
    s.out.zero_point = stage.ofm.zero_point
    _pack_activation(c, stage.activation, s)
    s.offset, s.bias = (0 if a is None else c.hold(a) for a in (sums.offset, sums.bias))
    s.mode = layout.SCALE_INTEGER if sums.wide else _mode(c, stage, sums, s)
    if s.mode != layout.SCALE_DOUBLE:
        s.scale = c.scale(sums.scaling)
    return s


def _pack_accumulator(c: Context, stage: OutputStage, s: layout.Stage) -> None:
    s.keeps, s.adds_kept = stage.keeps, stage.input == ACC_KEEP
    if stage.input not in (ACC_RESET, ACC_KEEP, ACC_IFM2):
        raise NotKnown("ACC_FORMAT.input is unknown")
    if not (s.keeps or s.adds_kept):
        return
    if not c.carries:
        raise NotKnown("accumulators of this stream are processed in Python")
    if s.adds_kept:
        if c.accumulator is None or c.accumulator[0] != stage.shape:
            raise NotKnown("no kept accumulators have the shape of the OFM")
        s.kept = c.accumulator[1]
    else:
        s.kept = c.allocate(8 * int(np.prod(stage.shape)))
    if s.keeps:
        c.accumulator = stage.shape, s.kept


def _pack_activation(c: Context, a: Activation, s: layout.Stage) -> None:
    if a.clamp is not None:
        s.clamps, (s.low, s.high) = 1, a.clamp
    if a.table is None:
        return
    entry = np.dtype(a.table.entry)
    s.entry_bytes, s.entry_signed, s.table_origin = entry.itemsize, entry.kind == "i", a.table.origin
    if a.built_in is not None:
        if a.built_in.size < a.table.size_bytes:
            raise NotKnown("the built-in table is too small")
        s.built_in = c.hold(a.built_in)
    else:
        c.memory.lut(a.address, a.table.size_bytes)  # raises MachineFault outside internal memory
        s.table_address = a.address
    if a.table.formula is None:
        entries = a.table.size_bytes // entry.itemsize
        if a.clamp is None or entries != 256 or not within((s.low + s.table_origin, s.high + s.table_origin), (0, 255)):
            raise NotKnown("values may exceed the input range of the table")
        s.table = layout.TABLE_DIRECT
        return
    s.table = _FORMULAS.get(a.table.formula, layout.TABLE_NONE)
    if s.table == layout.TABLE_NONE or a.table.size_bytes != 2048:
        raise NotKnown("the format of the table is unknown")
    if s.table in (layout.TABLE_16_16, layout.TABLE_16_32) and (a.clamp is None or not within(a.clamp, INT16)):
        raise NotKnown("values may exceed the input range of the table")


def _mode(c: Context, stage: OutputStage, sums: Sums, s: layout.Stage) -> int:
    if stage.needs_whole and (stage.keeps or stage.input != ACC_RESET):
        return layout.SCALE_INTEGER
    if stage.ofm.dtype.itemsize > 4:
        return layout.SCALE_INTEGER
    scaling, zero_point = sums.scaling, stage.ofm.zero_point
    if isinstance(sums.largest, int) and (scaling is None or scaling.shift.ndim == 0):
        parts = scaling and (int(scaling.multiplier), int(scaling.shift), scaling.rounding, scaling.double)
        key = sums.largest, parts, zero_point, stage.activation.clamp, sums.bias is None and sums.offset is None
        if key not in c.modes:
            c.modes[key] = _mode_of_one(stage.activation.clamp, zero_point, sums, sums.largest)
        mode, ends = c.modes[key]
    else:
        mode, ends = _mode_of(stage.activation.clamp, zero_point, sums)
    if ends is not None:
        s.low, s.high = ends
    if mode == layout.SCALE_DOUBLE:
        assert scaling is not None
        s.scaled = c.double_scale(scaling, zero_point)
    return mode


def _mode_of(clamp: Range | None, zero_point: int, sums: Sums) -> tuple[int, Range | None]:
    largest, scaling = np.asarray(sums.largest, np.float64), sums.scaling
    if largest.max(initial=0) >= INT32[1]:
        return layout.SCALE_INTEGER, None
    if clamp is not None and not within(clamp, INT32):
        return layout.SCALE_INTEGER, None
    most: Range = (-int(largest.max(initial=0)) - 1, int(largest.max(initial=0)) + 1)
    if scaling is None or scaling.is_identity:
        fits = magnitude(most) + abs(zero_point) < INT32[1]
        return layout.SCALE_NOTHING if fits and sums.bias is None and sums.offset is None else layout.SCALE_INTEGER, None
    if clamp is not None and all_exact_in_double(largest, scaling, zero_point):
        return layout.SCALE_DOUBLE, None
    exact, ends = exact_in_double(largest, scaling, zero_point), None
    if clamp is not None:
        exact = exact | _saturates(scaling, zero_point, max(abs(clamp[0]), abs(clamp[1])))
    else:
        reach = largest * np.abs(scaling.multiplier) / np.ldexp(1.0, np.asarray(scaling.shift)) + abs(zero_point) + 2
        if np.max(reach) >= INT32[1]:
            return layout.SCALE_INTEGER, None
        ends = INT32
    if np.all(exact):
        return layout.SCALE_DOUBLE, ends
    is_long = bool(np.all(np.abs(scaling.multiplier) <= INT32[1]) and np.max(scaling.shift) < 62)
    return layout.SCALE_LONG if is_long else layout.SCALE_INTEGER, ends


def _mode_of_one(clamp: Range | None, zero_point: int, sums: Sums, largest: int) -> tuple[int, Range | None]:
    scaling = sums.scaling
    if largest >= INT32[1] or (clamp is not None and not within(clamp, INT32)):
        return layout.SCALE_INTEGER, None
    if scaling is None or scaling.is_identity:
        fits = largest + 1 + abs(zero_point) < INT32[1]
        return layout.SCALE_NOTHING if fits and sums.bias is None and sums.offset is None else layout.SCALE_INTEGER, None
    multiplier, shift = int(scaling.multiplier), int(scaling.shift)
    exact, ends = one_exact_in_double(largest, scaling, zero_point), None
    if clamp is not None:
        exact = exact or bool(_saturates(scaling, zero_point, max(abs(clamp[0]), abs(clamp[1]))))
    else:
        if largest * abs(multiplier) / 2.0**shift + abs(zero_point) + 2 >= INT32[1]:
            return layout.SCALE_INTEGER, None
        ends = INT32
    if exact:
        return layout.SCALE_DOUBLE, ends
    return layout.SCALE_LONG if abs(multiplier) <= INT32[1] and shift < 62 else layout.SCALE_INTEGER, ends


def _saturates(s: Scaling, zero_point: int, clamp: int) -> Array:
    # If a product can be rounded, the result must exceed the clamp.
    above, below = s.addends
    unit = np.ldexp(1.0, np.asarray(s.shift))
    saturates: Array = (
        (above == below)
        & (np.asarray(s.shift) > 0)
        & ((abs(zero_point) + 1) * unit < FLOAT64_EXACT / 2)
        & (FLOAT64_EXACT / 2 / unit >= 2 * (clamp + abs(zero_point) + 2))
    )
    return saturates
