"""Bitwise operators and shifts of plain integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, Result
from ethorch.lower.builder.truth import invert_truth
from ethorch.lower.ops.logical import logical
from ethorch.lower.ops.quant_rules import NOT_QUANTIZED
from ethorch.lower.ops.samples import Bools, Ints, Sample
from ethorch.lower.ops.spec import op
from ethorch.support.errors import Reason
from ethorch.tosa.ir import Value


def _is_truth(x: Any, out: Result) -> bool:
    return out.dtype == "BOOL" if out.dtype else isinstance(x, bool) or (isinstance(x, QTensor) and x.value.dtype == "BOOL")


def _alike(b: Builder, x: Any, y: Any, dtype: str) -> tuple[list[Value], Any]:
    tensors = [b.plain_tensor(value, dtype) for value in (x, y)]
    values, dims = b.align(*tensors)
    return [value if value.dtype == dtype else b.widen(value) for value in values], dims


def check_integers(x: Any, *rest: Any) -> Reason | None:
    for value in (x, *rest):
        if isinstance(value, QTensor) and not value.is_integer:
            return Reason(
                "integer.operand",
                "expected integer or bool operands, got a quantized operand",
                "Convert the operand to int32 in the model, or use a comparison. The bits of quantized values depend on the scale.",
            )
    return None


def _bitwise(name: str) -> None:
    @op(
        f"aten.bitwise_{name}.Tensor",
        f"aten.bitwise_{name}.Scalar",
        f"aten.bitwise_{name}.Scalar_Tensor",
        f"aten.__{name}__.Tensor",
        f"aten.__{name}__.Scalar",
        quant=NOT_QUANTIZED,
        check=check_integers,
        doc=f"Return x {name} y bit by bit, for integers or truth values. TOSA BITWISE_{name.upper()}, LOGICAL_{name.upper()}.",
        samples=[
            Sample(Bools(2, 3, 5), Bools(5)),
            Sample(Ints(3, 40), Ints(3, 40)),
            Sample(Ints(1, 2, 5, 6), 12).of(f"aten.bitwise_{name}.Scalar"),
            Sample(Ints(40, low=-128, high=127, dtype="int8"), Ints(40, low=-128, high=127, dtype="int8")),
        ],
    )
    def bitwise(b: Builder, x: Any, y: Any, *, out: Result) -> QTensor:
        if _is_truth(x, out):
            return logical(b, name, x, y)
        (xv, yv), dims = _alike(b, x, y, out.dtype or "INT32")
        return QTensor(b.emit(f"BITWISE_{name.upper()}", xv, yv), dims, None)


for _name in ("and", "or", "xor"):
    _bitwise(_name)


@op("aten.bitwise_not.default", quant=NOT_QUANTIZED, check=check_integers, samples=[Sample(Bools(2, 3, 5)), Sample(Ints(3, 40))])
def bitwise_not(b: Builder, x: QTensor, *, out: Result) -> QTensor:
    """Return the bitwise NOT of x, which is -1 - x for integers. TOSA LOGICAL_NOT, SUB."""
    if _is_truth(x, out):
        return QTensor(invert_truth(b, x.value), x.dims, None)
    minus_one = b.const_like(x.value, -1)
    value = b.emit("SUB", minus_one, b.widen(x.value))
    return QTensor(value if out.dtype == "INT32" else b.rescale(value, 1.0, dtype=out.dtype), x.dims, None)


def _shift_operands(b: Builder, x: Any, y: Any) -> tuple[Value, Value, Any]:
    (xv, yv), dims = b.align(b.plain_tensor(x), b.plain_tensor(y))
    return b.widen(xv), b.widen(yv), dims


def _shifts(scalar: str) -> list[Sample]:
    return [
        Sample(Ints(3, 40, low=-3000, high=3000), Ints(3, 40, low=0, high=7)),
        Sample(Ints(2, 3, 4, 5), Ints(5, low=0, high=5)),
        Sample(Ints(3, 30), 3).of(scalar),
        Sample(Ints(3, 30, low=-128, high=127, dtype="int8"), 3).of(scalar),
        Sample(Ints(3, 30, low=-3000, high=3000, dtype="int16"), Ints(30, low=0, high=7, dtype="int16")),
    ]


@op(
    "aten.bitwise_left_shift.Tensor",
    "aten.bitwise_left_shift.Tensor_Scalar",
    "aten.__lshift__.Scalar",
    "aten.__lshift__.Tensor",
    quant=NOT_QUANTIZED,
    check=check_integers,
    samples=_shifts("aten.__lshift__.Scalar"),
)
def left_shift(b: Builder, x: Any, y: Any, *, out: Result) -> QTensor:
    """Return x * 2**y in int32, for y in 0..31. TOSA LOGICAL_LEFT_SHIFT."""
    xv, yv, dims = _shift_operands(b, x, y)
    return QTensor(b.emit("LOGICAL_LEFT_SHIFT", xv, yv), dims, None)


@op(
    "aten.bitwise_right_shift.Tensor",
    "aten.bitwise_right_shift.Tensor_Scalar",
    "aten.__rshift__.Scalar",
    "aten.__rshift__.Tensor",
    quant=NOT_QUANTIZED,
    check=check_integers,
    samples=[
        *_shifts("aten.__rshift__.Scalar"),
        # TOSA does not define shifts of INT8 by more than 7.
        Sample(Ints(3, 30, low=-128, high=127, dtype="int8"), Ints(30, low=0, high=30, dtype="int8")),
    ],
)
def right_shift(b: Builder, x: Any, y: Any, *, out: Result) -> QTensor:
    """Return floor(x / 2**y) in int32, for y >= 0. TOSA ARITHMETIC_RIGHT_SHIFT.

    If the NPU only rounds, half of 2**y is first subtracted from x.
    """
    xv, yv, dims = _shift_operands(b, x, y)
    if yv.data is not None:
        yv = b.const(np.minimum(yv.data, 31))
    else:
        yv = b.emit("MINIMUM", yv, b.const_like(yv, 31))
    if "rounds" not in getattr(b.limits.get("ARITHMETIC_RIGHT_SHIFT"), "ranges", {}):
        return QTensor(b.emit("ARITHMETIC_RIGHT_SHIFT", xv, yv, round=False), dims, None)
    ones = b.const_like(yv, 1)
    if yv.is_const:
        assert yv.data is not None
        halves = (1 << yv.data.astype(np.int64)) >> 1
        half, least = b.const(halves.astype(np.int32)), b.const((halves - (1 << 31)).astype(np.int32))
    else:
        power = b.emit("LOGICAL_LEFT_SHIFT", b.const(np.ones(yv.shape, np.int32)), yv)
        half = b.emit("ARITHMETIC_RIGHT_SHIFT", b.emit("SUB", power, ones), ones, round=True)
        least = b.emit("ADD", half, b.const_like(yv, -(1 << 31)))
    difference = b.emit("SUB", b.emit("MAXIMUM", xv, least), half)  # without overflow
    return QTensor(b.emit("ARITHMETIC_RIGHT_SHIFT", difference, yv, round=True), dims, None)
