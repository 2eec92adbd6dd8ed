"""Truth values, comparisons and selection.

A truth value has no QParams. Its dtype is BOOL if the NPU supports BOOL, and INT8 (0 or 1) otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor, float_qparams, plain_qparams
from ethorch.support.errors import Reason
from ethorch.tosa.ir import FLOATS, Value
from ethorch.tosa.layout import Dims, contiguous

#: Left shift for the coarser of two scales, the largest shift for which differences fit int32.
_HEADROOM = {"INT8": 19, "INT16": 14}
#: log2 of the largest integer that is compared with a quantized tensor, in their common unit.
_LARGEST = {"INT8": 28, "INT16": 30}


def native(b: Builder) -> bool:
    """Return True if the NPU supports BOOL and its operators."""
    return b.tuning.truth_dtype == "BOOL"


def truth_from_int8(b: Builder, value: Value) -> Value:
    """Convert INT8 0 or 1 to the truth dtype of the NPU."""
    return b.emit("CAST", value, dtype="BOOL") if native(b) else value


def truth_of_codes(b: Builder, value: Value, holds: Callable[[npt.NDArray[Any]], npt.ArrayLike]) -> Value:
    """Look up the truth value ``holds(v)`` of each INT8 value v."""
    codes = np.arange(-128, 128)
    table = b.const(np.asarray(holds(codes)).astype(np.int8), name="truth")
    return truth_from_int8(b, b.emit("TABLE", value, table))


def invert_truth(b: Builder, value: Value) -> Value:
    return b.emit("LOGICAL_NOT", value) if native(b) else truth_of_codes(b, value, lambda v: v == 0)


def in_one_unit(b: Builder, x: Any, y: Any) -> tuple[list[Value], Dims]:
    """Convert two operands to INT32 in a common unit, and to the same rank.

    Comparisons are exact if the scales are equal, an operand is constant, or both operands are integers. Otherwise, the unit
    is 2**19 (int8) or 2**14 (int16) times finer than the coarser scale.
    """
    tensors = [value for value in (x, y) if isinstance(value, QTensor) and not value.is_integer]
    if not tensors:
        values, dims = b.align(b.plain_tensor(x), b.plain_tensor(y))
        return [b.widen(value) for value in values], dims
    constants = [_constant(value) for value in (x, y)]
    if any(constant is not None for constant in constants):
        q = tensors[0].qparams
        operands = [v if c is None else _among_codes(b, c, q) for v, c in zip((x, y), constants, strict=True)]
        values, dims = b.align(*operands)
        return [value if value.dtype == "INT32" else b.rescale(value, 2.0, input_zp=q.zp, dtype="INT32") for value in values], dims
    wide = "INT16" if any(t.qparams.dtype == "INT16" for t in tensors) else "INT8"
    coarse = max(t.qparams.step for t in tensors)
    exact = len(tensors) == 2 and tensors[0].qparams.step == tensors[1].qparams.step
    unit = coarse if exact else coarse / (1 << _HEADROOM[wide])

    pair = [QTensor(t.value, t.dims, plain_qparams(t.value)) if t.is_integer else t for t in (x, y)]
    if len(tensors) == 1 and max(t.qparams.reach for t in pair) > unit * (1 << _LARGEST[wide]):
        unit *= 4  # the scale of a RESCALE is below 2**29
        pair = [_limit_integers(b, t, tensors[0].qparams) if t is not tensors[0] else t for t in pair]
    values, dims = b.align(*pair)
    for k, t in enumerate(pair):
        values[k] = b.rescale(values[k], t.qparams.step / unit, input_zp=t.qparams.zp, dtype="INT32")
    return values, dims


def _limit_integers(b: Builder, x: QTensor, q: QParams) -> QTensor:
    # Integers beyond the reach of q compare like the first of them. If this is 1, any scale above the reach preserves the order.
    limited = b.limit_integers(QTensor(b.widen(x.value), x.dims, x.q), math.floor(q.reach) + 1)
    return replace(limited, q=replace(limited.qparams, scale=(min(1.0, 2 * q.reach),)))


def _constant(x: Any) -> npt.NDArray[Any] | None:
    if isinstance(x, QTensor):
        return x.value.data if x.is_integer and x.value.is_const else None
    return np.asarray(x)


def _among_codes(b: Builder, numbers: npt.NDArray[Any], q: QParams) -> QTensor:
    # Constants in half steps: even if they equal a dequantized value in float32, and odd otherwise.
    reals, numbers32 = q.dequantize(q.codes), numbers.astype(np.float32)
    place = np.searchsorted(reals, numbers32)
    equal = reals[np.minimum(place, reals.size - 1)] == numbers32
    halves = 2 * (int(q.codes[0]) + place - q.zp) - np.logical_not(equal)
    return QTensor(b.const(halves.astype(np.int32)), contiguous(halves.shape), None)


def any_float(*operands: Any) -> bool:
    return any(isinstance(x, QTensor) and x.is_float for x in operands)


def in_one_float(b: Builder, x: Any, y: Any) -> tuple[list[Value], Dims]:
    """Convert two operands to their common float dtype (FP32 if there is none), and to the same rank."""
    dtypes = {value.qparams.dtype for value in (x, y) if isinstance(value, QTensor) and not value.is_integer}
    out = float_qparams(dtypes.pop() if len(dtypes) == 1 else "FP32")
    return b.align(b.operand(x, out), b.operand(y, out))


def difference(b: Builder, x: Value, y: Value, *, below: int) -> Value:
    """Return an INT8 value with the sign of x - y, for INT32 operands.

    Args:
        below: Exclusive upper bound of |x - y|. If it exceeds 2**29, the difference is clamped to -1..1 before the RESCALE. If it
            exceeds 2**31, one operand is clamped to within 1 of the other operand.
    """
    if below <= 1 << 29:
        value = b.emit("SUB", x, y)
    elif below <= 1 << 31:
        value = _clamp(b, b.emit("SUB", x, y), *(b.const_like(x, bound) for bound in (-1, 1)))
    elif x.is_const:
        value = b.emit("SUB", x, _next_to(b, y, x))
    else:
        value = b.emit("SUB", _next_to(b, x, y), y)
    return b.rescale(value, 1.0, dtype="INT8")


def _clamp(b: Builder, value: Value, low: Value, high: Value) -> Value:
    return b.emit("MINIMUM", b.emit("MAXIMUM", value, low), high)


def _next_to(b: Builder, x: Value, y: Value) -> Value:
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    number = partial(b.const_like, y)
    if y.data is not None:
        below, above = b.const(np.maximum(y.data, low + 1) - 1), b.const(np.minimum(y.data, high - 1) + 1)
    else:
        below = b.emit("SUB", b.emit("MAXIMUM", y, number(low + 1)), number(1))
        above = b.emit("ADD", b.emit("MINIMUM", y, number(high - 1)), number(1))
    return _clamp(b, x, below, above)


def extreme(b: Builder, name: str, x: Value, y: Value) -> Value:
    """Emit MAXIMUM or MINIMUM, in INT32 for integers. Return the dtype of ``x``."""
    if x.dtype in FLOATS or x.dtype == "INT32":
        return b.emit(name, x, y)
    return b.rescale(b.emit(name, _fused(b, x), _fused(b, y)), 1.0, dtype=x.dtype)


def _fused(b: Builder, value: Value) -> Value:
    # In INT32, by a RESCALE that Vela fuses, also if ``value`` is constant
    return value if value.dtype == "INT32" else b.rescale(value, 1.0, dtype="INT32")


def _number_of(value: Value) -> int | None:
    return int(value.data.flat[0]) if value.data is not None and value.data.size == 1 else None


def _select_int8(b: Builder, c: Value, x: Value, y: Value) -> Value:
    # The larger of c ? x : -128 and c ? -128 : y, where c is 0 or 1.
    high, low = _number_of(x), _number_of(y)
    if high is not None and low is not None:
        return _look_up_truth(b, c, low, high)
    limits = _look_up_truth(b, c, -128, 127 if high is None else high), _look_up_truth(b, c, 127 if low is None else low, -128)
    parts = [
        extreme(b, "MINIMUM", value, limit) if number is None else limit
        for value, number, limit in zip((x, y), (high, low), limits, strict=True)
    ]
    return extreme(b, "MAXIMUM", *parts)


def _look_up_truth(b: Builder, c: Value, if_false: int, if_true: int) -> Value:
    # INT8 c ? if_true : if_false, preferably without a table
    if c.data is not None:
        return b.const(np.where(c.data, if_true, if_false).astype(np.int8), name="limits")
    if if_true > if_false:
        return b.rescale(c, if_true - if_false, output_zp=if_false)
    codes = np.full(256, if_false, np.int8)
    codes[129] = if_true
    return b.emit("TABLE", c, b.const(codes, name="limits"))


def _select_by_sum(b: Builder, c: Value, x: Value, y: Value) -> Value:
    # c * x + (1 - c) * y, where c is 0 or 1. One summand is always 0.
    name, terms = "ADD", list[Value]()
    pairs = (x, c), (y, invert_truth(b, c))
    for value, truth in sorted(pairs, key=lambda pair: _number_of(pair[0]) is not None):
        number = _number_of(value)
        if terms and number == 0:
            continue
        if value.data is not None and truth.data is not None:
            terms.append(b.const((value.data * truth.data).astype(value.data.dtype), name="terms"))
        elif terms and number is not None and value.dtype == "INT16" and number > -32768:
            name = "SUB" if number < 0 else "ADD"
            terms.append(b.rescale(truth, abs(number), dtype="INT16"))
        else:
            factor = truth if value.dtype == "INT32" else b.rescale(truth, 1.0, dtype=value.dtype)
            product = b.emit("MUL", _fused(b, value), _fused(b, factor), shift=0)
            terms.append(product if value.dtype == "INT32" else b.rescale(product, 1.0, dtype=value.dtype))
    if len(terms) == 1:
        return terms[0]
    total = b.emit(name, *(_fused(b, term) for term in terms))
    return total if x.dtype == "INT32" else b.rescale(total, 1.0, dtype=x.dtype)


def select_elements(b: Builder, condition: QTensor, x: QTensor, y: QTensor, q: QParams | None) -> QTensor:
    """Return condition ? x : y. Without BOOL support, emit a maximum (int8) or a sum instead of a SELECT."""
    (c, xv, yv), dims = b.align(condition, x, y)
    if not native(b):
        return QTensor((_select_int8 if xv.dtype == "INT8" else _select_by_sum)(b, c, xv, yv), dims, q)
    if c.dtype != "BOOL":
        c = b.emit("CAST", c, dtype="BOOL")
    return QTensor(b.emit("SELECT", c, xv, yv), dims, q)


def finite(value: float, out: QParams) -> float:
    """Clamp a fill value to the range of ``out``. NaN becomes 0."""
    low, high = ((code - out.zp) * out.step for code in (out.qmin, out.qmax))
    return min(max(value, low), high) if not math.isnan(value) else 0.0


def float_operand(name: str, *operands: Any) -> Reason | None:
    """Return a reason if an integer tensor is combined with a noninteger constant, or None otherwise."""
    if any(isinstance(x, QTensor) and not x.is_integer for x in operands):
        return None
    for constant in (np.asarray(x) for x in operands if isinstance(x, (float, np.ndarray))):
        if constant.dtype.kind == "f" and (unsupported := constant[~np.isfinite(constant) | (constant != np.trunc(constant))]).size:
            return Reason(
                f"{name}.mixed",
                f"expected an integer constant, because the other operand is an integer tensor; got {unsupported[0]}",
                "Convert the integer tensor to float in the model, and quantize the operator's module.",
            )
    return None
