"""Comparisons, selection and logic. With one quantized tensor and constants they join a table.

U85 has operators for them; U55 and U65 compare by subtracting and looking up the sign, and select by multiplying with
truth values (``ethorch.ops.logic``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ethorch.errors import Reason
from ethorch.layout import contiguous
from ethorch.ops.elementwise import summed
from ethorch.ops.logic import (
    as_tensor,
    difference,
    finite,
    float_operand,
    in_codes_of,
    in_one_float,
    in_one_unit,
    is_real,
    native,
    negated,
    selected,
    truth_table,
    widened,
)
from ethorch.ops.quant_rules import EACH_INPUT, SAME_AS_INPUT, QuantRule
from ethorch.ops.rows import minimum_of
from ethorch.ops.spec import I8, Ints, Sample, Truth, op
from ethorch.qparams import QParams, QTensor, dtype_range
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import DTYPES

COMPARED = QuantRule(output="none")

# name -> (TOSA operator, swap the operands, negate the result, what the difference's code tells)
_COMPARISONS: dict[str, tuple[str, bool, bool, Callable[[np.ndarray], np.ndarray]]] = {
    "eq": ("EQUAL", False, False, lambda d: d == 0),
    "ne": ("EQUAL", False, True, lambda d: d != 0),
    "gt": ("GREATER", False, False, lambda d: d > 0),
    "ge": ("GREATER_EQUAL", False, False, lambda d: d >= 0),
    "lt": ("GREATER", True, False, lambda d: d < 0),
    "le": ("GREATER_EQUAL", True, False, lambda d: d <= 0),
}


def compared(b: Builder, name: str, x: Any, y: Any) -> QTensor:
    """x ? y with broadcasting, as truth values: quantized tensors, or plain integers whose difference fits int32.

    Quantized tensors of one scale are compared exactly, and with constants as PyTorch's float32 does; others to 1 / 2**19 of the
    coarser step (1 / 2**14 for int16).
    TOSA 1.0 EQUAL, GREATER, GREATER_EQUAL, or SUB and TABLE.
    """
    operator, swap, negate, holds = _COMPARISONS[name]
    floats = is_real(x, y)
    (xv, yv), dims = in_one_float(b, x, y) if floats else in_one_unit(b, x, y)
    quantized = {value.q.dtype for value in (x, y) if isinstance(value, QTensor) and value.q is not None}
    if not native(b):
        return QTensor(truth_table(b, difference(b, xv, yv, small=quantized == {"INT8"}), holds), dims, None)
    if quantized and not floats:
        # Vela merges an operand's RESCALE into the comparison, but the NPU scales operands of ADD and SUB only.
        xv = b.emit("SUB", xv, yv)
        yv = b.const(np.zeros((1,) * xv.rank, np.int32))
    result = b.emit(operator, *((yv, xv) if swap else (xv, yv)))
    return QTensor(negated(b, result) if negate else result, dims, None)


_PAIRS = (
    Sample(I8(1, 8, 5, 6), I8(1, 8, 5, 6, low=-1.0, high=4.0)), Sample(I8(2, 1, 4), I8(3, 1)),
    Sample(Ints(3, 40, low=-3, high=3), Ints(3, 40, low=-3, high=3)), Sample(Ints(3, 40), Ints(1, 40)),
)  # fmt: skip
_SCALARS = (Sample(I8(2, 7), 0.5), Sample(Ints(2, 20, low=-3, high=3), 1))


def _comparison(name: str) -> None:
    @op(
        f"aten.{name}.Tensor", f"aten.{name}.Scalar", quant=COMPARED, pointwise=True, steps=True,
        samples=[*_PAIRS, *(sample.of(f"aten.{name}.Scalar") for sample in _SCALARS)],
    )  # fmt: skip
    def compare(b: Builder, x: Any, y: Any, *, out: None) -> QTensor:
        return compared(b, name, x, y)

    compare.doc = f"out = x {name} y as truth values. {compared.__doc__}"
    compare.check(lambda x, y: float_operand(name, x, y))


for _name in _COMPARISONS:
    _comparison(_name)


# --- selection --------------------------------------------------------------------------------------------------------------


def _settled(b: Builder, x: Any, out: QParams) -> QTensor:
    """``x`` in codes of ``out``, by an ADD of 0 where it has another scale and the target selects by bit operations.

    Vela merges a RESCALE into the AND_NOT that a SELECT becomes, but the NPU scales operands of ADD and SUB only.
    """
    if not native(b) or not isinstance(x, QTensor) or x.q is None or (x.q.scale, x.q.zero_point) == (out.scale, out.zero_point):
        return in_codes_of(b, x, out)
    zero = b.const(np.zeros((1,) * x.value.rank, np.int32))
    total = b.emit("ADD", b.to_int32(x).value, zero)
    return QTensor(b.requantize(total, x.q.step, out), x.dims, out)


def _either(b: Builder, condition: Any, x: Any, y: Any, out: QParams | None) -> QTensor:
    condition = as_tensor(b, condition)
    if out is not None:
        return selected(b, condition, _settled(b, x, out), _settled(b, y, out), out)
    dtype = next((value.value.dtype for value in (x, y) if isinstance(value, QTensor)), "INT32")
    return selected(b, condition, as_tensor(b, x, dtype), as_tensor(b, y, dtype), None)


@op(
    "aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar", quant=EACH_INPUT, pointwise=True,
    steps=True,
    samples=[
        Sample(Truth(1, 4, 5, 5), I8(1, 4, 5, 5), I8(1, 4, 5, 5, low=-1.0, high=4.0)), Sample(Truth(5, 1), I8(2, 5, 6), I8(6)),
        Sample(Truth(3, 30), Ints(3, 30), Ints(1, 30)), Sample(Truth(3, 9), Truth(3, 9), Truth(9)),
    ],
)  # fmt: skip
def where(b: Builder, condition: Any, x: Any, y: Any, *, out: QParams | None) -> QTensor:
    """out = condition ? x : y with broadcasting: int8, int16, plain integers or truth values; exact but for the change to
    out's scale. TOSA 1.0 SELECT, or MUL and ADD."""
    return _either(b, condition, x, y, out)


@where.check
def _(condition: Any, x: Any, y: Any) -> Reason | None:
    return float_operand("where", x, y)


def _fill_rule(node: Any) -> QuantRule:
    """A fill value that is no number to calibrate with (-inf, -1e9 in attention masks) takes the end of the input's range."""
    value = node.args[2]
    value = value.meta["val"] if hasattr(value, "meta") else value
    return SAME_AS_INPUT if isinstance(value, (int, float)) and abs(value) > 1e4 else EACH_INPUT


@op(
    "aten.masked_fill.Scalar", "aten.masked_fill.Tensor", quant=_fill_rule, pointwise=True, steps=True,
    samples=[
        Sample(I8(1, 4, 5, 5), Truth(1, 1, 5, 5), 0.5), Sample(I8(2, 3, 6), Truth(3, 1), -math.inf),
        Sample(I8(1, 3, 4, 5, low=0.0, high=1.0), Truth(1, 3, 4, 5), -1.0),
        Sample(Ints(3, 20), Truth(20), 7),
    ],
)  # fmt: skip
def masked_fill(b: Builder, x: Any, mask: Any, value: Any, *, out: QParams | None) -> QTensor:
    """out = mask ? value : x with broadcasting; a value beyond out's range is the end of it.

    A constant mask whose value is the low end of the range is subtracted, so far that the sum saturates there.
    """
    if out is not None and not out.is_real and not isinstance(value, QTensor):
        value = finite(float(np.asarray(value).reshape(())), out)
        lowest = out.quantize(np.array(value)) == out.qmin
        if lowest and isinstance(x, QTensor) and x.q is not None and isinstance(mask, np.ndarray):
            return _sunk(b, x, mask, out)
    return _either(b, mask, value, x, out)


def _sunk(b: Builder, x: QTensor, mask: np.ndarray, out: QParams) -> QTensor:
    """x, and where the mask is set the least code of ``out``: TOSA 1.0 ADD of a constant, a single operation on every NPU."""
    low, high = dtype_range(out.dtype)
    unit = (high - low) * (x.qparams.step + out.step) / -low  # the least code of the constant outweighs both ranges
    depth = QParams((unit,), (0,), low, high, out.dtype)
    codes = np.where(mask, low, 0).astype(DTYPES[out.dtype])
    return summed(b, "ADD", x, QTensor(b.const(codes, out.dtype, name="mask"), contiguous(codes.shape), depth), 1, out)


# --- logic ------------------------------------------------------------------------------------------------------------------


def as_truth(b: Builder, x: Any) -> QTensor:
    """Truth values as they are; of anything else whether it is 0."""
    x = as_tensor(b, x)
    if x.value.dtype in ("BOOL", b.truth) and x.q is None:
        return x
    return compared(b, "ne", x, 0)


def logical(b: Builder, name: str, x: Any, y: Any) -> QTensor:
    """and, or, xor of truth values with broadcasting. TOSA 1.0 LOGICAL_AND, LOGICAL_OR, LOGICAL_XOR; or MINIMUM, MAXIMUM, SUB."""
    (xv, yv), dims = b.aligned(as_truth(b, x), as_truth(b, y))
    if native(b):
        return QTensor(b.emit(f"LOGICAL_{name.upper()}", xv, yv), dims, None)
    wide = widened(b, xv), widened(b, yv)
    if name == "xor":
        return QTensor(truth_table(b, difference(b, *wide, small=True), lambda d: d != 0), dims, None)
    result = b.emit({"and": "MINIMUM", "or": "MAXIMUM"}[name], *wide)
    return QTensor(b.rescale(result, 1.0, dtype="INT8"), dims, None)


_TRUTHS = (
    Sample(Truth(2, 3, 5), Truth(2, 3, 5)), Sample(Truth(1, 4, 5, 6), Truth(4, 1, 1)),
    Sample(Ints(4, 9, low=-1, high=1), Truth(4, 1)),
)  # fmt: skip


def _logical_operator(name: str) -> None:
    @op(f"aten.logical_{name}.default", quant=COMPARED, pointwise=True, steps=True, samples=_TRUTHS)
    def lower(b: Builder, x: Any, y: Any, *, out: None) -> QTensor:
        return logical(b, name, x, y)

    lower.doc = f"out = x {name} y of truth values; other tensors count where they are not 0. {logical.__doc__}"


for _name in ("and", "or", "xor"):
    _logical_operator(_name)


@op(
    "aten.logical_not.default", quant=COMPARED, pointwise=True, steps=True,
    samples=[Sample(Truth(2, 3, 5)), Sample(Ints(40, low=-1, high=1))],
)  # fmt: skip
def logical_not(b: Builder, x: Any, *, out: None) -> QTensor:
    """out = not x. TOSA 1.0 LOGICAL_NOT, or a TABLE."""
    x = as_truth(b, x)
    return QTensor(negated(b, x.value), x.dims, None)


def _reduced(b: Builder, name: str, x: Any, dims: Sequence[int]) -> QTensor:
    """any or all over ``dims`` (kept with extent 1). TOSA 1.0 REDUCE_ANY, REDUCE_ALL; or REDUCE_MAX, MINIMUM of int8."""
    x = as_truth(b, x)
    value = x.value
    for axis in sorted({axis for dim in dims for axis in x.dims[dim] if value.shape[axis] > 1}):
        if native(b):
            value = b.emit(f"REDUCE_{name.upper()}", value, axis=axis)
        else:
            value = b.emit("REDUCE_MAX", value, axis=axis) if name == "any" else minimum_of(b, value, axis)
    return QTensor(value, tuple(() if dim in dims else axes for dim, axes in enumerate(x.dims)), None)


def _reduction(name: str) -> None:
    @op(
        f"aten.{name}.dims", quant=COMPARED,
        also={
            f"aten.{name}.default": lambda x: ((x, None), {}),
            f"aten.{name}.dim": lambda x, dim, keepdim=False: ((x, [dim], keepdim), {}),
        },
        samples=[Sample(Truth(2, 3, 5, chance=0.3), [-1]), Sample(Truth(1, 4, 5, 6, chance=0.7), [1, 2], True),
                 Sample(Ints(40, 3, low=-1, high=1), None)],
    )  # fmt: skip
    def lower(b: Builder, x: Any, dim: Any = None, keepdim: bool = False, *, out: None) -> QTensor:
        rank = len(x.shape)
        dims = range(rank) if dim is None or (isinstance(dim, (list, tuple)) and not dim) else [d % rank for d in dim]
        return b.view(_reduced(b, name, x, list(dims)), b.result_shape)

    lower.doc = f"out = {name} of x over dim. {_reduced.__doc__}"


for _name in ("any", "all"):
    _reduction(_name)
