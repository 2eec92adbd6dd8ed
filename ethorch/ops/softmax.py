"""softmax and log_softmax: whole, because all that happens inside has ranges that mathematics knows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ethorch.ops.quant_rules import EACH_INPUT, fixed_output
from ethorch.ops.rows import finer, function_of, maximum_of, pieces, product, sum_axes
from ethorch.ops.spec import I8, Sample, op
from ethorch.qparams import QParams, QTensor
from ethorch.real import Real
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import Value

#: Rows longer than this are summed with 16 bits per exponential: so many tiny ones, rounded to 8 bits, could go missing.
_FINE_SUM_FROM = 128
#: Above this step of the result a reciprocal of 15 bits is off by less than an eighth of it. It costs half the cycles.
_COARSE_STEP = 8 * 0.5 / 32767
#: exp(-this) is nothing, in 16 bits.
_LOWEST_EXPONENT = 12.0

_SAMPLES = [
    Sample(I8(2, 4, 8, 8), -1), Sample(I8(5, 9), 1), Sample(I8(1, 6, 5, 4), 1), Sample(I8(12, 150, low=-14.0, high=4.0), -1),
    Sample(I8(3, 300, 3, low=-30.0, high=8.0), 1), Sample(I8(7, low=-1.0, high=5.0), 0), Sample(I8(5, 1), 1),
]  # fmt: skip


def _exponentials(b: Builder, x: QTensor, dim: int) -> tuple[Value, int, Value, float, int, QTensor]:
    """(e, its zero point, INT32 sums of e over ``dim``, unit of the sums, unit of e inverted, maxima): e = exp(x - max).

    int8: x - max has 256 values, so one TABLE is exact to half a step of 1/255.
    """
    value, axis, dims = b.axis_of(x, dim)
    top = maximum_of(b, value, axis)
    step = x.qparams.step
    below = b.emit("SUB", b.rescale(value, 1.0, dtype="INT32"), b.rescale(top, 1.0, dtype="INT32"))
    maxima = QTensor(top, dims, x.q)
    if value.dtype == "INT16":
        span = min(65535.0, _LOWEST_EXPONENT / step)
        fine = function_of(b, below, lambda v: np.exp(v * step), [-span, -span / 4, 0.0], 2.0**-15, dtype="INT16")
        return fine, 0, sum_axes(b, b.rescale(fine, 1.0, dtype="INT32"), [axis]), 2.0**-15, axis, replace(maxima, value=top)
    index = b.rescale(below, 1.0, output_zp=127, dtype="INT8")
    exact = np.exp((np.arange(-128, 128) - 127) * step) * 255
    codes = np.rint(exact)
    e = b.emit("TABLE", index, b.const((codes - 128).astype(np.int8), name="exp"))
    total = sum_axes(b, b.rescale(e, 1.0, input_zp=-128, dtype="INT32"), [axis])
    unit = 1 / 255
    if value.shape[axis] > _FINE_SUM_FROM:
        rest = b.emit("TABLE", index, b.const(np.rint((exact - codes) * 254).astype(np.int8), name="exp_rest"))
        rest = sum_axes(b, b.rescale(rest, 1.0, dtype="INT32"), [axis])
        total = b.emit("ADD", b.rescale(total, 254.0, dtype="INT32"), rest)
        unit = 1 / (255 * 254)
    return e, -128, total, unit, axis, maxima


def _always(b: Builder, value: Value, code: int, out: QParams) -> Value:
    """``code`` in each place of ``value``, as if computed of it: operators take a constant for a parameter of theirs."""
    nothing = b.emit("MUL", b.rescale(value, 1.0, dtype="INT32"), b.const(np.zeros((1,) * value.rank, np.int32)), shift=0)
    codes = b.emit("ADD", nothing, b.const(np.full((1,) * value.rank, code, np.int32)))
    return b.rescale(codes, 1.0, dtype=out.dtype)


@op(
    "aten.softmax.int", quant=fixed_output(0.0, 255 / 256), samples=_SAMPLES, bound16=16,
    also={"aten._softmax.default": lambda x, dim, half_to_float=False: ((x, dim), {})},
)  # fmt: skip
def softmax(b: Builder, x: QTensor, dim: int, dtype: Any = None, *, out: QParams) -> QTensor:
    """out = exp(x - max) / sum over ``dim`` of exp(x - max): int8 -> int8, int16 -> int16.

    Exponentials have 8 bits (15 for int16) of their largest value, 1; sums are exact; the reciprocal of a row's sum has 15.
    """
    value, axis, dims = b.axis_of(x, dim)
    if value.shape[axis] == 1:
        return QTensor(_always(b, value, int(out.quantize([1.0])[0]), out), dims, out)
    e, zp, total, unit, axis, _ = _exponentials(b, x, dim)
    count = value.shape[axis]
    bounds = [bound / unit for bound in pieces(1.0, float(count), 32.0)]
    if zp and out.step > _COARSE_STEP:
        short = function_of(b, total, lambda v: 1 / (v * unit), bounds, 1 / 32767, dtype="INT16")
        acc = product(b, finer(b, e, zp, 127.0), short)
        return QTensor(b.requantize(acc, 1 / (255 * 127 * 32767), out), dims, out)
    fraction = 2.0**-22  # e * reciprocal stays below 2**30
    if not zp:  # a row of larger numbers than calibration saw is cut off at four times the range, and saturates
        least = min(max(1.0, 1 / (4 * out.step * out.qmax)), float(count))
        bounds = [bound / unit for bound in pieces(least, float(count), 32.0)]
        fraction = 2.0**-15 / least
    reciprocal = function_of(b, total, lambda v: 1 / (v * unit), bounds, fraction)
    acc = b.emit("MUL", b.rescale(e, 1.0, input_zp=zp, dtype="INT32"), reciprocal, shift=0)
    return QTensor(b.requantize(acc, fraction * (1 / 255 if zp else 2.0**-15), out), dims, out)


@op(
    "aten.log_softmax.int", quant=EACH_INPUT, samples=_SAMPLES,
    also={"aten._log_softmax.default": lambda x, dim, half_to_float=False: ((x, dim), {})},
)  # fmt: skip
def log_softmax(b: Builder, x: QTensor, dim: int, dtype: Any = None, *, out: QParams) -> QTensor:
    """out = x - max - log(sum over ``dim`` of exp(x - max)): int8 -> int8, int16 -> int16; the sum as in softmax."""
    value, axis, dims = b.axis_of(x, dim)
    if value.shape[axis] == 1:
        return QTensor(_always(b, value, out.zp, out), dims, out)
    offset, fraction = _log_sum(b, x, dim, 0)
    acc = b.emit("SUB", b.rescale(value, x.qparams.step / fraction, dtype="INT32"), offset)
    return QTensor(b.requantize(acc, fraction, out), dims, out)


def _log_sum(b: Builder, x: QTensor, dim: int, zp: int) -> tuple[Value, float]:
    """(INT32 max + log of the sum over ``dim`` of exp(x - max), its unit); codes of x count from ``zp``."""
    _, _, total, unit, _, maxima = _exponentials(b, x, dim)
    count, step = x.shape[dim], x.qparams.step
    fraction = max(65536 * step if x.value.dtype == "INT16" else 256 * step, math.log(count)) / 2.0**28
    bounds = [bound / unit for bound in pieces(1.0, float(count), 32.0)]
    log = function_of(b, total, lambda v: np.log(v * unit), bounds, fraction)
    return b.emit("ADD", b.rescale(maxima.value, step / fraction, input_zp=zp, dtype="INT32"), log), fraction


@op(
    "aten.logsumexp.default", quant=EACH_INPUT,
    samples=[Sample(I8(2, 4, 30), [-1]), Sample(I8(6, 9, 5), [1], True), Sample(I8(8, 4, 4), [1, 2])],
)  # fmt: skip
def logsumexp(b: Builder, x: QTensor, dim: Any, keepdim: bool = False, *, out: QParams) -> QTensor:
    """out = log of the sum over ``dim`` of exp(x): int8 -> int8, int16 -> int16; the sum as in softmax."""
    reduced = sorted(d % x.rank for d in ([dim] if isinstance(dim, int) else dim))
    kept = [d for d in range(x.rank) if d not in reduced]
    rows = math.prod(x.shape[d] for d in kept)
    flat = b.view(b.permute(x, [*kept, *reduced]), (rows, math.prod(x.shape[d] for d in reduced)))
    value, _, dims = b.axis_of(flat, 1)
    offset, fraction = _log_sum(b, QTensor(value, dims, x.q), 1, x.qparams.zp)
    return b.view(QTensor(b.requantize(offset, fraction, out), dims, out), b.result_shape)


def _shifted(b: Builder, x: QTensor, dims: Sequence[int]) -> tuple[Real, Real]:
    """(x - its maximum over ``dims``, that maximum) of floats."""
    value = Real.of(b, x)
    top = value.amax(dims)
    return value - top, top


@softmax.floats
def _(b: Builder, x: QTensor, dim: int, dtype: Any = None) -> Real:
    e = _shifted(b, x, [dim])[0].exp()
    return e / e.sum([dim])


@log_softmax.floats
def _(b: Builder, x: QTensor, dim: int, dtype: Any = None) -> Real:
    below, _ = _shifted(b, x, [dim])
    return below - below.exp().sum([dim]).log()


@logsumexp.floats
def _(b: Builder, x: QTensor, dim: Any, keepdim: bool = False) -> Real:
    below, top = _shifted(b, x, [dim] if isinstance(dim, int) else dim)
    return (below.exp().sum([dim] if isinstance(dim, int) else dim).log() + top).view(b.result_shape)
