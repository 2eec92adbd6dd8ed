"""Activations that are clamps, which cost nothing behind most operators. Those that are a table are in pointwise.py."""

from __future__ import annotations

import math
from typing import Any

from ethorch.ops.elementwise import extreme_of
from ethorch.ops.logic import in_codes_of
from ethorch.ops.quant_rules import EACH_INPUT
from ethorch.ops.spec import I8, Ints, Sample, op
from ethorch.qparams import QParams, QTensor
from ethorch.tosa.builder import Builder


def _clamped_integers(b: Builder, x: QTensor, low: float, high: float) -> QTensor:
    """Plain integers between two bounds, which TOSA 1.0 CLAMP is not for: MAXIMUM, MINIMUM."""
    if low > -math.inf:
        x = extreme_of(b, "MAXIMUM", x, low, None)
    return extreme_of(b, "MINIMUM", x, high, None) if high < math.inf else x


def _clamp(b: Builder, x: QTensor, low: float, high: float, out: QParams | None) -> QTensor:
    """min(max(x, low), high) in the codes of ``out``; exact, since quantizing never reverses an order.

    Behind an operator that absorbed it, ``x`` has ``out`` already, and a bound at the end of its range needs nothing.
    """
    if out is None:
        return _clamped_integers(b, x, low, high)
    x = in_codes_of(b, x, out)
    if out.is_real:
        return QTensor(b.clamp(x.value, low, high), x.dims, out)
    codes = out.quantize([max(low, -3e38), min(high, 3e38)])
    low_code = out.qmin if low == -math.inf else int(codes[0])
    high_code = out.qmax if high == math.inf else int(codes[1])
    return QTensor(b.clamp(x.value, low_code, high_code) if (low_code, high_code) != (out.qmin, out.qmax) else x.value, x.dims, out)


@op(
    "aten.relu.default",
    quant=EACH_INPUT,
    absorbs=True,
    pointwise=True,
    samples=[Sample(I8(1, 8, 5, 5)), Sample(I8(3, 7)), Sample(Ints(3, 40))],
)
def relu(b: Builder, x: QTensor, *, out: QParams | None) -> QTensor:
    """out = max(x, 0), int8. TOSA 1.0 CLAMP, or nothing where saturation does it."""
    return _clamp(b, x, 0.0, math.inf, out)


@op("aten.relu6.default", quant=EACH_INPUT, absorbs=True, pointwise=True, samples=[Sample(I8(1, 8, 5, 5, high=9.0))])
def relu6(b: Builder, x: QTensor, *, out: QParams | None) -> QTensor:
    """out = min(max(x, 0), 6), int8. TOSA 1.0 CLAMP, or nothing where saturation does it."""
    return _clamp(b, x, 0.0, 6.0, out)


@op(
    "aten.hardtanh.default", quant=EACH_INPUT, absorbs=True, pointwise=True,
    samples=[Sample(I8(1, 8, 5, 5)), Sample(I8(1, 4, 5), 0.0, 6.0), Sample(I8(6), -0.5, 2.0)],
)  # fmt: skip
def hardtanh(b: Builder, x: QTensor, min_val: float = -1.0, max_val: float = 1.0, *, out: QParams | None) -> QTensor:
    """out = min(max(x, min_val), max_val), int8. TOSA 1.0 CLAMP, or nothing where saturation does it."""
    return _clamp(b, x, min_val, max_val, out)


@op(
    "aten.clamp.default", quant=EACH_INPUT, absorbs=True, pointwise=True,
    also={
        "aten.clamp_min.default": lambda x, low: ((x, low, None), {}),
        "aten.clamp_max.default": lambda x, high: ((x, None, high), {}),
        "aten.clip.default": lambda x, low=None, high=None: ((x, low, high), {}),
    },
    samples=[Sample(I8(1, 8, 5, 5), -1.0, 1.5), Sample(I8(2, 9), 0.0), Sample(I8(2, 9), None, 0.75),
             Sample(Ints(3, 40, low=-128, high=127, dtype="int8"), -50, 70), Sample(Ints(3, 40), None, 300)],
)  # fmt: skip
def clamp(b: Builder, x: QTensor, low: Any = None, high: Any = None, *, out: QParams | None) -> QTensor:
    """out = min(max(x, low), high), int8; either bound may be missing. TOSA 1.0 CLAMP, or nothing."""
    return _clamp(b, x, -math.inf if low is None else float(low), math.inf if high is None else float(high), out)
