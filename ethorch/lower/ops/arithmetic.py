"""Elementwise arithmetic. An operator on one quantized tensor and constants becomes part of a lookup table.

Operators on plain integers compute in int32. If only one operand is quantized, the other has scale 1 and zero point 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.floats import FloatTensor
from ethorch.lower.builder.qparams import QParams, QTensor, Result, float_qparams, plain_qparams
from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.ops.logical import logical
from ethorch.lower.ops.matmul import fold_factor
from ethorch.lower.ops.quant_rules import EACH_INPUT
from ethorch.lower.ops.samples import I8, Bools, Ints, Sample, W
from ethorch.lower.ops.spec import composite, op
from ethorch.support.errors import Reason
from ethorch.tosa.ir import DTYPES, Value
from ethorch.tosa.layout import Dims

aten = torch.ops.aten

#: log2 of the larger operand scale in units of the sum, for the widest operand dtype. For int8 and int16 it is the NPU's
#: left shift; for plain integers it leaves 20 bits. Vela does not merge other scales into an ADD, or merges such scales incorrectly
#: (``vela.sum-of-whole-scales``).
_HEADROOM = {"INT8": 19, "INT16": 14, "INT32": 10}
_MOST = 1 << 29  # largest integer operand of a sum, in units of the sum


def is_plain(x: Any) -> bool:
    """Return True for plain integers and numbers."""
    return not isinstance(x, QTensor) or x.is_integer


def as_quantized(b: Builder, x: Any) -> QTensor:
    """Convert plain integers and numbers to quantized tensors with scale 1."""
    if isinstance(x, QTensor) and not x.is_integer:
        return x
    tensor = b.plain_tensor(x)
    return QTensor(b.widen(tensor.value), tensor.dims, plain_qparams(tensor.value))


def plain_pair(b: Builder, x: Any, y: Any, compute: Callable[[Value, Value], Value]) -> QTensor:
    """Convert two operands to plain INT32 integers, and apply ``compute``."""
    (xv, yv), dims = b.align(b.plain_tensor(x), b.plain_tensor(y))
    return QTensor(compute(b.widen(xv), b.widen(yv)), dims, None)


def narrow_integers(b: Builder, value: Value, dims: Dims, dtype: str) -> QTensor:
    """Saturate an INT32 value to ``dtype``. An empty dtype denotes int64, which is stored as INT32."""
    dtype = dtype or "INT32"
    return QTensor(value if dtype == "INT32" else b.rescale(value, 1.0, dtype=dtype), dims, None)


def emit_sum(b: Builder, name: str, x: Any, y: Any, alpha: float, out: QParams | None) -> QTensor:
    """Emit x + alpha * y (``name`` = ADD) or x - alpha * y (``name`` = SUB) in int32.

    Operands with equal scales are added exactly. Other operands are scaled so finely that only the final rounding affects the
    result. Int32 activations are first divided by 4 to prevent overflow.
    """
    name = {"ADD": "SUB", "SUB": "ADD"}[name] if alpha < 0 else name
    if out is None:

        def plain(xv: Value, yv: Value) -> Value:
            factor = b.const_like(yv, (abs(alpha) + (1 << 31)) % (1 << 32) - (1 << 31))
            return b.emit(name, xv, yv if abs(alpha) == 1 else b.emit("MUL", yv, factor, shift=0))

        return plain_pair(b, x, y, plain)
    integers = [is_plain(x), is_plain(y)]
    pair = [as_quantized(b, x), as_quantized(b, y)]
    factors = (1.0, abs(alpha))
    scales = [t.qparams.step * factor for t, factor in zip(pair, factors, strict=True)]
    headroom = min(_HEADROOM[t.qparams.dtype] for t in pair)
    wide_codes = any(t.qparams.dtype == "INT32" and not is_integer for t, is_integer in zip(pair, integers, strict=True))
    unit = max(scales) * 4 if wide_codes else max(scales) / (1 if scales[0] == scales[1] else 1 << headroom)
    if sum(integers) == 1:  # larger integers saturate the result
        k = integers.index(True)
        bound = (out.reach + pair[1 - k].qparams.reach * factors[1 - k]) / scales[k]
        pair[k] = b.limit_integers(pair[k], bound, _MOST * unit / scales[k])
        unit = max(unit, pair[k].qparams.reach * scales[k] / _MOST)
    values, dims = b.align(*pair)
    total = b.emit(
        name,
        *(
            b.rescale(value, scale / unit, input_zp=t.qparams.zp, dtype="INT32")
            for value, scale, t in zip(values, scales, pair, strict=True)
        ),
    )
    return QTensor(b.requantize(total, unit, out), dims, out)


def no_float_constant(name: str) -> Callable[..., Reason | None]:
    def check_operands(*operands: Any, **_: Any) -> Reason | None:
        for value in operands:
            if isinstance(value, (float, np.ndarray)) and np.asarray(value).dtype.kind == "f":
                return Reason(
                    f"{name}.operand",
                    "expected quantized or integer operands, got a float constant",
                    "Quantize the module that contains the operator.",
                )
        return None

    return check_operands


def float_pair(b: Builder, name: str, x: Any, y: Any, **attrs: Any) -> QTensor:
    """Emit ``name`` in the operands' common float dtype if it represents all constants exactly, and in FP32 otherwise."""
    dtypes = {value.qparams.dtype for value in (x, y) if isinstance(value, QTensor) and not value.is_integer}
    numbers = [np.asarray(value, np.float64) for value in (x, y) if not isinstance(value, QTensor)]
    fits = len(dtypes) == 1 and all(np.all(n.astype(DTYPES[dtype]).astype(np.float64) == n) for n in numbers for dtype in dtypes)
    out = float_qparams(dtypes.pop() if fits else "FP32")
    values, dims = b.align(b.operand(x, out), b.operand(y, out))
    return QTensor(b.emit(name, *values, **attrs), dims, out)


def _scalar(x: Any, y: Any, alpha: float = 1) -> Any:
    return (x, y), {"alpha": alpha}


PAIRS = [
    Sample(I8(1, 8, 5, 6), I8(1, 8, 5, 6, low=-1.0, high=4.0)), Sample(I8(1, 8, 4, 4), I8(1, 8, 1, 1)), Sample(I8(2, 3), I8(3)),
    Sample(I8(1, 1, 4, 4), I8(1, 6, 1, 1)), Sample(I8(1, 6, 4, 4), W(6, 1, 1)), Sample(I8(3, 4), 0.5), Sample(I8(4), I8(1)),
    Sample(I8(2, 1, 3, 2, 4), I8(1, 5, 3, 1, 4)), Sample(I8(1, 2, 3, 2, 3, 4), I8(3, 4)), Sample(Ints(3, 20), Ints(20)),
    Sample(Ints(2, 3, 4), 7), Sample(Ints(3, 20, low=-128, high=127, dtype="int8"), Ints(20, low=-128, high=127, dtype="int8")),
]  # fmt: skip


def add_of_floats(b: Builder, x: Any, y: Any, *, out: Result, alpha: float = 1) -> Any:
    return float_pair(b, "ADD", x, y) if alpha == 1 else FloatTensor.of(b, x) + FloatTensor.of(b, y) * alpha


@op(
    "aten.add.Tensor",
    quant=EACH_INPUT,
    pointwise=True,
    int32=True,
    also={"aten.add.Scalar": _scalar},
    check=no_float_constant("add"),
    floats=add_of_floats,
    samples=[
        *PAIRS,
        Sample(Bools(2, 3, 5), Bools(5)),
        Sample(I8(2, 8), I8(2, 8), alpha=2),
        Sample(Ints(2, 8), Ints(2, 8), alpha=-3),
        Sample(Ints(2, 8), 5, 2).of("aten.add.Scalar"),
    ],
)
def add(b: Builder, x: Any, y: Any, *, out: Result, alpha: float = 1) -> QTensor:
    """Return x + alpha * y with broadcasting, rounded once. For truth values, return ``x or y``. TOSA ADD."""
    if out.dtype == "BOOL":
        return logical(b, "or", x, y)
    return emit_sum(b, "ADD", x, y, alpha, out.q)


def sub_of_floats(b: Builder, x: Any, y: Any, *, out: Result, alpha: float = 1) -> Any:
    return float_pair(b, "SUB", x, y) if alpha == 1 else FloatTensor.of(b, x) - FloatTensor.of(b, y) * alpha


@op(
    "aten.sub.Tensor",
    quant=EACH_INPUT,
    pointwise=True,
    int32=True,
    also={"aten.sub.Scalar": _scalar, "aten.rsub.Tensor": lambda x, y, alpha=1: ((y, x), {"alpha": alpha})},
    check=no_float_constant("sub"),
    floats=sub_of_floats,
    samples=[*PAIRS, Sample(I8(2, 8), I8(2, 8), alpha=2), Sample(I8(2, 8), I8(2, 8, high=5.0), alpha=0.5).of("aten.rsub.Tensor")],
)
def sub(b: Builder, x: Any, y: Any, *, out: Result, alpha: float = 1) -> QTensor:
    """Return x - alpha * y with broadcasting, rounded once. TOSA SUB."""
    return emit_sum(b, "SUB", x, y, alpha, out.q)


def product(b: Builder, x: QTensor, y: QTensor, scale: float, out: QParams) -> QTensor:
    """Return scale * (x - x_zp) * (y - y_zp), computed exactly in int32 and rounded once."""
    (xv, yv), dims = b.align(x, y)
    x32 = b.rescale(xv, 1.0, input_zp=x.qparams.zp, dtype="INT32")
    y32 = b.rescale(yv, 1.0, input_zp=y.qparams.zp, dtype="INT32")
    return QTensor(b.requantize(b.emit("MUL", x32, y32, shift=0), scale, out), dims, out)


def _multiply_in_parts(b: Builder, n: QTensor, x: QTensor, out: QParams) -> QTensor:
    # n is high * 2**15 + low. The products with both parts are at most 2**29. If the first term is limited, the sum saturates,
    # because the second is at most half of it.
    (number, codes), dims = b.align(n, x)
    high = b.emit("ARITHMETIC_RIGHT_SHIFT", number, b.const_like(number, 15), round=True)
    low = b.emit("SUB", number, b.emit("MUL", high, b.const_like(number, 1 << 15), shift=0))
    wide = b.rescale(codes, 1.0, input_zp=x.qparams.zp, dtype="INT32")
    unit, terms = out.step / 128, []
    for part, factor, most in ((high, 2.0**15, 2.0**29), (low, 1.0, 2.0**28)):
        term, scale = b.emit("MUL", wide, part, shift=0), factor * x.qparams.step / unit
        if 2.0**29 * scale > most:
            term = b.limit(term, int(most / scale))
        terms.append(b.rescale(term, scale, dtype="INT32"))
    return QTensor(b.requantize(b.emit("ADD", *terms), unit, out), dims, out)


def decompose_mul(s: AtenBuilder, x: Any, y: Any) -> Any:
    return fold_factor(s, x, y)


@op(
    "aten.mul.Tensor",
    "aten.mul.Scalar",
    quant=EACH_INPUT,
    pointwise=True,
    check=no_float_constant("mul"),
    floats=lambda b, x, y, *, out: float_pair(b, "MUL", x, y, shift=0),
    decompose=decompose_mul,
    samples=[*PAIRS, Sample(Bools(2, 3, 5), Bools(5))],
)
def mul(b: Builder, x: Any, y: Any, *, out: Result) -> QTensor:
    """Return x * y with broadcasting, exact in int32 and rounded once. For truth values, return ``x and y``. TOSA MUL."""
    if out.dtype == "BOOL":
        return logical(b, "and", x, y)
    if out.q is None:
        return plain_pair(b, x, y, lambda xv, yv: b.emit("MUL", xv, yv, shift=0))
    integers = [is_plain(x), is_plain(y)]
    pair = [as_quantized(b, x), as_quantized(b, y)]
    scale = pair[0].qparams.step * pair[1].qparams.step
    if sum(integers) == 1:
        k = integers.index(True)
        codes = pair[1 - k].qparams.reach / pair[1 - k].qparams.step
        bound = min(out.q.reach / scale + 1, 2.0**29)  # larger integers saturate the result
        pair[k] = b.limit_integers(pair[k], bound, 2.0**30 / codes)
        if pair[k].qparams.reach * codes > 2.0**30:
            return _multiply_in_parts(b, pair[k], pair[1 - k], out.q)
    return product(b, pair[0], pair[1], scale, out.q)


@op(
    "aten.abs.default",
    quant=EACH_INPUT,
    pointwise=True,
    floats=lambda b, x, *, out: QTensor(b.emit("ABS", x.value), x.dims, x.q),
    samples=[Sample(I8(2, 5, 21)), Sample(Ints(3, 40)), Sample(Ints(3, 40, low=-128, high=127, dtype="int8"))],
)
def absolute(b: Builder, x: QTensor, *, out: Result) -> QTensor:
    """Return |x| from a table, or with TOSA ABS for plain integers."""
    return QTensor(b.emit("ABS", b.widen(x.value)), x.dims, None)


@op(
    "aten.neg.default",
    quant=EACH_INPUT,
    pointwise=True,
    floats=lambda b, x, *, out: QTensor(b.emit("NEGATE", x.value, input_zp=0, output_zp=0), x.dims, x.q),
    samples=[Sample(I8(2, 5, 21)), Sample(Ints(3, 40)), Sample(Ints(3, 40, low=-128, high=127, dtype="int8"))],
)
def neg(b: Builder, x: QTensor, *, out: Result) -> QTensor:
    """Return -x from a table, or with TOSA SUB for plain integers."""
    zero = b.const_like(x.value, 0)
    return QTensor(b.emit("SUB", zero, b.widen(x.value)), x.dims, None)


@composite(
    "aten.hypot.default",
    floats=lambda b, x, y, *, out: (FloatTensor.of(b, x) * x + FloatTensor.of(b, y) * y).sqrt(),
    samples=[Sample(I8(2, 5, 6), I8(6)), Sample(I8(3, 40), I8(3, 40, low=0.5))],
    bound16=3,
)
def hypot(s: AtenBuilder, x: Node, y: Node) -> Node:
    """Return sqrt(x * x + y * y)."""
    return s(aten.sqrt.default, s(aten.add.Tensor, s(aten.mul.Tensor, x, x), s(aten.mul.Tensor, y, y)))


@composite(
    "aten.logaddexp.default", samples=[Sample(I8(2, 5, 6), I8(6)), Sample(I8(3, 40, low=-9.0, high=9.0), I8(3, 40))], bound16=3
)
def logaddexp(s: AtenBuilder, x: Node, y: Node) -> Node:
    """Return log(exp(x) + exp(y)) = max(x, y) + log(1 + exp(-|x - y|))."""
    distance = s(aten.abs.default, s(aten.sub.Tensor, x, y))
    return s(aten.add.Tensor, s(aten.maximum.default, x, y), s(aten.softplus.default, s(aten.neg.default, distance)))


def _triangle(s: AtenBuilder, x: Node, diagonal: int, lower: bool) -> Any:
    rows, columns = shape_of(x)[-2:]
    ones = torch.ones(rows, columns, dtype=x.meta["val"].dtype)
    return s(aten.mul.Tensor, x, s.constant(ones.tril(diagonal) if lower else ones.triu(diagonal)))


@composite(
    "aten.tril.default",
    decomposes_integers=True,
    samples=[Sample(I8(2, 5, 5)), Sample(I8(4, 6), 1), Sample(Ints(4, 6)), Sample(Bools(4, 6))],
)
def tril(s: AtenBuilder, x: Node, diagonal: int = 0) -> Any:
    """Return x with zeros above the diagonal, computed as a product with a constant."""
    return _triangle(s, x, diagonal, True)


@composite(
    "aten.triu.default",
    decomposes_integers=True,
    samples=[Sample(I8(2, 5, 5)), Sample(I8(4, 6), -1), Sample(Ints(4, 6)), Sample(Bools(4, 6))],
)
def triu(s: AtenBuilder, x: Node, diagonal: int = 0) -> Any:
    """Return x with zeros below the diagonal, computed as a product with a constant."""
    return _triangle(s, x, diagonal, False)
