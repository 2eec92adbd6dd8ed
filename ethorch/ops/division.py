"""Division: quotients, remainders and powers of two tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.builder.builder import Builder
from ethorch.builder.floats import FloatTensor, quotient
from ethorch.builder.qparams import QParams, QTensor, Result
from ethorch.fx.aten_builder import AtenBuilder
from ethorch.ops.arithmetic import as_quantized, no_float_constant, product
from ethorch.ops.quant_rules import EACH_INPUT
from ethorch.ops.samples import I8, Sample, W
from ethorch.ops.spec import composite, op

aten = torch.ops.aten

#: int8 divisors whose magnitudes differ by more than this have a reciprocal of 22 bits in place of 15.
_WIDE_DIVISORS = 8


_POSITIVE = I8(1, 8, 5, 6, low=0.4, high=3.0)


@op(
    "aten.div.Tensor",
    "aten.true_divide.Tensor",
    quant=EACH_INPUT,
    pointwise=True,
    bound=2,
    bound16=80,
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
    """out = x / y with broadcasting: int8 or int16, x times a reciprocal from a table, rounded once more by the RESCALE.

    - int8, |y| up to 8 times its smallest code that is not 0: a reciprocal of 15 bits.
    - int8, |y| beyond that: 15 bits are too coarse for the largest divisor, so the reciprocal has 22. x / 0 is the end of the
      result's range, and 0 / 0 is 0.
    - int16: a reciprocal of 15 bits, interpolated between the table's entries, coarsely where 1 / y is steep. By 0 it divides as
      by the least divisor of the table.

    Plain integers as divisors are refused. TOSA 1.0 TABLE, MUL.
    """
    x, y = as_quantized(b, x), as_quantized(b, y)
    if y.qparams.dtype == "INT32":
        text = "its divisor holds plain integers; allowed are quantized tensors and constants"
        raise b.refuse("div.integer_divisor", text, "Convert the divisor to float in the model, and quantize.")
    real = y.qparams.table_inputs
    least = y.qparams.step * (1 if y.qparams.dtype == "INT8" else 128)
    with np.errstate(divide="ignore"):
        reciprocals = (np.float32(1.0) / real).astype(np.float32)
    if x.qparams.dtype == y.qparams.dtype == "INT8" and np.abs(real).max() > _WIDE_DIVISORS * least:
        # 9 bits of x times 22 fit int32. The largest reciprocal, that of 0, takes the least x beyond the range of the result.
        unit = max(1.0 / least, 256.0 * out.qparams.step / x.qparams.step) / 2**22
        fine = b.integer_table(y, np.clip(np.round(reciprocals / unit), -(2**22), 2**22))
        (xv, yv), dims = b.aligned(x, QTensor(fine.value, fine.dims, y.q))
        acc = b.emit("MUL", b.rescale(xv, 1.0, input_zp=x.qparams.zp, dtype="INT32"), yv, shift=0)
        return QTensor(b.requantize(acc, x.qparams.step * unit, out.qparams), dims, out.qparams)
    inverse = QParams((1.0 / least / 32767,), (0,), -32767, 32767, "INT16")
    reciprocal = b.table(y, reciprocals, inverse)
    return product(b, x, reciprocal, x.qparams.step * inverse.step, out.qparams)


#: Bounds of what rounds a quotient to an integer: one code of the quotient may decide between two integers, which is the step of
#: the result times as many codes as an integer has.
_ONE_INTEGER, _ONE_INTEGER_16 = 80, 20_000


@composite(
    "aten.div.Tensor_mode",
    bound=_ONE_INTEGER,
    bound16=_ONE_INTEGER_16,
    also={"aten.floor_divide.default": lambda x, y: ((x, y), {"rounding_mode": "floor"})},
    floats=lambda b, x, y, *, out, rounding_mode=None: quotient(FloatTensor.of(b, x), FloatTensor.of(b, y), rounding_mode),
    samples=[
        *(Sample(I8(2, 5, 6), I8(6, low=0.5, high=1.5), rounding_mode=mode) for mode in ("floor", "trunc", None)),
        Sample(I8(3, 40), 0.5).of("aten.floor_divide.default"),
    ],
)
def div_mode(s: AtenBuilder, x: Node, y: Any, *, rounding_mode: str | None = None) -> Node:
    """out = x / y, rounded down or towards 0: the quotient, then a table. The bounds: one integer (see ``_ONE_INTEGER``)."""
    divided = s(aten.div.Tensor, x, y)
    return divided if rounding_mode is None else s(getattr(aten, rounding_mode).default, divided)


_QUOTIENTS = [Sample(I8(2, 5, 6), I8(6, low=0.5, high=1.5))]


def _remainder(s: AtenBuilder, x: Node, y: Node, rounding: Any) -> Node:
    """x - y * rounding(x / y)."""
    return s(aten.sub.Tensor, x, s(aten.mul.Tensor, y, s(rounding, s(aten.div.Tensor, x, y))))


def remainder_of_floats(b: Builder, x: Any, y: Any, *, out: Result) -> FloatTensor:
    """out = x - y * floor(x / y) of floats."""
    dividend, divisor = FloatTensor.of(b, x), FloatTensor.of(b, y)
    return dividend - quotient(dividend, divisor, "floor") * divisor


@composite("aten.remainder.Tensor", floats=remainder_of_floats, samples=_QUOTIENTS, bound=_ONE_INTEGER, bound16=_ONE_INTEGER_16)
def remainder(s: AtenBuilder, x: Node, y: Node) -> Node:
    """out = x - y * floor(x / y). The bounds: one integer."""
    return _remainder(s, x, y, aten.floor.default)


def fmod_of_floats(b: Builder, x: Any, y: Any, *, out: Result) -> FloatTensor:
    """out = x - y * trunc(x / y) of floats."""
    dividend, divisor = FloatTensor.of(b, x), FloatTensor.of(b, y)
    return dividend - quotient(dividend, divisor, "trunc") * divisor


@composite("aten.fmod.Tensor", floats=fmod_of_floats, samples=_QUOTIENTS, bound=_ONE_INTEGER, bound16=_ONE_INTEGER_16)
def fmod(s: AtenBuilder, x: Node, y: Node) -> Node:
    """out = x - y * trunc(x / y). The bounds: one integer."""
    return _remainder(s, x, y, aten.trunc.default)


@composite(
    "aten.pow.Tensor_Tensor",
    floats=lambda b, x, y, *, out: FloatTensor.of(b, x) ** y,
    samples=[Sample(I8(2, 5, 6, low=0.3, high=2.0), I8(6, low=-1.0, high=2.0))],
    bound=4,
    bound16=400,
)
def power(s: AtenBuilder, x: Node, y: Node) -> Node:
    """out = x ** y = exp(y * log(x)). A base that is not positive counts as the least positive code. The bound: three roundings."""
    return s(aten.exp.default, s(aten.mul.Tensor, y, s(aten.log.default, x)))
