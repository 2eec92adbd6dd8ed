"""Plain integers (indices, masks, flags): bitwise operators and shifts. Arithmetic on them is in elementwise.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from ethorch.errors import Reason
from ethorch.ops.compare import logical
from ethorch.ops.logic import as_tensor, negated, widened
from ethorch.ops.quant_rules import NOT_QUANTIZED
from ethorch.ops.spec import Ints, OpSpec, Sample, Truth, op
from ethorch.qparams import QTensor
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import Value


def _is_truth(b: Builder, x: Any) -> bool:
    """A truth value, or a Python bool? INT8 is a truth value only where PyTorch says the result is one."""
    return isinstance(x, bool) or (isinstance(x, QTensor) and x.value.dtype == "BOOL") or b.result_dtype == "BOOL"


def _alike(b: Builder, x: Any, y: Any) -> tuple[list[Value], Any]:
    """Both operands in the result's dtype."""
    dtype = b.result_dtype or "INT32"
    tensors = [as_tensor(b, value, dtype) for value in (x, y)]
    values, dims = b.aligned(*tensors)
    return [value if value.dtype == dtype else widened(b, value) for value in values], dims


def _bitwise(name: str) -> OpSpec:
    @op(
        f"aten.bitwise_{name}.Tensor", f"aten.bitwise_{name}.Scalar", f"aten.bitwise_{name}.Scalar_Tensor",
        f"aten.__{name}__.Tensor", f"aten.__{name}__.Scalar", quant=NOT_QUANTIZED,
        samples=[
            Sample(Truth(2, 3, 5), Truth(5)), Sample(Ints(3, 40), Ints(3, 40)),
            Sample(Ints(1, 2, 5, 6), 12).of(f"aten.bitwise_{name}.Scalar"),
            Sample(Ints(40, low=-128, high=127, dtype="int8"), Ints(40, low=-128, high=127, dtype="int8")),
        ],
    )  # fmt: skip
    def lower(b: Builder, x: Any, y: Any, *, out: None) -> QTensor:
        if _is_truth(b, x):
            return logical(b, name, x, y)
        (xv, yv), dims = _alike(b, x, y)
        return QTensor(b.emit(f"BITWISE_{name.upper()}", xv, yv), dims, None)

    tosa = f"TOSA 1.0 BITWISE_{name.upper()}, LOGICAL_{name.upper()}."
    lower.doc = f"out = x {name} y bit by bit, of integers or truth values. {tosa}"
    return lower


_BITWISE = [_bitwise(name) for name in ("and", "or", "xor")]


@op("aten.bitwise_not.default", quant=NOT_QUANTIZED, samples=[Sample(Truth(2, 3, 5)), Sample(Ints(3, 40))])
def bitwise_not(b: Builder, x: QTensor, *, out: None) -> QTensor:
    """out = not x, bit by bit: -1 - x. TOSA 1.0 LOGICAL_NOT, or SUB."""
    if _is_truth(b, x):
        return QTensor(negated(b, x.value), x.dims, None)
    minus_one = b.const(np.full((1,) * x.value.rank, -1, np.int32))
    value = b.emit("SUB", minus_one, widened(b, x.value))
    return QTensor(value if b.result_dtype == "INT32" else b.rescale(value, 1.0, dtype=b.result_dtype), x.dims, None)


def _shift_operands(b: Builder, x: Any, y: Any) -> tuple[Value, Value, Any]:
    (xv, yv), dims = b.aligned(as_tensor(b, x), as_tensor(b, y))
    return widened(b, xv), widened(b, yv), dims


def _shifts(scalar: str) -> list[Sample]:
    return [
        Sample(Ints(3, 40, low=-3000, high=3000), Ints(3, 40, low=0, high=7)), Sample(Ints(2, 3, 4, 5), Ints(5, low=0, high=5)),
        Sample(Ints(3, 30), 3).of(scalar), Sample(Ints(3, 30, low=-128, high=127, dtype="int8"), 3).of(scalar),
        Sample(Ints(3, 30, low=-3000, high=3000, dtype="int16"), Ints(30, low=0, high=7, dtype="int16")),
    ]  # fmt: skip


@op(
    "aten.bitwise_left_shift.Tensor", "aten.bitwise_left_shift.Tensor_Scalar", "aten.__lshift__.Scalar", "aten.__lshift__.Tensor",
    quant=NOT_QUANTIZED, samples=_shifts("aten.__lshift__.Scalar"),
)  # fmt: skip
def left_shift(b: Builder, x: Any, y: Any, *, out: None) -> QTensor:
    """out = x * 2**y of int32, y in 0..31. TOSA 1.0 LOGICAL_LEFT_SHIFT."""
    xv, yv, dims = _shift_operands(b, x, y)
    return QTensor(b.emit("LOGICAL_LEFT_SHIFT", xv, yv), dims, None)


@op(
    "aten.bitwise_right_shift.Tensor", "aten.bitwise_right_shift.Tensor_Scalar", "aten.__rshift__.Scalar", "aten.__rshift__.Tensor",
    quant=NOT_QUANTIZED, samples=_shifts("aten.__rshift__.Scalar"),
)  # fmt: skip
def right_shift(b: Builder, x: Any, y: Any, *, out: None) -> QTensor:
    """out = floor(x / 2**y) of int32, y in 0..30. TOSA 1.0 ARITHMETIC_RIGHT_SHIFT; where the NPU only has the one that rounds
    to nearest, half of 2**y is taken off first: floor((x - h + h) / 2**y)."""
    xv, yv, dims = _shift_operands(b, x, y)
    if "rounds" not in getattr(b.limits.get("ARITHMETIC_RIGHT_SHIFT"), "ranges", {}):
        return QTensor(b.emit("ARITHMETIC_RIGHT_SHIFT", xv, yv, round=False), dims, None)
    one = b.const(np.ones((1,) * yv.rank, np.int32))
    if yv.is_const:
        assert yv.data is not None
        half = b.const(((1 << yv.data.astype(np.int64)) >> 1).astype(np.int32))
    else:
        power = b.emit("LOGICAL_LEFT_SHIFT", b.const(np.ones(yv.shape, np.int32)), yv)
        half = b.emit("ARITHMETIC_RIGHT_SHIFT", b.emit("SUB", power, one), one, round=True)
    return QTensor(b.emit("ARITHMETIC_RIGHT_SHIFT", b.emit("SUB", xv, half), yv, round=True), dims, None)


def _integers(x: Any, *rest: Any) -> Reason | None:
    for value in (x, *rest):
        if isinstance(value, QTensor) and value.q is not None:
            return Reason("integer.operand", "an operand is quantized; allowed are integers and truth values")
    return None


for _spec in (*_BITWISE, bitwise_not, left_shift, right_shift):
    _spec.check(_integers)
