"""Decoded weights, biases and scales of an operation, prepared for exact matrix products."""

# x*w is summed over raw IFM values, with the zero point as padding. ``Filter.offset`` contains the zero point's contribution. So
# |sum| <= max|x| * sum|w|, which depends only on the weights. float32 sums are exact below 2**24, float64 sums below 2**53. A sum
# beyond the float32 bound is split into partial sums within the bound, if that is faster than float64.

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import numpy as np

from ethorch.npu.arithmetic import SAME_ROUNDING, Scaling
from ethorch.npu.arrays import Array, Bytes, Ints
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.memory import Memory, Span
from ethorch.npu.scaling import ofm_rounding
from ethorch.npu.stream import Operation, kernel_stride
from ethorch.npu.weights import decode
from ethorch.npu.weights import order as traversal
from ethorch.npu.weights.order import Order
from ethorch.support.errors import MachineFault

FLOAT32_EXACT, FLOAT64_EXACT = 1 << 24, 1 << 53
STREAM_ALIGNMENT = 16  # bytes; alignment of a weight or scale stream's address and length (npu-reference 4)
LEAST_WEIGHT, MOST_WEIGHT = -256, 255  # weights have 9 bits (npu-reference 4.1)
MOST_PARTS = 4  # partial sums in float32; more are as slow as float64
PART_CHOICES = 128  # candidate positions for splitting a sum
_PIECE = 1 << 17  # weights whose magnitudes are summed at a time, to save memory


@dataclass(frozen=True, eq=False)
class Filter:
    """Weights for exact matrix products in a float type.

    Attributes:
        matrix: Weights [K, O] for CONV (K = KH*KW*C) or [KH*KW, O] for DEPTHWISE, in the smallest sufficient integer type.
        dtype: Float type of the matrix products.
        parts: Row ranges of ``matrix``. The partial accumulators of each range are exact in ``dtype``.
        offset: int64[O], the contribution of the zero point to each accumulator.
        bias: int64[O], added by the output stage (npu-reference 8.1).
        largest: float64[O], a bound on |accumulator + offset + bias| and on intermediate sums.
    """

    matrix: Array
    dtype: type
    parts: tuple[slice, ...]
    offset: Ints
    bias: Ints
    scaling: Scaling
    largest: Array


@dataclass(frozen=True, eq=False)
class Scales:
    """The bias and scaling of each channel of a POOL, which has no weights (npu-reference 5)."""

    bias: Ints
    scaling: Scaling


class Streams:
    """The weight and scale streams of one operation. They are decoded again only if their bytes change."""

    def __init__(self, op: Operation, ifm: FeatureMap, kind: str | None, kernel: tuple[int, int]):
        self.ifm = ifm
        self.family, self.depth = op.npu.family, op["OFM_DEPTH"]
        rounding = ofm_rounding(op)
        self.rounding = SAME_ROUNDING.get(rounding, rounding)
        self.fast = bool(op.state.get("WEIGHT_FORMAT.decoder", 0))
        self.depthwise = kind == "DW"
        self.order: Order | None = None
        names = ["WEIGHT", "WEIGHT1", "WEIGHT2", "WEIGHT3"]
        self.weight_spans = [] if kind is None else _spans(op, names, "WEIGHT_REGION")
        # u65-512 splits scales as it splits weights; U85 has one stream for all cores (npu-reference 5).
        self.scale_spans = _spans(op, ["SCALE", "SCALE1"], "SCALE_REGION")
        self.layout = decode.SCALE_LAYOUTS[op.npu.family, op["ACC_FORMAT.format"]]
        if kind is not None:
            self.order = _order(op, ifm, kind, kernel)
        self._cached: tuple[bytes | None, Filter | Scales] | None = None

    @property
    def spans(self) -> tuple[Span, ...]:
        return (*self.weight_spans, *self.scale_spans)

    def get(self, m: Memory) -> Filter | Scales:
        cached, constant = self._cached, all(m.is_constant(s.region) for s in self.spans)
        if cached is not None and constant and cached[0] is None:
            return cached[1]
        data = self._digest(m.span)
        if cached is None or data != cached[0]:
            value = m.decode(self._key(data), lambda: self.decode(m.span))
            self._cached = cached = (None if constant else data, value)
        return cached[1]

    def key(self, read: Callable[[Span], Bytes]) -> Hashable:
        return self._key(self._digest(read))

    def _digest(self, read: Callable[[Span], Bytes]) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for s in self.spans:
            digest.update(read(s).data)
        return digest.digest()

    def _key(self, data: bytes) -> Hashable:
        context = self.order, self.ifm.zero_point, self.ifm.dtype.str, self.depth, self.rounding, self.layout, self.fast
        return data, tuple(s.size_bytes for s in self.spans), context

    def decode(self, read: Callable[[Span], Bytes]) -> Filter | Scales:
        """Decode the bytes that ``read`` returns for each span."""
        bias, scaling = self._scales(read)
        if self.order is None:
            return Scales(bias, scaling)
        w = self._weights(read, self.order)  # [O, KH*KW, I]
        rows = w[:, :, 0] if self.depthwise else w.reshape(len(w), -1)  # [O, K]
        offset = -self.ifm.zero_point * rows.sum(axis=1, dtype=np.int64)
        low, high = self.ifm.value_range
        reach = max(-low, high, abs(self.ifm.zero_point))
        most = (FLOAT32_EXACT - 1) // reach
        sums, step = _magnitudes(rows, most)
        parts = _parts(sums, most, step, rows.shape[1])
        largest = sums.sum(axis=1, dtype=np.int64).astype(np.float64) * reach
        if largest.max(initial=0) >= FLOAT64_EXACT:
            raise MachineFault("expected convolution accumulators below 2**53, but these weights permit larger ones")
        largest += np.abs(bias) + np.abs(offset)
        matrix = np.ascontiguousarray(rows.T)
        dtype = np.float32 if parts else np.float64
        return Filter(matrix, dtype, parts or (slice(None),), offset, bias, scaling, largest)

    def _scales(self, read: Callable[[Span], Bytes]) -> tuple[Ints, Scaling]:
        depth = self.depth
        if not self.scale_spans:
            raise MachineFault("the operation requires per-channel scales; expected a SCALE_LENGTH greater than 0, got 0")
        streams = [decode.decode_scales(read(s).tobytes(), self.layout) for s in self.scale_spans]
        columns = []
        for values in zip(*streams, strict=True):
            column = np.zeros(depth, np.int64)
            for s, part in enumerate(values):
                channels = len(column[s :: len(streams)])
                if len(part) < channels:
                    raise MachineFault(f"expected at least {channels} entries in the scale stream, got {len(part)}")
                column[s :: len(streams)] = part[:channels]
            columns.append(column)
        bias, multiplier, shift = columns
        return bias, Scaling(multiplier, shift, self.rounding)

    def _weights(self, read: Callable[[Span], Bytes], order: Order) -> Array:
        fast = self.fast
        streams_needed = 1 if fast else min(order.streams, order.ofm_depth)
        if len(self.weight_spans) < streams_needed:
            raise MachineFault(f"expected at least {streams_needed} weight streams, got {len(self.weight_spans)}")
        decode_weights = decode.decode_fast if fast else decode.decode_standard
        streams = [decode_weights(read(span)) for span in self.weight_spans]
        if sum(map(len, streams)) < order.weights:  # checked before an array of the declared size is allocated
            raise MachineFault(f"expected at least {order.weights} weights in the weight streams, got {sum(map(len, streams))}")
        flat = np.zeros(order.weights, np.result_type(*streams))
        if fast:
            streams = self._sequences(streams[0], order)
        for s in range(len(streams)):
            self._place(flat, streams.pop(0).astype(flat.dtype, copy=False), replace(order, stream=s))
        if len(flat) and not LEAST_WEIGHT <= flat.min() <= flat.max() <= MOST_WEIGHT:
            raise MachineFault(f"expected 9-bit weights ({LEAST_WEIGHT}..{MOST_WEIGHT}), got {flat.min()}..{flat.max()}")
        return flat.reshape(order.ofm_depth, -1, order.ifm_depth)

    def _sequences(self, values: Array, order: Order) -> list[Array]:
        # Padding to 32 bytes can add trailing values.
        count = sum(traversal.entries(replace(order, stream=s), self.family) for s in range(order.streams))
        if len(values) < count:
            raise MachineFault(f"expected at least {count} weights in the weight stream, got {len(values)}")
        return list(traversal.sequences(order, values[:count])) if order.streams > 1 else [values[:count]]

    def _place(self, flat: Array, values: Array, order: Order) -> None:
        count = traversal.entries(order, self.family)
        if len(values) != count:
            raise MachineFault(f"expected {count} weights in the weight stream, got {len(values)}")
        traversal.place(order, self.family, values, flat)


def _spans(op: Operation, names: list[str], region: str) -> list[Span]:
    spans = [
        Span(n, op[region], op[f"{n}_BASE"], op[f"{n}_LENGTH"]) for n in names[: op.npu.cores] if op.state.get(f"{n}_LENGTH", 0)
    ]
    for span in spans:
        if span.base % STREAM_ALIGNMENT or span.size_bytes % STREAM_ALIGNMENT:
            raise MachineFault(
                f"{span.name} base {span.base:#x} or length {span.size_bytes} is not aligned to {STREAM_ALIGNMENT} bytes"
            )
    return spans


def _magnitudes(weights: Array, most: int) -> tuple[Array, int]:
    # A single group is used if no sum can exceed ``most``.
    taps = weights.shape[1]
    if taps * -LEAST_WEIGHT <= most:
        return np.abs(weights, dtype=np.int16).sum(axis=1, dtype=np.int32, keepdims=True), max(1, taps)
    step = max(1, taps // PART_CHOICES)
    groups = np.arange(0, taps, step)
    rows = max(1, _PIECE // max(taps, 1))
    pieces = [weights[first : first + rows] for first in range(0, len(weights), rows)]
    return np.concatenate([np.add.reduceat(np.abs(p, dtype=np.int16), groups, axis=1, dtype=np.int32) for p in pieces]), step


def _parts(sums: Array, most: int, step: int, taps: int) -> tuple[slice, ...]:
    # Returns () if float64 is faster than partial float32 sums.
    if not taps or sums.sum(axis=1, dtype=np.int64).max(initial=0) <= most:
        return (slice(None),)
    starts = [0]
    running = np.zeros(len(sums), np.int64)
    for group in range(sums.shape[1]):
        part = sums[:, group]
        running += part
        if running.max() > most:
            starts.append(group)
            running[...] = part
            if len(starts) > MOST_PARTS or part.max() > most:
                return ()
    ends = [*starts[1:], sums.shape[1]]
    return tuple(slice(start * step, min(end * step, taps)) for start, end in zip(starts, ends, strict=True))


def _order(op: Operation, ifm: FeatureMap, kind: str, kernel: tuple[int, int]) -> Order:
    microblock = op.state.get("ACC_FORMAT.microblock", 0)
    if microblock not in op.npu.ofm_units:
        raise MachineFault(f"expected ACC_FORMAT.microblock in {sorted(op.npu.ofm_units)} on {op.npu.name}, got {microblock}")
    return Order(
        kind=kind,
        ofm_depth=op["OFM_DEPTH"],
        ifm_depth=1 if kind == "DW" else ifm.depth,
        kernel=kernel,
        dilation=(op["KERNEL_STRIDE.dilation_y"], op["KERNEL_STRIDE.dilation_x"]),
        block_depth=op["OFM_BLK_DEPTH"],
        ifm_bits=8 * ifm.dtype.itemsize,
        ofm_unit=op.npu.ofm_units[microblock],
        streams=op.npu.cores,
        stride=kernel_stride(op),
        sparse=bool(op.state.get("WEIGHT_FORMAT.sparsity", 0)),
        macs=op.npu.macs,
    )
