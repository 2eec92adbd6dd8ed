"""Quotient, remainder and power of a pair of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import Node

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.floats import FloatTensor, quotient
from ethorch.lower.builder.qparams import QParams, QTensor, Result, dtype_range
from ethorch.lower.builder.reductions import int32_product
from ethorch.lower.fx.aten_builder import AtenBuilder
from ethorch.lower.fx.node import is_float
from ethorch.lower.ops.arithmetic import as_quantized, is_plain, no_float_constant, product
from ethorch.lower.ops.bitwise import check_integers
from ethorch.lower.ops.quant_rules import EACH_INPUT, NOT_QUANTIZED
from ethorch.lower.ops.rounding import integer_remainder
from ethorch.lower.ops.samples import I8, Ints, Sample, W
from ethorch.lower.ops.spec import composite, op
from ethorch.support.errors import Unsupported
from ethorch.tosa.ir import Value

aten = torch.ops.aten

#: Maximum ratio of the magnitudes of int8 divisors for which a reciprocal of 15 bits suffices.
_WIDE_DIVISORS = 8
_REST = 0.3  # maximum error of a quotient, in steps, from inexact reciprocals; below 0.5, so that exact quotients remain exact
_MOST_WIDE_DIVIDEND = 65535  # largest integer dividend whose product with a power of 2 up to 2**14 fits int32
_MOST_DIVIDEND = 255  # largest integer dividend whose product with a reciprocal of 22 bits fits int32


_POSITIVE = I8(1, 8, 5, 6, low=0.4, high=3.0)


@op(
    "aten.div.Tensor",
    "aten.true_divide.Tensor",
    quant=EACH_INPUT,
    pointwise=True,
    bound=2,
    bound16=2,
    check=no_float_constant("div"),
    floats=lambda b, x, y, *, out: FloatTensor.of(b, x) / FloatTensor.of(b, y),
    samples=[
        Sample(I8(1, 8, 5, 6), _POSITIVE),
        Sample(I8(2, 5, 6), I8(6, low=-3.0, high=-0.7)),
        Sample(I8(3, 40), 2.5),
        Sample(I8(1, 6, 4, 4), W(6, 1, 1, low=0.5)),
    ],
)
def div(b: Builder, x: Any, y: Any, *, out: Result) -> QTensor:
    """Return x / y with broadcasting, for int8 or int16. x is multiplied by a rounded reciprocal from a table.

    - For int8, x is multiplied by digits of the reciprocal (see ``Tuning.most_reciprocal_tables``), or by one integer. x / 0
      saturates, and 0 / 0 is 0.
    - If x or y is int16, y is factored into a power of 2 and a number between 1 and 2, and x is divided by both. A divisor of 0
      is replaced with the scale of y.

    An integer divisor is refused. TOSA TABLE, MUL, and for int16 also CLZ, LOGICAL_LEFT_SHIFT.
    """
    is_integer = is_plain(x)
    x, y = as_quantized(b, x), as_quantized(b, y)
    if y.qparams.dtype == "INT32":
        raise b.refuse(
            "div.integer_divisor",
            "expected a quantized tensor or a constant as divisor, got an integer tensor",
            "Convert the divisor to float in the model, and quantize the operator's module.",
        )
    is_wide = is_integer and x.qparams.reach > _MOST_DIVIDEND
    if is_wide:
        bound = out.qparams.reach * y.qparams.reach + 1  # larger integers saturate the result
        if (largest := min(bound, x.qparams.reach)) > _MOST_WIDE_DIVIDEND:
            raise b.refuse(
                "div.integer_dividend",
                f"integers up to {largest:,.0f} affect the quotient; expected at most {_MOST_WIDE_DIVIDEND:,}",
                "Convert the dividend to float in the model, and quantize the operator's module.",
            )
        x = b.limit_integers(x, bound)
    if is_wide or "INT16" in (x.qparams.dtype, y.qparams.dtype):
        return _divide_in_two_steps(b, x, y, out.qparams)
    real, least = y.qparams.table_inputs, y.qparams.step
    with np.errstate(divide="ignore"):
        reciprocals = (np.float32(1.0) / real).astype(np.float32)
    if y.value.data is None:
        most = (out.qparams.reach + out.qparams.step) / x.qparams.step  # its product with the smallest nonzero x saturates
        digits = _digits_of(np.clip(reciprocals, -most, most), _REST * out.qparams.step / x.qparams.reach)
        is_broadcast = math.prod(y.shape) < math.prod(out.shape)
        if len(digits) + is_broadcast <= b.tuning.most_reciprocal_tables:
            return _multiply_by_digits(b, x, y, digits, out.qparams)
    if np.abs(real).max() > _WIDE_DIVISORS * least:
        # 9 + 22 bits fit int32. The smallest nonzero x / 0 exceeds the range of the result.
        unit = max(1.0 / least, 256.0 * out.qparams.step / x.qparams.step) / 2**22
        fine = b.integer_table(y, np.clip(np.round(reciprocals / unit), -(2**22), 2**22))
        (xv, yv), dims = b.align(x, QTensor(fine.value, fine.dims, y.q))
        acc = b.emit("MUL", b.rescale(xv, 1.0, input_zp=x.qparams.zp, dtype="INT32"), yv, shift=0)
        return QTensor(b.requantize(acc, x.qparams.step * unit, out.qparams), dims, out.qparams)
    inverse = QParams((1.0 / least / 32767,), (0,), -32767, 32767, "INT16")
    return product(b, x, b.table(y, reciprocals, inverse), x.qparams.step * inverse.step, out.qparams)


def _digits_of(factors: npt.NDArray[Any], tolerance: float) -> list[tuple[QParams, npt.NDArray[Any]]]:
    # Digits in base 254 with their scales, first the most significant
    rest, digits = factors.astype(np.float64), list[tuple[QParams, npt.NDArray[Any]]]()
    while not digits or np.abs(rest).max() > tolerance:
        scale = QParams((np.abs(rest).max() / 127,), (0,), -127, 127, "INT8")
        digits.append((scale, rest))
        rest = rest - scale.step * scale.quantize(rest)
    return digits


def _multiply_by_digits(
    b: Builder, x: QTensor, y: QTensor, digits: Sequence[tuple[QParams, npt.NDArray[Any]]], out: QParams
) -> QTensor:
    # The range of a term is twice that of the result. If a term is clamped, the sum saturates, because the other terms are at most
    # half of it.
    fine = QParams((2 * (out.reach + out.step) / 32767,), (0,), *dtype_range("INT16"), "INT16")
    terms = [product(b, x, b.table(y, real, scale), x.qparams.step * scale.step, fine) for scale, real in digits]
    total = terms.pop()
    while terms:
        codes = [b.rescale(term.value, 1.0, dtype="INT32") for term in (total, terms.pop())]
        q = fine if terms else out
        total = QTensor(b.requantize(b.emit("ADD", *codes), fine.step, q), total.dims, q)
    return b.to_qparams(total, out)


def _divide_in_two_steps(b: Builder, x: QTensor, y: QTensor, out: QParams) -> QTensor:
    # The result is x * 2**e * (1 / (y * 2**e)), where |y * 2**e| is in 2**14..2**15.
    # A single reciprocal is clipped for small divisors or coarse for large divisors, which costs 20 dB if a tensor has both.
    (xv, yv), dims = b.align(x, y)
    power, inverse = _powers_and_inverses(b, yv, y.qparams.zp)
    # |x * 2**e| is at most twice the largest quotient.
    half = 2 * max(out.qmax - out.zp, out.zp - out.qmin) * out.step / 32767
    dividend = b.rescale(xv, 1.0, input_zp=x.qparams.zp, dtype="INT32")
    scaled = b.rescale(_multiply(b, dividend, power), x.qparams.step / y.qparams.step / 2.0**14 / half, dtype="INT16")
    return QTensor(b.requantize(int32_product(b, scaled, inverse), half / 32767, out), dims, out)


def _powers_and_inverses(b: Builder, y: Value, zp: int) -> tuple[Value, Value]:
    # INT16 2**e and 32767 * 2**14 / (d * 2**e), where d is y - zp, or 1 if y = zp.
    if y.data is not None:
        codes = y.data.astype(np.int64) - zp
        codes[codes == 0] = 1
        powers = np.exp2(np.clip(15 - np.frexp(np.abs(codes))[1], 0, 14))
        inverses = np.rint(32767 * 2.0**14 / (codes * powers))
        return b.const(powers.astype(np.int16), name="power"), b.const(inverses.astype(np.int16), name="inverse")
    plain = partial(b.const_like, y)
    divisor = b.rescale(y, 1.0, input_zp=zp, dtype="INT32")
    # CLZ of 2**14..2**15 - 1 is 17. 0 (CLZ 32) uses the power for 1, and -2**15 uses the power for 2**14.
    zeros = b.emit("CLZ", b.emit("ABS", divisor))
    exponent = b.emit("SUB", b.emit("MINIMUM", b.emit("MAXIMUM", zeros, plain(17)), plain(31)), plain(17))
    power = b.rescale(b.emit("LOGICAL_LEFT_SHIFT", plain(1), exponent), 1.0, dtype="INT16")
    mantissa = QTensor(
        b.rescale(_multiply(b, divisor, power), 1.0, dtype="INT16"), (), QParams((2.0**-14,), (0,), *dtype_range("INT16"), "INT16")
    )
    real = mantissa.qparams.table_inputs.astype(np.float64)
    with np.errstate(divide="ignore"):  # only 0 is looked up below 1
        inverses = np.where(np.abs(real) < 1, np.minimum(1 + 2 * real, 1.0), 1 / real)
    return power, b.table(mantissa, inverses, QParams((1 / 32767,), (0,), -32767, 32767, "INT16")).value


def _multiply(b: Builder, codes: Value, factor: Value) -> Value:
    return b.emit("MUL", codes, b.rescale(factor, 1.0, dtype="INT32"), shift=0)


#: Error bounds of operators that round a quotient: the number of result steps in one integer.
_ONE_INTEGER, _ONE_INTEGER_16 = 128, 20_000
_INTEGER_QUOTIENTS = [
    Sample(Ints(3, 40), Ints(3, 40, low=1, high=30)),
    Sample(Ints(3, 40), Ints(40, low=-30, high=-1)),
    Sample(Ints(3, 40, low=-128, high=127, dtype="int8"), Ints(40, low=1, high=127, dtype="int8")),
]
_QUOTIENTS = [Sample(I8(2, 5, 6), I8(6, low=0.5, high=1.5)), *_INTEGER_QUOTIENTS]


def decompose_div_mode(s: AtenBuilder, x: Node, y: Any, *, rounding_mode: str | None = None) -> Node:
    divided = s(aten.div.Tensor, x, y)
    return divided if rounding_mode is None else s(getattr(aten, rounding_mode).default, divided)


def _integer_quotient(b: Builder, x: Any, y: Any, is_floor: bool) -> QTensor:
    row = b.limits.get("INTDIV")
    reason = row.refuse("INTDIV", "INT32", {}, b.target) if row and not row.present else None
    if reason:
        raise Unsupported(reason)
    (xv, yv), dims = b.align(b.plain_tensor(x), b.plain_tensor(y))
    xv, yv = b.widen(xv), b.widen(yv)
    if yv.data is None:
        sign = b.emit("BITWISE_OR", _sign_bits(b, yv), b.const_like(yv, 1))
        xv, yv = b.emit("MUL", xv, sign, shift=0), b.emit("MUL", yv, sign, shift=0)
    elif np.any(yv.data < 0):
        xv = b.emit("MUL", xv, b.const(np.where(yv.data < 0, -1, 1).astype(np.int32)), shift=0)
        yv = b.const(np.abs(yv.data))
    quotients = b.emit("INTDIV", xv, yv)
    if is_floor:
        rest = b.emit("SUB", xv, b.emit("MUL", quotients, yv, shift=0))
        quotients = b.emit("ADD", quotients, _sign_bits(b, rest))
    return QTensor(quotients, dims, None)


def _sign_bits(b: Builder, x: Value) -> Value:
    return b.emit("ARITHMETIC_RIGHT_SHIFT", x, b.const_like(x, 31), round=False)


@op(
    "aten.div.Tensor_mode",
    quant=NOT_QUANTIZED,
    check=lambda x, y, rounding_mode=None: check_integers(x, y),
    decompose=decompose_div_mode,
    also={"aten.floor_divide.default": lambda x, y: ((x, y), {"rounding_mode": "floor"})},
    floats=lambda b, x, y, *, out, rounding_mode=None: quotient(FloatTensor.of(b, x), FloatTensor.of(b, y), rounding_mode),
    samples=[
        *(Sample(I8(2, 5, 6), I8(6, low=0.5, high=1.5), rounding_mode=mode) for mode in ("floor", "trunc", None)),
        Sample(I8(3, 40), 0.5).of("aten.floor_divide.default"),
        *(Sample(*sample.args, rounding_mode=mode) for sample in _INTEGER_QUOTIENTS for mode in ("floor", "trunc")),
    ],
    bound=_ONE_INTEGER,
    bound16=_ONE_INTEGER_16,
)
def div_mode(b: Builder, x: Any, y: Any, *, out: Result, rounding_mode: str | None = None) -> QTensor:
    """Return x / y, rounded down or towards 0 unless ``rounding_mode`` is None. Plain integers use TOSA INTDIV.

    The error bound permits quotients that differ from PyTorch's by 1.
    """
    return _integer_quotient(b, x, y, rounding_mode == "floor")


def _remainder(s: AtenBuilder, x: Node, y: Any, rounding_mode: str) -> Node | None:
    if is_float(x) or (isinstance(y, Node) and is_float(y)):
        rounded = s(getattr(aten, rounding_mode).default, s(aten.div.Tensor, x, y))
        return s(aten.sub.Tensor, x, s(aten.mul.Tensor, y, rounded))
    return integer_remainder(s, x, y, rounding_mode)


def _float_remainder(b: Builder, x: Any, y: Any, rounding_mode: str) -> FloatTensor:
    dividend, divisor = FloatTensor.of(b, x), FloatTensor.of(b, y)
    return dividend - quotient(dividend, divisor, rounding_mode) * divisor


@composite(
    "aten.remainder.Tensor",
    decomposes_integers=True,
    floats=lambda b, x, y, *, out: _float_remainder(b, x, y, "floor"),
    samples=_QUOTIENTS,
    bound=_ONE_INTEGER,
    bound16=_ONE_INTEGER_16,
)
def remainder(s: AtenBuilder, x: Node, y: Node) -> Node | None:
    """Return x - y * floor(x / y).

    For integers, the result has the sign of y, also on the CPU.
    """
    return _remainder(s, x, y, "floor")


@composite(
    "aten.fmod.Tensor",
    decomposes_integers=True,
    floats=lambda b, x, y, *, out: _float_remainder(b, x, y, "trunc"),
    samples=_QUOTIENTS,
    bound=_ONE_INTEGER,
    bound16=_ONE_INTEGER_16,
)
def fmod(s: AtenBuilder, x: Node, y: Node) -> Node | None:
    """Return x - y * trunc(x / y)."""
    return _remainder(s, x, y, "trunc")


@composite(
    "aten.pow.Tensor_Tensor",
    floats=lambda b, x, y, *, out: FloatTensor.of(b, x) ** y,
    samples=[Sample(I8(2, 5, 6, low=0.3, high=2.0), I8(6, low=-1.0, high=2.0))],
    bound=4,
    bound16=400,
)
def power(s: AtenBuilder, x: Node, y: Node) -> Node:
    """Return x ** y = exp(y * log(x)). If x is 0 or negative, its logarithm saturates.

    The error bound allows for three rounding steps: log, product and exp.
    """
    return s(aten.exp.default, s(aten.mul.Tensor, y, s(aten.log.default, x)))
