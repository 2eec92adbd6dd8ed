"""Lowerings of where and masked_fill."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor, Result, dtype_range
from ethorch.lower.builder.truth import finite, float_operand, native, select_elements
from ethorch.lower.ops.arithmetic import emit_sum, product
from ethorch.lower.ops.attention import EXCLUDED, MASKED
from ethorch.lower.ops.quant_rules import EACH_INPUT, RECTIFIED, SAME_AS_INPUT, QuantRule
from ethorch.lower.ops.samples import I8, Bools, Ints, Sample
from ethorch.lower.ops.spec import op
from ethorch.support.errors import Reason
from ethorch.tosa.ir import DTYPES
from ethorch.tosa.layout import contiguous


def _rescale_by_add(b: Builder, x: Any, out: QParams) -> QTensor:
    # Adding x to itself avoids the Vela bug ``vela.rescale-in-select``.
    if not native(b) or not isinstance(x, QTensor) or x.is_integer:
        return b.operand(x, out)
    if (x.qparams.scale, x.qparams.zero_point) == (out.scale, out.zero_point):
        return b.operand(x, out)
    codes = b.to_int32(x).value
    twice = b.emit("ADD", codes, codes)
    return QTensor(b.requantize(twice, x.qparams.step / 2, out, largest=2 * x.qparams.code_count), x.dims, out)


def either(b: Builder, condition: Any, x: Any, y: Any, q: QParams | None, dtype: str = "") -> QTensor:
    """Return condition ? x : y, quantized with ``q``.

    If ``q`` is None, the result has the dtype ``dtype``. Default: the dtype of x, or of y if x is not a tensor.
    """
    condition = b.plain_tensor(condition)
    if q is not None:
        return select_elements(b, condition, _rescale_by_add(b, x, q), _rescale_by_add(b, y, q), q)
    dtype = dtype or next((value.value.dtype for value in (x, y) if isinstance(value, QTensor)), "INT32")
    x, y = (b.convert_operand(value, Result((), dtype)) for value in (x, y))
    return select_elements(b, condition, x, y, None)


def check_where(condition: Any, x: Any, y: Any) -> Reason | None:
    return float_operand("where", x, y)


@op(
    "aten.where.self",
    "aten.where.ScalarOther",
    "aten.where.ScalarSelf",
    "aten.where.Scalar",
    quant=EACH_INPUT,
    pointwise=True,
    steps=True,
    check=check_where,
    samples=[
        Sample(Bools(1, 4, 5, 5), I8(1, 4, 5, 5), I8(1, 4, 5, 5, low=-1.0, high=4.0)),
        Sample(Bools(5, 1), I8(2, 5, 6), I8(6)),
        Sample(Bools(3, 30), Ints(3, 30), Ints(1, 30)),
        Sample(Bools(3, 9), Bools(3, 9), Bools(9)),
    ],
)
def where(b: Builder, condition: Any, x: Any, y: Any, *, out: Result) -> QTensor:
    """Return condition ? x : y with broadcasting. TOSA SELECT, or on U55 and U65 MAXIMUM (int8), or MUL and ADD.

    Only the conversion to the scale of ``out`` rounds.
    """
    return either(b, condition, x, y, out.q, out.dtype or "INT32")


def _fill_rule(node: Any) -> QuantRule:
    value = node.args[2]
    value = value.meta["val"] if hasattr(value, "meta") else value
    if isinstance(value, (int, float)) and value == 0:
        return RECTIFIED
    return SAME_AS_INPUT if isinstance(value, (int, float)) and abs(value) >= -MASKED and value != EXCLUDED else EACH_INPUT


@op(
    "aten.masked_fill.Scalar",
    "aten.masked_fill.Tensor",
    quant=_fill_rule,
    pointwise=True,
    steps=True,
    samples=[
        Sample(I8(1, 4, 5, 5), Bools(1, 1, 5, 5), 0.5),
        Sample(I8(2, 3, 6), Bools(3, 1), -math.inf),
        Sample(I8(1, 3, 4, 5, low=0.0, high=1.0), Bools(1, 3, 4, 5), -1.0),
        Sample(Ints(3, 20), Bools(20), 7),
    ],
)
def masked_fill(b: Builder, x: Any, mask: Any, value: Any, *, out: Result) -> QTensor:
    """Return mask ? value : x with broadcasting. A value outside the range of ``out`` is clamped.

    If the mask is constant, and ``value`` is 0 or the lowest value of the range, emit one MUL or ADD with a constant.
    """
    q = out.q
    if q is not None and not q.is_float and not isinstance(value, QTensor):
        value = finite(float(np.asarray(value).reshape(())), q)
        if isinstance(x, QTensor) and not x.is_integer and isinstance(mask, np.ndarray):
            if value == 0:
                return _multiply_by_mask(b, x, mask, q)
            if q.quantize(np.array(value)) == q.qmin:
                return _add_mask(b, x, mask, q)
    return either(b, mask, value, x, out.q, out.dtype or "INT32")


def _multiply_by_mask(b: Builder, x: QTensor, mask: npt.NDArray[Any], out: QParams) -> QTensor:
    keep = b.const((mask == 0).astype(DTYPES[out.dtype]), out.dtype, name="mask")
    factor = QTensor(keep, contiguous(mask.shape), QParams((1.0,), (0,), *dtype_range(out.dtype), out.dtype))
    return product(b, x, factor, x.qparams.step, out)


def _add_mask(b: Builder, x: QTensor, mask: npt.NDArray[Any], out: QParams) -> QTensor:
    low, high = dtype_range(out.dtype)
    unit = (high - low) * (x.qparams.step + out.step) / -low  # the lowest value of the constant exceeds both ranges
    depth = QParams((unit,), (0,), low, high, out.dtype)
    codes = np.where(mask, low, 0).astype(DTYPES[out.dtype])
    return emit_sum(b, "ADD", x, QTensor(b.const(codes, out.dtype, name="mask"), contiguous(codes.shape), depth), 1, out)
