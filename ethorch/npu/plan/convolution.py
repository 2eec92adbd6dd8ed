"""Structs for convolutions, depthwise convolutions, and products of two feature maps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ethorch.npu.arrays import Array
from ethorch.npu.filters import FLOAT32_EXACT, Filter
from ethorch.npu.forms import Convolution, Product
from ethorch.npu.plan import layout
from ethorch.npu.plan.packing import LANES, Context, NotKnown
from ethorch.npu.plan.ranges import INT16, INT32, magnitude, of_map, within
from ethorch.npu.plan.stage import Sums, pack_stage
from ethorch.npu.window import UPSCALE_NONE, Window

BYTES, PAIRS = 1, 2  # Conv.element: contents of four bytes of a pixel
SUM_TYPES = {layout.SUM_FLOAT: "float32", layout.SUM_INT32: "int32", layout.SUM_INT64: "int64"}
ALIGNMENT = 64
INT64_SAFE = 2.0**62


def pack_window(c: Context, w: Window) -> layout.Window:
    """Pack the geometry of a window. Every position read is in the IFM or its padding."""
    return layout.Window(
        c.read(w.ifm), *w.kernel, *w.stride, *w.dilation, *w.before, *w.size, w.padded[1], w.upscale
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of a filter, packed for compiled code.

    Attributes:
        kind: Value of the C++ field ``Conv.element`` or ``Depthwise.sum``.
        flip: Mask XORed with each byte of the IFM.
        correction: Error (int64) that ``flip`` causes in the accumulators of each channel.
        chunk: See ``Conv`` in ``cpp/plan.h``.
    """

    sums: Sums
    address: int
    kind: int
    flip: int = 0
    correction: int | Array = 0
    chunk: int = 0

    def start(self, mode: int, depth: int, dtype: str) -> Array:
        """Return the initial accumulators: the negative correction, plus offset and bias unless the output stage adds these.

        int32 accumulators wrap.
        """
        offset, bias = self.sums.offset, self.sums.bias
        assert offset is not None and bias is not None
        initial = (0 if mode == layout.SCALE_INTEGER else offset + bias) - np.broadcast_to(self.correction, bias.shape)
        sums = np.zeros(depth, dtype)
        sums[: len(bias)] = _low_bits(initial) if dtype == "int32" else initial
        return sums


def _low_bits(values: Array) -> Array:
    return (values & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def pack_convolution(c: Context, form: Convolution) -> layout.Conv | layout.Depthwise:
    read = c.reader(form.streams)
    key = form.streams.key(read)
    weights = c.filters.get(key)
    if weights is None:
        f = form.streams.decode(read)
        if not isinstance(f, Filter):
            raise NotKnown("the convolution has no weights")
        weights = c.filters[key] = (_depthwise_weights if form.depthwise else _weights)(c, form.window, f)
    assert isinstance(weights, Weights)
    return (_depthwise if form.depthwise else _conv)(c, form, weights)


def _sums(f: Filter) -> Sums:
    if np.any(f.largest * np.abs(f.scaling.multiplier) >= INT64_SAFE):
        raise NotKnown("products may exceed int64")
    return Sums(f.scaling, f.largest, f.offset, f.bias)


def _weights(c: Context, w: Window, f: Filter) -> Weights:
    ifm, channels = w.ifm, f.matrix.shape[1]
    low, high = ifm.value_range
    padding = within((ifm.zero_point, ifm.zero_point), ifm.value_range)
    narrow = f.largest.max(initial=0) < INT32[1]
    if narrow and ifm.dtype.itemsize == 1 and c.library.ethorch_byte_dot() and padding and f.matrix.dtype == np.int8:
        element, flip = BYTES, 0x80 if ifm.dtype.kind == "i" else 0
    elif within((min(low, ifm.zero_point), max(high, ifm.zero_point)), INT16):
        element, flip = PAIRS, 0
    else:
        raise NotKnown("the IFM or its zero point exceeds int16")
    chunk = 0
    if not narrow:
        reach = max(-low, high, abs(ifm.zero_point))
        chunk = INT32[1] // (PAIRS * reach * max(int(np.abs(f.matrix, dtype=np.int16).max(initial=0)), 1))
    raw = np.zeros(c.library.ethorch_packed_bytes(w.taps, ifm.depth, channels, element) + ALIGNMENT, np.uint8)
    address = c.hold(raw)
    address += -address % ALIGNMENT
    c.library.ethorch_pack_weights(f.matrix.ctypes.data, f.matrix.itemsize, w.taps, ifm.depth, channels, element, address)
    correction = flip * f.matrix.sum(axis=0, dtype=np.int64) if flip else 0
    return Weights(_sums(f), address, element, flip, correction, chunk)


def _conv(c: Context, form: Convolution, weights: Weights) -> layout.Conv:
    w = form.window
    window = pack_window(c, w)
    stage = pack_stage(c, form.stage, replace(weights.sums, wide=weights.chunk > 0), (w.ifm,))
    group = 4 if weights.kind == BYTES else 2
    depth = -(-w.ifm.depth // group) * group
    start = c.hold(weights.start(stage.mode, form.stage.shape[2] + 4 * LANES, "int32"))
    return layout.Conv(window, stage, weights.address, start, weights.kind, weights.flip, depth, weights.chunk)


def _depthwise_weights(c: Context, w: Window, f: Filter) -> Weights:
    largest = f.largest.max(initial=0)
    if largest < FLOAT32_EXACT:
        kind = layout.SUM_FLOAT
    else:
        kind = layout.SUM_INT32 if largest < INT32[1] else layout.SUM_INT64
    weights = np.zeros((w.taps, _pad_depth(w)), SUM_TYPES[kind])
    weights[:, : w.ifm.depth] = f.matrix
    return Weights(_sums(f), c.hold(weights), kind)


def _depthwise(c: Context, form: Convolution, weights: Weights) -> layout.Depthwise:
    w = form.window
    window = pack_window(c, w)
    stage = pack_stage(c, form.stage, replace(weights.sums, wide=weights.kind == layout.SUM_INT64), (w.ifm,))
    start = c.hold(weights.start(stage.mode, _pad_depth(w), SUM_TYPES[weights.kind]))
    return layout.Depthwise(window, stage, weights.address, start, weights.kind, _pad_depth(w))


def _pad_depth(w: Window) -> int:
    return -(-w.ifm.depth // LANES) * LANES


def pack_product(c: Context, form: Product) -> layout.Product:
    w = form.window
    if w.padded != w.size or w.upscale != UPSCALE_NONE or w.before != (0, 0):
        raise NotKnown("the product has padding or upscaling")
    window, weights = pack_window(c, w), c.read(form.weights)
    a, b = of_map(w.ifm), of_map(form.weights)
    largest = magnitude(a) * magnitude(b) * w.ifm.depth
    wide = not (within(a, INT16) and within(b, INT16)) or largest >= INT32[1]
    stage = pack_stage(c, form.stage, Sums(form.scaling, largest, wide=wide), (w.ifm, form.weights))
    return layout.Product(window, weights, stage, wide, PAIRS, 0, w.ifm.depth + w.ifm.depth % 2)
