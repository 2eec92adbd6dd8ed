"""NPU_OP_POOL: maxima, averages, sums, and the copies, rescales and transposes that Vela implements as pools.

Source: npu-reference 6.6, 8.3, 8.7.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ethorch.npu import arithmetic
from ethorch.npu.arithmetic import Scaling
from ethorch.npu.arrays import Array, Ints
from ethorch.npu.feature_map import FeatureMap, feature_map
from ethorch.npu.filters import Scales, Streams
from ethorch.npu.forms import Pool
from ethorch.npu.memory import Memory, Span
from ethorch.npu.output import ACC_IFM2, Clamp, OutputStage
from ethorch.npu.prepared import Lazy, Prepared, operation
from ethorch.npu.registers import POOL_MODES_U85, U5X, U85
from ethorch.npu.scaling import ofm_rounding, ofm_scaling
from ethorch.npu.stream import Operation
from ethorch.npu.window import Window, window
from ethorch.support.errors import MachineFault

PADS = ("IFM_PAD_TOP", "IFM_PAD_LEFT", "IFM_PAD_BOTTOM", "IFM_PAD_RIGHT")
ARGMAX_FRACTION = 16  # the index is in the upper half of the accumulator (npu-reference 8.7)


@operation("NPU_OP_POOL", *U5X)
def pool_5x(op: Operation) -> Prepared:
    """Prepare a pooling operation.

    AVERAGE divides by the number of valid positions only if the operation has padding (npu-reference 6.6).
    """
    return POOLS_5X[POOL_MODES_U85[op.mode]](op)


@operation("NPU_OP_POOL", U85)
def pool_u85(op: Operation) -> Prepared:
    """Prepare a pooling operation. AVERAGE always divides by the number of valid positions."""
    return POOLS_85[POOL_MODES_U85[op.mode]](op)


def _sum(op: Operation) -> Prepared:
    w, stage = _channelwise(op)
    if w.is_pointwise and w.stride == (1, 1) and w.ifm.dtype.itemsize == 1 and op["OFM_PRECISION.scale_mode"]:
        return _table_copy(op, w, stage)
    return _pool(op, "SUM", w, stage, lambda m: _window_sum(m, w))


def _valid_average(op: Operation) -> Prepared:
    # npu-reference 6.6
    w, stage = _channelwise(op)
    count = Lazy(lambda: valid_positions(w))
    return _pool(op, "AVERAGE", w, stage, lambda m: arithmetic.average(_window_sum(m, w), count()), unscaled=True)


def _average_5x(op: Operation) -> Prepared:
    return (_valid_average if any(op[pad] for pad in PADS) else _sum)(op)


def _max(op: Operation) -> Prepared:
    w, stage = _channelwise(op)
    return _pool(op, "MAX", w, stage, lambda m: _extreme(m, w, np.maximum, w.ifm.value_range[0]))


def _min(op: Operation) -> Prepared:
    w, stage = _channelwise(op)
    return _pool(op, "MIN", w, stage, lambda m: _extreme(m, w, np.minimum, w.ifm.value_range[1]))


def _reduce_sum(op: Operation) -> Prepared:
    w, stage = window(op), OutputStage(op)
    if not w.is_pointwise or op["OFM_DEPTH"] != 1:
        raise MachineFault(f"REDUCE_SUM: expected kernel (1, 1) and OFM depth 1, got {w.kernel} and {op['OFM_DEPTH']}")
    return _pool(op, "REDUCE_SUM", w, stage, lambda m: _window_sum(m, w).sum(axis=2, keepdims=True))


def _none(op: Operation) -> Prepared:
    # IFM2 is read through the accumulator; the IFM is not used (npu-reference 8.3).
    stage = OutputStage(op)
    if stage.input != ACC_IFM2:
        raise MachineFault(f"POOL NONE with ACC_FORMAT.input {stage.input} is not supported; expected {ACC_IFM2} (IFM2)")
    scaling = _Scale(op, feature_map(op, "IFM", (1, 1, 1)))

    def run(m: Memory) -> None:
        bias, scale = scaling(m)
        stage.accumulate(m, np.zeros(stage.shape, np.int64), scale, bias)

    form = Pool("NONE", None, scaling.form, stage)
    return Prepared(run, stage.reads, stage.writes, 0, stage.ofm.elements, form=form)


def _argmax(axis: int) -> Callable[[Operation], Prepared]:
    def prepare(op: Operation) -> Prepared:
        # Prepares the operation OFM = index of the first maximum along ``axis`` in each window (npu-reference 8.7).
        w, stage = _channelwise(op)
        if w.kernel[1 - axis] != 1:
            raise MachineFault(f"ARGMAX_{'YX'[axis]}: expected a kernel of extent 1 along the {'xy'[axis]} axis, got {w.kernel}")

        def index(m: Memory) -> Ints:
            rows = w.read(m, 0, w.out[0], np.int64, w.ifm.value_range[0])
            best = w.tap(rows, w.out[0], 0, 0)
            where = np.zeros(best.shape, np.int64)
            for k in range(1, w.kernel[axis]):
                x = w.tap(rows, w.out[0], *((k, 0) if axis == 0 else (0, k)))
                where[x > best] = k
                best = np.maximum(best, x)
            return where << ARGMAX_FRACTION

        return _pool(op, f"ARGMAX_{'YX'[axis]}", w, stage, index)

    return prepare


POOLS_5X = {"MAX": _max, "AVERAGE": _average_5x, "REDUCE_SUM": _reduce_sum}
POOLS_85 = {
    "MAX": _max,
    "AVERAGE": _valid_average,
    "REDUCE_SUM": _reduce_sum,
    "SUM": _sum,
    "NONE": _none,
    "MIN": _min,
    "ARGMAX_X": _argmax(1),
    "ARGMAX_Y": _argmax(0),
}


def _channelwise(op: Operation) -> tuple[Window, OutputStage]:
    w, stage = window(op), OutputStage(op)
    if w.ifm.depth != op["OFM_DEPTH"]:
        raise MachineFault(f"pool: expected OFM depth {w.ifm.depth} (the IFM depth), got {op['OFM_DEPTH']}")
    return w, stage


def _pool(
    op: Operation, kind: str, w: Window, stage: OutputStage, value: Callable[[Memory], Ints], unscaled: bool = False
) -> Prepared:
    scaling = None if unscaled else _Scale(op, w.ifm)

    def run(m: Memory) -> None:
        bias, scale = (0, None) if scaling is None else scaling(m)
        stage.accumulate(m, value(m), scale, bias)

    spans = () if scaling is None else scaling.spans
    elements = max(w.padded_elements, stage.ofm.elements)
    (kh, kw), (oh, ow) = w.kernel, w.out
    swept = (w.padded[0] * kw + oh * kh) * ow * w.ifm.depth  # columns, then rows
    form = Pool(kind, w, None if scaling is None else scaling.form, stage)
    return Prepared(run, (w.ifm, *spans, *stage.reads), stage.writes, elements=elements, swept=swept, turns=kh + kw, form=form)


class _Scale:
    def __init__(self, op: Operation, ifm: FeatureMap):
        self.spans: tuple[Span, ...] = ()
        if op["OFM_PRECISION.scale_mode"]:
            self.fixed: Scaling | None = ofm_scaling(op)
        else:
            self.fixed = None
            self.streams = Streams(op, ifm, None, (1, 1))
            self.spans = self.streams.spans

    @property
    def form(self) -> Scaling | Streams:
        return self.streams if self.fixed is None else self.fixed

    def __call__(self, m: Memory) -> tuple[Ints | int, Scaling]:
        if self.fixed is not None:
            return 0, self.fixed
        scales = self.streams.get(m)
        assert isinstance(scales, Scales)
        return scales.bias, scales.scaling


def _window_sum(m: Memory, w: Window) -> Ints:
    zero_point = w.ifm.zero_point
    rows = w.read(m, 0, w.out[0], np.int64, zero_point)
    if zero_point:
        rows -= zero_point
    if w.kernel == (1, 1):
        return w.tap(rows, w.out[0], 0, 0)
    return _separable(w, rows, np.add)


def _extreme(m: Memory, w: Window, pick: np.ufunc, least: int) -> Ints:
    rows = w.read(m, 0, w.out[0], np.int64, least)
    return _separable(w, rows, pick) - w.ifm.zero_point


def _separable(w: Window, rows: Ints, combine: np.ufunc) -> Ints:
    (sy, sx), (dy, dx), (oh, ow) = w.stride, w.dilation, w.out
    across = rows[:, : (ow - 1) * sx + 1 : sx].copy()
    for k in range(1, w.kernel[1]):
        combine(across, rows[:, k * dx : k * dx + (ow - 1) * sx + 1 : sx], out=across)
    down = across[: (oh - 1) * sy + 1 : sy].copy()
    for k in range(1, w.kernel[0]):
        combine(down, across[k * dy : k * dy + (oh - 1) * sy + 1 : sy], out=down)
    return down


def valid_positions(w: Window) -> Ints:
    """Return the number of positions of each window inside the IFM, as [OH, OW, 1]."""
    counts = []
    for axis in (0, 1):
        at = np.arange(w.out[axis])[:, None] * w.stride[axis] + np.arange(w.kernel[axis]) * w.dilation[axis]
        at -= w.before[axis]
        counts.append(((at >= 0) & (at < w.size[axis])).sum(axis=1))
    count: Ints = np.outer(*counts)[:, :, None]
    if not count.all():
        raise MachineFault("expected each pooling window to contain an element of the IFM, but one is completely in the padding")
    return count


def _table_copy(op: Operation, w: Window, stage: OutputStage) -> Prepared:
    if stage.keeps or stage.input:
        return _pool(op, "SUM", w, stage, lambda m: _window_sum(m, w))
    low, high = w.ifm.value_range
    scale = op["OFM_SCALE.scale"], op["OFM_SCALE.shift"], ofm_rounding(op)
    quantized = _map(low, high, w.ifm.zero_point, scale, stage.ofm.zero_point, stage.activation.clamp)
    looks_up = stage.activation.table is not None
    form = Pool("SUM", w, ofm_scaling(op), stage)
    if not looks_up and stage.ofm.dtype == w.ifm.dtype and np.array_equal(quantized, np.arange(low, high + 1)):
        return Prepared(lambda m: stage.write(m, _apart(m, w, stage)), (w.ifm,), stage.writes, 0, w.ifm.elements, form=form)
    fixed = None if looks_up else quantized.astype(stage.ofm.dtype)

    def run(m: Memory) -> None:
        table = stage.activate(m, quantized) if fixed is None else fixed
        stage.write(m, table[m.read(w.ifm).astype(np.intp) - low])

    return Prepared(run, (w.ifm,), stage.writes, 0, max(w.ifm.elements, stage.ofm.elements), form=form)


def _apart(m: Memory, w: Window, stage: OutputStage) -> Array:
    x = m.read(w.ifm)
    return x.copy() if stage.whole or m.overlap(w.ifm, stage.ofm) else x


@lru_cache(256)
def _map(low: int, high: int, zero_point: int, scale: tuple[int, int, str], ofm_zero_point: int, clamp: Clamp) -> Ints:
    y = arithmetic.scaling(*scale)(np.arange(low, high + 1, dtype=np.int64) - zero_point) + ofm_zero_point
    return y if clamp is None else np.clip(y, *clamp)
