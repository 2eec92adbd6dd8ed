"""Comparisons: TOSA operators on U85, and tables indexed by the sign of the difference on U55 and U65."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.builder.truth import (
    any_float,
    difference,
    float_operand,
    in_one_float,
    in_one_unit,
    invert_truth,
    native,
    truth_of_codes,
)
from ethorch.lower.ops.quant_rules import QuantRule
from ethorch.lower.ops.samples import I8, Ints, Sample
from ethorch.lower.ops.spec import OpSpec, op

#: Rule for quantized operands and truth values as the result.
COMPARED = QuantRule(output="none")
ORDERED = QuantRule(output="none", is_threshold=True)


@dataclass(frozen=True)
class _Comparison:
    symbol: str
    operator: str
    holds: Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]]
    swapped: bool = False
    negated: bool = False


_COMPARISONS = {
    "eq": _Comparison("==", "EQUAL", lambda d: d == 0),
    "ne": _Comparison("!=", "EQUAL", lambda d: d != 0, negated=True),
    "gt": _Comparison(">", "GREATER", lambda d: d > 0),
    "ge": _Comparison(">=", "GREATER_EQUAL", lambda d: d >= 0),
    "lt": _Comparison("<", "GREATER", lambda d: d < 0, swapped=True),
    "le": _Comparison("<=", "GREATER_EQUAL", lambda d: d <= 0, swapped=True),
}

#: Precision of comparisons, for their docstrings.
_EXACTNESS = """\
- Plain integers: exact.
- Quantized tensors with the same scale: exact.
- A quantized tensor and a constant: equal to PyTorch's float32 comparison.
- Quantized tensors with different scales: exact to 1 / 2**19 of the coarser scale, or 1 / 2**14 for int16.
"""


def emit_comparison(b: Builder, name: str, x: Any, y: Any) -> QTensor:
    """Emit the comparison ``name``, e.g. ``ge``. See ``in_one_unit`` for the precision."""
    comparison = _COMPARISONS[name]
    floats = any_float(x, y)
    if not floats:  # no comparison with NaN holds, except !=, nor does one with the infinity that replaces NaN
        beyond = -math.inf if comparison.swapped else math.inf
        x, y = _replace_nan(x, -beyond), _replace_nan(y, beyond)
    (xv, yv), dims = in_one_float(b, x, y) if floats else in_one_unit(b, x, y)
    quantized = {value.qparams.dtype for value in (x, y) if isinstance(value, QTensor) and not value.is_integer}
    if not native(b):
        below = 1 << (29 if quantized == {"INT8"} else 31 if quantized else 32)
        return QTensor(truth_of_codes(b, difference(b, xv, yv, below=below), comparison.holds), dims, None)
    if quantized and not floats:
        # avoid the Vela bug vela.rescale-in-comparison
        xv = b.emit("SUB", xv, yv)
        yv = b.const_like(xv, 0)
    result = b.emit(comparison.operator, *((yv, xv) if comparison.swapped else (xv, yv)))
    return QTensor(invert_truth(b, result) if comparison.negated else result, dims, None)


def _replace_nan(x: Any, number: float) -> Any:
    return x if isinstance(x, QTensor) else np.where(np.isnan(x), number, x)


_PAIRS = (
    Sample(I8(1, 8, 5, 6), I8(1, 8, 5, 6, low=-1.0, high=4.0)), Sample(I8(2, 1, 4), I8(3, 1)),
    Sample(Ints(3, 40, low=-3, high=3), Ints(3, 40, low=-3, high=3)), Sample(Ints(3, 40), Ints(1, 40)),
)  # fmt: skip
_SCALARS = (Sample(I8(2, 7), 0.5), Sample(Ints(2, 20, low=-3, high=3), 1))


def _comparison(name: str) -> OpSpec:
    @op(
        f"aten.{name}.Tensor",
        f"aten.{name}.Scalar",
        quant=COMPARED if name in ("eq", "ne") else ORDERED,
        doc=f"Return x {_COMPARISONS[name].symbol} y with broadcasting, as truth values.\n\n{_EXACTNESS}",
        check=lambda x, y: float_operand(name, x, y),
        pointwise=True,
        steps=True,
        samples=[*_PAIRS, *(sample.of(f"aten.{name}.Scalar") for sample in _SCALARS)],
    )
    def compare(b: Builder, x: Any, y: Any, *, out: Result) -> QTensor:
        return emit_comparison(b, name, x, y)

    return compare


#: Comparisons of two tensors, or of a tensor and a number.
COMPARISONS = tuple(_comparison(name) for name in _COMPARISONS)
