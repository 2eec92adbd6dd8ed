"""Lowerings of softmax, log_softmax and logsumexp. Intermediate ranges do not require calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.floats import FloatTensor
from ethorch.lower.builder.mantissas import Mantissas, exponent_of
from ethorch.lower.builder.qparams import QParams, QTensor, Result
from ethorch.lower.builder.reductions import maximum_of, piece_before, sum_axes, tabulate
from ethorch.lower.ops.quant_rules import EACH_INPUT, fixed_output
from ethorch.lower.ops.samples import I8, Sample
from ethorch.lower.ops.spec import op
from ethorch.tosa.ir import Value

#: Exponent x for which exp(-x) is 0 in 16 bits.
_LOWEST_EXPONENT = 12.0
#: Shortest span in input steps. A mask of -1e9 causes a step of thousands, so that exp(-step) is 0.
_SHORT_SPAN = 16.0
#: Maximum integer value that represents 1.
_MOST_ONE = 32767
#: Factor of int16 reciprocals, so that rounded ones times an exponential are below 2**31.
_REDUCTION = 0.999
#: Maximum ratio of sums whose reciprocals are in one table. The error is up to 1/80 step for int8, and 1/4 step for int16.
#: Mantissas need more operators: softmax of [4,8,8] takes 1,602 cycles with a table and 2,056 with mantissas (U85-256).
_RATIO_OF_INT8, _RATIO_OF_INT16 = 8.0, 4.0
#: Multiple of the output's range up to which the reciprocals of int16 have 16 bits, and the errors of tables are as above.
_MULTIPLE = 4.0
#: Multiple of the output's range above which a quotient reduces the other int8 results of its row. The 15 bits of reciprocals limit
#: it. The error is up to 1/4 step.
_MULTIPLE_OF_INT8 = 32.0
#: The same ratios for logarithms. If all elements of a row are equal, one step of the result is log(count) / 32767.
_RATIO_OF_LOG_INT8, _RATIO_OF_LOG_INT16 = 32.0, 4.0

_SAMPLES = [
    Sample(I8(2, 4, 8, 8), -1), Sample(I8(5, 9), 1), Sample(I8(1, 6, 5, 4), 1), Sample(I8(12, 150, low=-14.0, high=4.0), -1),
    Sample(I8(3, 300, 3, low=-30.0, high=8.0), 1), Sample(I8(7, low=-1.0, high=5.0), 0), Sample(I8(5, 1), 1),
]  # fmt: skip


@dataclass(frozen=True)
class _Exponentials:
    """The exponentials exp(x - max) over a dim, and their sums."""

    codes: Value  # INT16 values from 0 to ``one``
    one: float  # integer value that represents 1.0 in ``codes`` and ``sums``
    sums: Value  # exact INT32 sums
    maxima: QTensor


def _exponentials(b: Builder, x: QTensor, dim: int) -> _Exponentials:
    # - int8: uses a table with an entry for each difference.
    # - int16: uses interpolated tables.
    value, axis, dims = b.axis_of(x, dim)
    top = maximum_of(b, value, axis)
    step, one = x.qparams.step, min(_MOST_ONE, (2**31 - 1) // value.shape[axis])
    below = b.emit("SUB", *(b.rescale(part, 1.0, dtype="INT32") for part in (value, top)))
    if value.dtype == "INT16":
        span = min(65535.0, _LOWEST_EXPONENT / step)
        bounds = [-span, -span / 4, 0.0]
        if span < _SHORT_SPAN:  # the table's RESCALE by 65536 / span / 4 would overflow int32
            below = b.emit("MAXIMUM", below, b.const_like(value, -round(_SHORT_SPAN)))
            last = piece_before(0.0, 1.0)  # 0 must be an entry, because exp between entries is not linear
            bounds = [piece_before(last, max(span - 1.0, 3.0)), last, 0.0]
        codes = tabulate(b, below, lambda v: np.exp(np.where(np.abs(v) < 1e-6, 0.0, v) * step), bounds, 1 / one, dtype="INT16")
    else:
        entries = np.rint(one * np.exp(step * np.minimum(np.arange(-256, 257), 0)))
        looked_up = b.interpolate(b.rescale(below, 128.0, dtype="INT16"), entries.astype(np.int16))
        codes = b.rescale(looked_up, 1 / 128, dtype="INT16")
    return _Exponentials(codes, one, sum_axes(b, b.rescale(codes, 1.0, dtype="INT32"), [axis]), QTensor(top, dims, x.q))


def _emit_constant(b: Builder, value: Value, code: int, out: QParams) -> Value:
    # The constant is computed, because Vela supports constants only as operands.
    codes = value if value.dtype == out.dtype else b.rescale(value, 1.0, dtype=out.dtype)
    return b.emit("CLAMP", codes, min_val=code, max_val=code)


def softmax_of_floats(b: Builder, x: QTensor, dim: int, dtype: Any = None, *, out: Result) -> FloatTensor:
    e = _subtract_maximum(b, x, [dim])[0].exp()
    return e / e.sum([dim])


def _reciprocal(b: Builder, e: _Exponentials, least: float, most: float, *, int8: bool, precise: bool) -> tuple[Value, float]:
    # Returns the reciprocals of sums from ``least`` to ``most``, and their unit. For a smaller sum, an int8 result is too small.
    # INT16 with 15 bits for int8, otherwise INT32 with 16 bits, so that the product with an exponential remains below 2**31.
    lowest, highest = e.one * least, e.one * most
    if not precise:
        unit, bounds = 1 / least / (32767 if int8 else 65535), [lowest, max(highest, 2 * lowest)]
        dtype = "INT16" if int8 else "INT32"
        return tabulate(b, e.sums, lambda v: e.one / v, bounds, unit, dtype=dtype), unit
    mantissas = Mantissas.of(b, e.sums, 2)
    if least > 1 and int8:
        bound = b.const_like(e.sums, exponent_of(lowest, 2), name="bound")
        mantissas = replace(mantissas, exponent=b.emit("MINIMUM", mantissas.exponent, bound))
    # 1 / sum = 2**h * look-up / 2**30
    if int8:
        bits = math.ceil(44 - math.log2(lowest))
        root = b.rescale(mantissas.look_up(b, _halved_reciprocal), 2.0**14, dtype="INT32")
        reciprocal = b.rescale(mantissas.multiply(b, root, bits), 1.0, dtype="INT16")
        return reciprocal, e.one * 2.0 ** (bits - 44) / 32767
    bits = math.ceil(44 - math.log2(lowest) - 1e-4)
    root = mantissas.look_up_precisely(b, lambda m: _REDUCTION * _halved_reciprocal(m), 30)
    return mantissas.multiply(b, root, bits), e.one * 2.0 ** (bits - 60) / _REDUCTION


def _halved_reciprocal(mantissa: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 0.5 / mantissa


@op(
    "aten.softmax.int",
    quant=fixed_output(0.0, 1.0, 255 / 256),
    floats=softmax_of_floats,
    samples=_SAMPLES,
    bound16=7,
    also={"aten._softmax.default": lambda x, dim, half_to_float=False: ((x, dim), {})},
)
def softmax(b: Builder, x: QTensor, dim: int, dtype: Any = None, *, out: Result) -> QTensor:
    """Return exp(x - max) / sum over ``dim`` of exp(x - max).

    Exponentials have 15 bits. Reciprocals of sums have 15 (int8) or 16 (int16). The int16 result has more bits than the
    exponentials, so its error bound is larger.
    """
    value, axis, dims = b.axis_of(x, dim)
    q, count, int8 = out.qparams, float(value.shape[axis]), value.dtype == "INT8"
    if count == 1 or q.zp == q.qmax:
        return QTensor(_emit_constant(b, value, int(q.quantize([1.0])[0]), q), dims, q)
    e = _exponentials(b, x, dim)
    most = q.step * (q.qmax - q.zp)  # quotients above this saturate
    least = min(max(1.0, 1 / ((_MULTIPLE_OF_INT8 if int8 else _MULTIPLE) * most)), count, 2.0**12)
    exponentials = b.rescale(e.codes, 1.0, dtype="INT32")
    if least > 1 and not int8:
        exponentials = b.emit("MINIMUM", exponentials, b.rescale(e.sums, 2 * most, dtype="INT32"))
    precise = count > _RATIO_OF_INT8 * max(1.0, 1 / (_MULTIPLE * most)) if int8 else least > 1 or count > _RATIO_OF_INT16
    reciprocal, unit = _reciprocal(b, e, least, count, int8=int8, precise=precise)
    acc = b.emit("MUL", exponentials, b.rescale(reciprocal, 1.0, dtype="INT32"), shift=0)
    return QTensor(b.requantize(acc, unit / e.one, q), dims, q)


def log_softmax_of_floats(b: Builder, x: QTensor, dim: int, dtype: Any = None, *, out: Result) -> FloatTensor:
    below, _ = _subtract_maximum(b, x, [dim])
    return below - below.exp().sum([dim]).log()


@op(
    "aten.log_softmax.int",
    quant=EACH_INPUT,
    floats=log_softmax_of_floats,
    samples=_SAMPLES,
    also={"aten._log_softmax.default": lambda x, dim, half_to_float=False: ((x, dim), {})},
)
def log_softmax(b: Builder, x: QTensor, dim: int, dtype: Any = None, *, out: Result) -> QTensor:
    """Return x - max - log(sum over ``dim`` of exp(x - max))."""
    value, axis, dims = b.axis_of(x, dim)
    q = out.qparams
    if value.shape[axis] == 1:
        return QTensor(_emit_constant(b, value, q.zp, q), dims, q)
    offset, fraction = _log_sum(b, x, dim, 0)
    acc = b.emit("SUB", b.rescale(value, x.qparams.step / fraction, dtype="INT32"), offset)
    return QTensor(b.requantize(acc, fraction, q), dims, q)


def _log_sum(b: Builder, x: QTensor, dim: int, zp: int) -> tuple[Value, float]:
    e = _exponentials(b, x, dim)
    count, step = x.shape[dim], x.qparams.step
    codes = 65536 if x.value.dtype == "INT16" else 256
    bits = math.floor(28 - math.log2(max(codes * step, math.log(count))))
    fraction = 2.0**-bits
    if count <= (_RATIO_OF_LOG_INT16 if codes == 65536 else _RATIO_OF_LOG_INT8):
        bounds = [e.one, count * e.one]
        log = tabulate(b, e.sums, lambda v: np.log(v / e.one), bounds, fraction, from_middle=codes == 65536)
        return b.emit("ADD", b.rescale(e.maxima.value, step / fraction, input_zp=zp, dtype="INT32"), log), fraction
    # log(sum / one) = log(m / 2**31) + (31 - h) * log(2) - log(one), where h is at most 16
    mantissas = Mantissas.of(b, e.sums, 2)
    offset = 15 * math.log(2) - math.log(e.one)
    log = mantissas.look_up_precisely(b, lambda m: np.log(m) + offset, bits)
    doublings = b.emit("SUB", b.const_like(log, 16), mantissas.exponent)
    step_of_log = b.const_like(log, round(math.log(2) / fraction))
    log = b.emit("ADD", log, b.emit("MUL", doublings, step_of_log, shift=0))
    return b.emit("ADD", b.rescale(e.maxima.value, step / fraction, input_zp=zp, dtype="INT32"), log), fraction


def logsumexp_of_floats(b: Builder, x: QTensor, dim: Any, keepdim: bool = False, *, out: Result) -> FloatTensor:
    below, top = _subtract_maximum(b, x, [dim] if isinstance(dim, int) else dim)
    return (below.exp().sum([dim] if isinstance(dim, int) else dim).log() + top).view(out.shape)


@op(
    "aten.logsumexp.default",
    quant=EACH_INPUT,
    floats=logsumexp_of_floats,
    samples=[Sample(I8(2, 4, 30), [-1]), Sample(I8(6, 9, 5), [1], True), Sample(I8(8, 4, 4), [1, 2]), Sample(I8(1, 4, 4), [0])],
)
def logsumexp(b: Builder, x: QTensor, dim: Any, keepdim: bool = False, *, out: Result) -> QTensor:
    """Return log(sum over ``dim`` of exp(x))."""
    reduced = sorted(d % x.rank for d in ([dim] if isinstance(dim, int) else dim))
    others = [d for d in range(x.rank) if d not in reduced]
    rows = math.prod(x.shape[d] for d in others)
    flat = b.view(b.permute(x, [*others, *reduced]), (rows, math.prod(x.shape[d] for d in reduced)))
    if flat.shape[1] == 1:
        return b.view(b.to_qparams(flat, out.qparams), out.shape)
    value, _, dims = b.axis_of(flat, 1)
    offset, fraction = _log_sum(b, QTensor(value, dims, x.q), 1, x.qparams.zp)
    return b.view(QTensor(b.requantize(offset, fraction, out.qparams), dims, out.qparams), out.shape)


def _subtract_maximum(b: Builder, x: QTensor, dims: Sequence[int]) -> tuple[FloatTensor, FloatTensor]:
    value = FloatTensor.of(b, x)
    top = value.amax(dims)
    return value - top, top
