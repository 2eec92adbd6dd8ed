"""NPU_OP_CONV and NPU_OP_DEPTHWISE (npu-reference 6.5, 8.9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ethorch.npu.arrays import Array
from ethorch.npu.feature_map import FeatureMap, feature_map
from ethorch.npu.filters import Filter, Streams
from ethorch.npu.forms import Convolution
from ethorch.npu.forms import Product as ProductForm
from ethorch.npu.memory import Memory, Span
from ethorch.npu.output import OutputStage
from ethorch.npu.prepared import Prepared, operation
from ethorch.npu.registers import ALL
from ethorch.npu.scaling import ofm_scaling
from ethorch.npu.stream import Operation
from ethorch.npu.window import Window, window
from ethorch.support.errors import MachineFault

PER_CHANNEL, GLOBAL = 0, 1  # OFM_PRECISION.scale_mode (npu-reference 2.5)
BAND_ELEMENTS = 1 << 17  # patch elements processed at a time, to fit a core's cache
PIECE_ELEMENTS = 1 << 20  # limit for a single wide row
MATRIX_ELEMENTS = 1 << 18  # weights converted at a time if they are used only once


@operation("NPU_OP_CONV", *ALL)
def conv(op: Operation) -> Prepared:
    """Prepare the convolution OFM[h,w,o] = output stage of (bias[o] + sum of (IFM window - zero point) * W[o]).

    On U85, IFM2 can contain W.
    """
    if op.mode:
        return _conv_ifm2(op)
    w = window(op)
    kind = "PK" if op["KERNEL_STRIDE.weight_order"] else "DF"
    streams = Streams(op, w.ifm, kind, w.kernel)
    return _convolution(op, w, streams, _product, w.taps * w.ifm.depth)


@operation("NPU_OP_DEPTHWISE", *ALL)
def depthwise(op: Operation) -> Prepared:
    """Prepare the convolution OFM[h,w,c] = output stage of (bias[c] + sum over taps of (IFM[..,c] - zero point) * W[c])."""
    w = window(op)
    if w.ifm.depth != op["OFM_DEPTH"]:
        raise MachineFault(f"depthwise convolution: expected OFM depth {w.ifm.depth} (the IFM depth), got {op['OFM_DEPTH']}")
    return _convolution(op, w, Streams(op, w.ifm, "DW", w.kernel), _per_channel, w.taps)


Product = Callable[[Window, Filter, Array, Array, int], Array]  # window, filter, its matrix, rows, n


def _check_scale_mode(op: Operation, mode: int) -> None:
    # npu-reference 5, 8.9
    if op["OFM_PRECISION.scale_mode"] != mode:
        raise MachineFault(
            f"OFM_PRECISION.scale_mode: expected {mode} for this type of weights, got {op['OFM_PRECISION.scale_mode']}"
        )


def _convolution(op: Operation, w: Window, streams: Streams, product: Product, per_output: int) -> Prepared:
    _check_scale_mode(op, PER_CHANNEL)
    if w.ifm.dtype.itemsize > 2:
        raise MachineFault(f"IFM_PRECISION.precision: expected an IFM of 8 or 16 bits, got {8 * w.ifm.dtype.itemsize}")
    stage = OutputStage(op)
    height, width, depth = stage.shape
    per_row = width * max(per_output if product is _product else depth, depth)
    band = max(1, min(height, BAND_ELEMENTS // per_row))

    def run(m: Memory) -> None:
        f = streams.get(m)
        assert isinstance(f, Filter)
        is_one_band = stage.needs_whole or m.overlap(w.ifm, stage.ofm)
        step = height if is_one_band else band
        plan = stage.plan(f)
        matrix: Array = f.matrix
        if step < height or matrix.size <= MATRIX_ELEMENTS:  # a large matrix that is used once is converted in pieces
            matrix = matrix.astype(f.dtype)
        for first in range(0, height, step):
            n = min(step, height - first)
            rows = w.read(m, first, n, f.dtype, w.ifm.zero_point)
            stage.finish(m, plan, product(w, f, matrix, rows, n), first)

    pieces = min(band * per_row, PIECE_ELEMENTS + per_output)
    elements = max(w.padded_elements, height * width * depth, pieces)
    macs = height * width * depth * per_output
    weight_bytes = sum(s.size_bytes for s in streams.weight_spans)
    laid_out = height * width * per_output  # as patches, or one tap at a time
    bands = -(-height // band)
    if product is _product:
        swept, turns = laid_out, bands * -(-width * per_output // PIECE_ELEMENTS)
    else:
        swept, turns = 2 * laid_out * depth, 2 * bands * w.taps
    reads: tuple[FeatureMap | Span, ...] = (w.ifm, *streams.spans, *stage.reads)
    form = Convolution(w, streams, stage, product is _per_channel)
    return Prepared(run, reads, stage.writes, macs, elements, swept, turns, weight_bytes, form=form)


def _product(w: Window, f: Filter, matrix: Array, rows: Array, n: int) -> Array:
    width, depth = w.out[1], matrix.shape[1]
    per_row = width * len(matrix)
    ny, nx = max(1, BAND_ELEMENTS // per_row), max(1, PIECE_ELEMENTS // len(matrix))
    if ny >= n and nx >= width:
        return _sums(w.patches(rows, slice(0, n), slice(0, width)), f, matrix)
    total: Array = np.empty((n, width, depth), f.dtype if len(f.parts) == 1 else np.float64)
    for y in range(0, n, ny):
        for x in range(0, width, nx):
            ys, xs = slice(y, min(y + ny, n)), slice(x, min(x + nx, width))
            total[ys, xs] = _sums(w.patches(rows, ys, xs), f, matrix).reshape(ys.stop - y, xs.stop - x, depth)
    return total.reshape(n * width, depth)


def _sums(x: Array, f: Filter, matrix: Array) -> Array:
    if matrix.dtype != f.dtype:
        columns = max(1, MATRIX_ELEMENTS // len(matrix))
        pieces: Iterator[Array] = (matrix[:, at : at + columns].astype(f.dtype) for at in range(0, matrix.shape[1], columns))
        return np.concatenate([_sums(x, f, piece) for piece in pieces], axis=1)
    total: Array = x[:, f.parts[0]] @ matrix[f.parts[0]]
    if len(f.parts) > 1:
        total = total.astype(np.float64)
    for part in f.parts[1:]:
        total += x[:, part] @ matrix[part]
    return total


def _per_channel(w: Window, f: Filter, matrix: Array, rows: Array, n: int) -> Array:
    wide = f.dtype if len(f.parts) == 1 else np.float64
    total: Array = np.zeros((n, w.out[1], rows.shape[2]), wide)
    product = np.empty_like(total)
    for k in range(w.taps):
        np.multiply(w.tap(rows, n, *divmod(k, w.kernel[1])), matrix[k], out=product)
        total += product
    return total.reshape(n * w.out[1], -1)


def _conv_ifm2(op: Operation) -> Prepared:
    # npu-reference 8.9
    w = window(op)
    _check_scale_mode(op, GLOBAL)
    if w.kernel != (1, 1):
        raise MachineFault(f"dynamic weights with a kernel of {w.kernel} are not supported; expected 1x1")
    stage = OutputStage(op)
    scaling = ofm_scaling(op)
    ifm2 = feature_map(op, "IFM2", (1, op["OFM_DEPTH"], op["IFM_DEPTH"]))
    height, width, depth = stage.shape

    def run(m: Memory) -> None:
        rows = w.read(m, 0, height, np.float64, w.ifm.zero_point)
        x = w.patches(rows, slice(0, height), slice(0, width)) - w.ifm.zero_point
        matrix = m.read(ifm2)[0].astype(np.float64) - ifm2.zero_point
        total = (x @ matrix.T).astype(np.int64)  # 17 x 17 bits times 65536 channels stay below 2**53
        stage.accumulate(m, total.reshape(stage.shape), scaling)

    elements = max(w.padded_elements, height * width * max(depth, w.ifm.depth), ifm2.elements)
    macs = height * width * depth * w.ifm.depth
    form = ProductForm(w, ifm2, scaling, stage)
    return Prepared(run, (w.ifm, ifm2, *stage.reads), stage.writes, macs, elements, form=form)
