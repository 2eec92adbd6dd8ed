"""softmax, log_softmax and logsumexp. Each is lowered as a whole: mathematics knows the ranges of all that is inside.

So nothing inside has to be calibrated, and the codes in between are as fine as 8, 16 or 32 bits allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ethorch.builder.builder import Builder
from ethorch.builder.floats import FloatTensor
from ethorch.builder.qparams import QParams, QTensor, Result
from ethorch.builder.reductions import geometric_bounds, in_finer_steps, int32_product, maximum_of, sum_axes, tabulated
from ethorch.ops.quant_rules import EACH_INPUT, fixed_output
from ethorch.ops.samples import I8, Sample
from ethorch.ops.spec import op
from ethorch.tosa.ir import Value

#: Rows longer than this are summed with 16 bits for each exponential: so many small ones would be lost in rounding to 8.
_FINE_SUM_FROM = 128
#: Above this step of the result a reciprocal of 15 bits is off by less than an eighth of it. It costs half the cycles.
_COARSE_STEP = 8 * 0.5 / 32767
#: exp(-this) is nothing, in 16 bits.
_LOWEST_EXPONENT = 12.0

_SAMPLES = [
    Sample(I8(2, 4, 8, 8), -1), Sample(I8(5, 9), 1), Sample(I8(1, 6, 5, 4), 1), Sample(I8(12, 150, low=-14.0, high=4.0), -1),
    Sample(I8(3, 300, 3, low=-30.0, high=8.0), 1), Sample(I8(7, low=-1.0, high=5.0), 0), Sample(I8(5, 1), 1),
]  # fmt: skip


@dataclass(frozen=True)
class _Exponentials:
    """exp(x - max over a dim), and its sums over that dim.

    Attributes:
        codes: INT8 in steps of 1/255, or INT16 in steps of 2**-15.
        zero_point: of the codes.
        sums: INT32, exact.
        unit: what 1 means in the sums.
        maxima: of x.
    """

    codes: Value
    zero_point: int
    sums: Value
    unit: float
    maxima: QTensor


def _exponentials(b: Builder, x: QTensor, dim: int) -> _Exponentials:
    """exp(x - max over ``dim``).

    - int8: x - max has 256 values, so one TABLE is exact to half a step of 1/255. Long rows add up what that step leaves, from
      another TABLE.
    - int16: a table of 15 bits, interpolated.
    """
    value, axis, dims = b.axis_of(x, dim)
    top = maximum_of(b, value, axis)
    step = x.qparams.step
    below = b.emit("SUB", b.rescale(value, 1.0, dtype="INT32"), b.rescale(top, 1.0, dtype="INT32"))
    maxima = QTensor(top, dims, x.q)
    if value.dtype == "INT16":
        span = min(65535.0, _LOWEST_EXPONENT / step)
        fine = tabulated(b, below, lambda v: np.exp(v * step), [-span, -span / 4, 0.0], 2.0**-15, dtype="INT16")
        return _Exponentials(fine, 0, sum_axes(b, b.rescale(fine, 1.0, dtype="INT32"), [axis]), 2.0**-15, maxima)
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
    return _Exponentials(e, -128, total, unit, maxima)


def _always(b: Builder, value: Value, code: int, out: QParams) -> Value:
    """``code`` in each place of ``value``, computed of ``value`` by a product with 0.

    Vela takes a constant for a parameter of an operator, not for its result.
    """
    nothing = b.emit("MUL", b.rescale(value, 1.0, dtype="INT32"), b.const(np.zeros((1,) * value.rank, np.int32)), shift=0)
    codes = b.emit("ADD", nothing, b.const(np.full((1,) * value.rank, code, np.int32)))
    return b.rescale(codes, 1.0, dtype=out.dtype)


def softmax_of_floats(b: Builder, x: QTensor, dim: int, dtype: Any = None, *, out: Result) -> FloatTensor:
    """out = exp(x - max) / sum over ``dim`` of exp(x - max), of floats, in FP32."""
    e = _shifted(b, x, [dim])[0].exp()
    return e / e.sum([dim])


@op(
    "aten.softmax.int",
    quant=fixed_output(0.0, 255 / 256),
    floats=softmax_of_floats,
    samples=_SAMPLES,
    bound16=16,
    also={"aten._softmax.default": lambda x, dim, half_to_float=False: ((x, dim), {})},
)
def softmax(b: Builder, x: QTensor, dim: int, dtype: Any = None, *, out: Result) -> QTensor:
    """out = exp(x - max) / sum over ``dim`` of exp(x - max): int8 -> int8, int16 -> int16.

    Exponentials have 8 bits (15 of int16) of their largest value, 1. Sums are exact. The reciprocal of the sum of a row has 15
    bits. The bound of int16: the result has 16 bits where the reciprocal has 15.
    """
    value, axis, dims = b.axis_of(x, dim)
    q = out.qparams
    if value.shape[axis] == 1:
        return QTensor(_always(b, value, int(q.quantize([1.0])[0]), q), dims, q)
    e = _exponentials(b, x, dim)
    count, zp, unit = value.shape[axis], e.zero_point, e.unit
    bounds = [bound / unit for bound in geometric_bounds(1.0, float(count), 32.0)]
    if zp and q.step > _COARSE_STEP:
        short = tabulated(b, e.sums, lambda v: 1 / (v * unit), bounds, 1 / 32767, dtype="INT16")
        acc = int32_product(b, in_finer_steps(b, e.codes, zp, 127.0), short)
        return QTensor(b.requantize(acc, 1 / (255 * 127 * 32767), q), dims, q)
    fraction = 2.0**-22  # e * reciprocal stays below 2**30
    if not zp:  # int16: a quotient beyond four times the range of ``out`` is cut off, and saturates
        least = min(max(1.0, 1 / (4 * q.step * q.qmax)), float(count))
        bounds = [bound / unit for bound in geometric_bounds(least, float(count), 32.0)]
        fraction = 2.0**-15 / least
    reciprocal = tabulated(b, e.sums, lambda v: 1 / (v * unit), bounds, fraction)
    acc = b.emit("MUL", b.rescale(e.codes, 1.0, input_zp=zp, dtype="INT32"), reciprocal, shift=0)
    return QTensor(b.requantize(acc, fraction * (1 / 255 if zp else 2.0**-15), q), dims, q)


def log_softmax_of_floats(b: Builder, x: QTensor, dim: int, dtype: Any = None, *, out: Result) -> FloatTensor:
    """out = x - max - log(sum over ``dim`` of exp(x - max)), of floats, in FP32."""
    below, _ = _shifted(b, x, [dim])
    return below - below.exp().sum([dim]).log()


@op(
    "aten.log_softmax.int",
    quant=EACH_INPUT,
    floats=log_softmax_of_floats,
    samples=_SAMPLES,
    also={"aten._log_softmax.default": lambda x, dim, half_to_float=False: ((x, dim), {})},
)
def log_softmax(b: Builder, x: QTensor, dim: int, dtype: Any = None, *, out: Result) -> QTensor:
    """out = x - max - log(sum over ``dim`` of exp(x - max)): int8 -> int8, int16 -> int16; the sum as in softmax."""
    value, axis, dims = b.axis_of(x, dim)
    q = out.qparams
    if value.shape[axis] == 1:
        return QTensor(_always(b, value, q.zp, q), dims, q)
    offset, fraction = _log_sum(b, x, dim, 0)
    acc = b.emit("SUB", b.rescale(value, x.qparams.step / fraction, dtype="INT32"), offset)
    return QTensor(b.requantize(acc, fraction, q), dims, q)


def _log_sum(b: Builder, x: QTensor, dim: int, zp: int) -> tuple[Value, float]:
    """(INT32 max + log of the sum over ``dim`` of exp(x - max), its unit). The codes of x count from ``zp``."""
    e = _exponentials(b, x, dim)
    count, step = x.shape[dim], x.qparams.step
    fraction = max(65536 * step if x.value.dtype == "INT16" else 256 * step, math.log(count)) / 2.0**28
    bounds = [bound / e.unit for bound in geometric_bounds(1.0, float(count), 32.0)]
    log = tabulated(b, e.sums, lambda v: np.log(v * e.unit), bounds, fraction)
    return b.emit("ADD", b.rescale(e.maxima.value, step / fraction, input_zp=zp, dtype="INT32"), log), fraction


def logsumexp_of_floats(b: Builder, x: QTensor, dim: Any, keepdim: bool = False, *, out: Result) -> FloatTensor:
    """out = log of the sum over ``dim`` of exp(x), of floats, in FP32."""
    below, top = _shifted(b, x, [dim] if isinstance(dim, int) else dim)
    return (below.exp().sum([dim] if isinstance(dim, int) else dim).log() + top).view(out.shape)


@op(
    "aten.logsumexp.default",
    quant=EACH_INPUT,
    floats=logsumexp_of_floats,
    samples=[Sample(I8(2, 4, 30), [-1]), Sample(I8(6, 9, 5), [1], True), Sample(I8(8, 4, 4), [1, 2])],
)
def logsumexp(b: Builder, x: QTensor, dim: Any, keepdim: bool = False, *, out: Result) -> QTensor:
    """out = log of the sum over ``dim`` of exp(x): int8 -> int8, int16 -> int16; the sum as in softmax."""
    reduced = sorted(d % x.rank for d in ([dim] if isinstance(dim, int) else dim))
    kept = [d for d in range(x.rank) if d not in reduced]
    rows = math.prod(x.shape[d] for d in kept)
    flat = b.view(b.permute(x, [*kept, *reduced]), (rows, math.prod(x.shape[d] for d in reduced)))
    value, _, dims = b.axis_of(flat, 1)
    offset, fraction = _log_sum(b, QTensor(value, dims, x.q), 1, x.qparams.zp)
    return b.view(QTensor(b.requantize(offset, fraction, out.qparams), dims, out.qparams), out.shape)


def _shifted(b: Builder, x: QTensor, dims: Sequence[int]) -> tuple[FloatTensor, FloatTensor]:
    """(x - its maximum over ``dims``, that maximum), of floats."""
    value = FloatTensor.of(b, x)
    top = value.amax(dims)
    return value - top, top
