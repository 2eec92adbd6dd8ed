"""Maxima, minima and clamps. A clamp is omitted if quantization already saturates at the same bounds."""

from __future__ import annotations

import math
from typing import Any

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor, Result
from ethorch.lower.ops.arithmetic import PAIRS, as_quantized, float_pair, narrow_integers, no_float_constant, plain_pair
from ethorch.lower.ops.logical import logical
from ethorch.lower.ops.quant_rules import EACH_INPUT, RECTIFIED, SELECTED, QuantRule
from ethorch.lower.ops.samples import I8, Bools, Ints, Sample, W
from ethorch.lower.ops.spec import op


def extreme_of(b: Builder, name: str, x: Any, y: Any, out: QParams | None, dtype: str) -> QTensor:
    """Requantize the operands to ``out``, then emit MAXIMUM or MINIMUM.

    The result is exact because quantization is monotonic. If ``out`` is None, the result contains plain integers or truth values
    of ``dtype``.
    """
    if dtype == "BOOL":
        return logical(b, {"MAXIMUM": "or", "MINIMUM": "and"}[name], x, y)
    if out is None:
        result = plain_pair(b, x, y, lambda xv, yv: b.emit(name, xv, yv))
        return narrow_integers(b, result.value, result.dims, dtype)
    x, y = (b.to_qparams(as_quantized(b, value), out) for value in (x, y))
    (xv, yv), dims = b.align(x, y)
    wide = [b.rescale(value, 1.0, input_zp=out.zp, dtype="INT32") for value in (xv, yv)]
    return QTensor(b.clamp(b.rescale(b.emit(name, *wide), 1.0, output_zp=out.zp, dtype=out.dtype), out.qmin, out.qmax), dims, out)


@op(
    "aten.maximum.default",
    "aten.max.other",
    "aten.fmax.default",
    quant=SELECTED,
    pointwise=True,
    check=no_float_constant("maximum"),
    floats=lambda b, x, y, *, out: float_pair(b, "MAXIMUM", x, y),
    samples=[*(sample for sample in PAIRS if not isinstance(sample.args[1], (int, float))), Sample(Bools(2, 3, 5), Bools(5))],
)
def maximum(b: Builder, x: Any, y: Any, *, out: Result) -> QTensor:
    """Return max(x, y) with broadcasting. TOSA MAXIMUM."""
    return extreme_of(b, "MAXIMUM", x, y, out.q, out.dtype)


@op(
    "aten.minimum.default",
    "aten.min.other",
    "aten.fmin.default",
    quant=SELECTED,
    pointwise=True,
    check=no_float_constant("minimum"),
    floats=lambda b, x, y, *, out: float_pair(b, "MINIMUM", x, y),
    samples=[*(sample for sample in PAIRS[:5] if not isinstance(sample.args[1], (int, float))), Sample(Bools(2, 3, 5), Bools(5))],
)
def minimum(b: Builder, x: Any, y: Any, *, out: Result) -> QTensor:
    """Return min(x, y) with broadcasting. TOSA MINIMUM."""
    return extreme_of(b, "MINIMUM", x, y, out.q, out.dtype)


def clamp_tensor_of_floats(b: Builder, x: Any, low: Any = None, high: Any = None, *, out: Result) -> Any:
    x = x if low is None else float_pair(b, "MAXIMUM", x, low)
    return x if high is None else float_pair(b, "MINIMUM", x, high)


@op(
    "aten.clamp.Tensor",
    "aten.clip.Tensor",
    quant=SELECTED,
    pointwise=True,
    also={
        "aten.clamp_min.Tensor": lambda x, low: ((x, low, None), {}),
        "aten.clamp_max.Tensor": lambda x, high: ((x, None, high), {}),
    },
    check=no_float_constant("clamp"),
    floats=clamp_tensor_of_floats,
    samples=[Sample(I8(2, 5, 6), I8(6, low=-2.0, high=-1.0), I8(5, 1, low=1.0, high=2.0)), Sample(I8(3, 40), W(1), None)],
)
def clamp_tensor(b: Builder, x: Any, low: Any = None, high: Any = None, *, out: Result) -> QTensor:
    """Return min(max(x, low), high) with broadcasting and optional bounds. TOSA MAXIMUM, MINIMUM."""
    y = x if low is None else extreme_of(b, "MAXIMUM", x, low, out.q, out.dtype)
    y = y if high is None else extreme_of(b, "MINIMUM", y, high, out.q, out.dtype)
    return y if out.q is None else b.to_qparams(y, out.q)


def _clamp_integers(b: Builder, x: QTensor, low: float, high: float, dtype: str) -> QTensor:
    if low > -math.inf:
        x = extreme_of(b, "MAXIMUM", x, low, None, dtype)
    return extreme_of(b, "MINIMUM", x, high, None, dtype) if high < math.inf else x


def _clamp(b: Builder, x: QTensor, low: float, high: float, out: Result) -> QTensor:
    q = out.q
    if q is None:
        return _clamp_integers(b, x, low, high, out.dtype)
    x = b.operand(x, q)
    low = min(low, high)  # TOSA does not define a CLAMP with low > high
    if q.is_float:
        return QTensor(b.clamp(x.value, low, high), x.dims, q)
    codes = q.quantize([max(low, -3e38), min(high, 3e38)])
    low_code = q.qmin if low == -math.inf else int(codes[0])
    high_code = q.qmax if high == math.inf else int(codes[1])
    return QTensor(b.clamp(x.value, low_code, high_code) if (low_code, high_code) != (q.qmin, q.qmax) else x.value, x.dims, q)


@op(
    "aten.relu.default",
    quant=RECTIFIED,
    homogeneous=0,
    absorbs=True,
    pointwise=True,
    samples=[Sample(I8(1, 8, 5, 5)), Sample(I8(3, 7)), Sample(Ints(3, 40))],
)
def relu(b: Builder, x: QTensor, *, out: Result) -> QTensor:
    """Return max(x, 0). TOSA CLAMP."""
    return _clamp(b, x, 0.0, math.inf, out)


@op("aten.relu6.default", quant=EACH_INPUT, absorbs=True, pointwise=True, samples=[Sample(I8(1, 8, 5, 5, high=9.0))])
def relu6(b: Builder, x: QTensor, *, out: Result) -> QTensor:
    """Return min(max(x, 0), 6). TOSA CLAMP."""
    return _clamp(b, x, 0.0, 6.0, out)


@op(
    "aten.hardtanh.default",
    quant=EACH_INPUT,
    absorbs=True,
    pointwise=True,
    samples=[Sample(I8(1, 8, 5, 5)), Sample(I8(1, 4, 5), 0.0, 6.0), Sample(I8(6), -0.5, 2.0)],
)
def hardtanh(b: Builder, x: QTensor, min_val: float = -1.0, max_val: float = 1.0, *, out: Result) -> QTensor:
    """Return min(max(x, min_val), max_val). TOSA CLAMP."""
    return _clamp(b, x, min_val, max_val, out)


def _clamp_rule(node: Any) -> QuantRule:
    low, high = (*node.args[1:], *node.kwargs.values(), None, None)[:2]
    return RECTIFIED if {low, high} <= {None, 0, math.inf, -math.inf} else EACH_INPUT


@op(
    "aten.clamp.default",
    quant=_clamp_rule,
    absorbs=True,
    pointwise=True,
    also={
        "aten.clamp_min.default": lambda x, low: ((x, low, None), {}),
        "aten.clamp_max.default": lambda x, high: ((x, None, high), {}),
        "aten.clip.default": lambda x, low=None, high=None: ((x, low, high), {}),
    },
    samples=[
        Sample(I8(1, 8, 5, 5), -1.0, 1.5),
        Sample(I8(2, 9), 0.0),
        Sample(I8(2, 9), None, 0.75),
        Sample(I8(2, 9), 0.75, -0.5),
        Sample(Ints(3, 40, low=-128, high=127, dtype="int8"), -50, 70),
        Sample(Ints(3, 40), None, 300),
    ],
)
def clamp(b: Builder, x: QTensor, low: Any = None, high: Any = None, *, out: Result) -> QTensor:
    """Return min(max(x, low), high) with optional bounds. TOSA CLAMP."""
    return _clamp(b, x, -math.inf if low is None else float(low), math.inf if high is None else float(high), out)
