"""Elementwise arithmetic of two tensors. With one quantized tensor and constants they join a table.

Plain integers are added and multiplied as int32; where they meet a quantized tensor they count as quantized with scale 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ethorch.errors import Reason
from ethorch.layout import Dims
from ethorch.ops.logic import as_tensor, in_codes_of, widened
from ethorch.ops.quant_rules import EACH_INPUT
from ethorch.ops.spec import I8, Ints, OpSpec, Sample, W, composite, op
from ethorch.qparams import QParams, QTensor, dtype_range, real
from ethorch.real import Real, quotient
from ethorch.sketch import Sketch
from ethorch.tosa.builder import Builder
from ethorch.tosa.ir import DTYPES, Value

aten = torch.ops.aten

_INTEGERS = QParams((1.0,), (0,), *dtype_range("INT32"), "INT32")
#: log2 of how many units the larger scale of a sum is, by its widest operand: the NPU's own left shifts, and for plain integers
#: what leaves them 20 bits. Vela 5.2 merges no other scales into the sum, or, two whole 16-bit numbers, wrongly: it emits the
#: smaller and the NPU takes its own shift for the larger.
_HEADROOM = {"INT8": 19, "INT16": 14, "INT32": 10}


def _quantized(b: Builder, x: Any) -> QTensor:
    """A quantized tensor as it is; plain integers as quantized with scale 1."""
    if isinstance(x, QTensor) and x.q is not None:
        return x
    x = as_tensor(b, x)
    return QTensor(widened(b, x.value), x.dims, _INTEGERS)


def _plain(b: Builder, x: Any, y: Any, compute: Callable[[Value, Value], Value]) -> QTensor:
    """``compute`` on two tensors of plain integers in int32; a narrower result keeps its low bits, as PyTorch's."""
    (xv, yv), dims = b.aligned(as_tensor(b, x), as_tensor(b, y))
    return QTensor(compute(widened(b, xv), widened(b, yv)), dims, None)


def _narrowed(b: Builder, value: Value, dims: Dims) -> QTensor:
    dtype = b.result_dtype or "INT32"
    return QTensor(value if dtype == "INT32" else b.rescale(value, 1.0, dtype=dtype), dims, None)


def summed(b: Builder, name: str, x: Any, y: Any, alpha: float, out: QParams | None) -> QTensor:
    """ADD or SUB in int32, both operands rescaled to a common unit fine enough that only the last rounding counts.

    Where the scales are equal that unit is theirs, and the sum exact. |x - zp| < 2**bits, so the sum stays below 2**31.
    """
    name = {"ADD": "SUB", "SUB": "ADD"}[name] if alpha < 0 else name
    if out is None:

        def plain(xv: Value, yv: Value) -> Value:
            factor = b.const(np.full((1,) * yv.rank, abs(alpha), np.int32))
            return b.emit(name, xv, yv if abs(alpha) == 1 else b.emit("MUL", yv, factor, shift=0))

        return _plain(b, x, y, plain)
    x, y = _quantized(b, x), _quantized(b, y)
    scales = (x.qparams.step, y.qparams.step * abs(alpha))
    headroom = min(_HEADROOM[x.qparams.dtype], _HEADROOM[y.qparams.dtype])
    unit = max(scales) / (1 if scales[0] == scales[1] else 1 << headroom)
    (xv, yv), dims = b.aligned(x, y)
    wide = [
        b.rescale(value, scale / unit, input_zp=q.zp, dtype="INT32")
        for value, scale, q in ((xv, scales[0], x.qparams), (yv, scales[1], y.qparams))
    ]
    return QTensor(b.requantize(b.emit(name, *wide), unit, out), dims, out)


def _scalar(x: Any, y: Any, alpha: float = 1) -> Any:
    """Arguments of the spellings for a number, where alpha is no keyword."""
    return (x, y), {"alpha": alpha}


_PAIRS = [
    Sample(I8(1, 8, 5, 6), I8(1, 8, 5, 6, low=-1.0, high=4.0)), Sample(I8(1, 8, 4, 4), I8(1, 8, 1, 1)), Sample(I8(2, 3), I8(3)),
    Sample(I8(1, 1, 4, 4), I8(1, 6, 1, 1)), Sample(I8(1, 6, 4, 4), W(6, 1, 1)), Sample(I8(3, 4), 0.5), Sample(I8(4), I8(1)),
    Sample(I8(2, 1, 3, 2, 4), I8(1, 5, 3, 1, 4)), Sample(I8(1, 2, 3, 2, 3, 4), I8(3, 4)), Sample(Ints(3, 20), Ints(20)),
    Sample(Ints(2, 3, 4), 7), Sample(Ints(3, 20, low=-128, high=127, dtype="int8"), Ints(20, low=-128, high=127, dtype="int8")),
]  # fmt: skip


@op(
    "aten.add.Tensor", quant=EACH_INPUT, pointwise=True, also={"aten.add.Scalar": _scalar},
    samples=[*_PAIRS, Sample(I8(2, 8), I8(2, 8), alpha=2), Sample(Ints(2, 8), Ints(2, 8), alpha=-3),
             Sample(Ints(2, 8), 5, 2).of("aten.add.Scalar")],
)  # fmt: skip
def add(b: Builder, x: Any, y: Any, *, out: QParams | None, alpha: float = 1) -> QTensor:
    """out = x + alpha * y with broadcasting, int8, int16 or plain integers; rounded once by the RESCALE. TOSA 1.0 ADD."""
    return summed(b, "ADD", x, y, alpha, out)


@op(
    "aten.sub.Tensor", quant=EACH_INPUT, pointwise=True,
    also={"aten.sub.Scalar": _scalar, "aten.rsub.Tensor": lambda x, y, alpha=1: ((y, x), {"alpha": alpha})},
    samples=[*_PAIRS, Sample(I8(2, 8), I8(2, 8), alpha=2), Sample(I8(2, 8), I8(2, 8, high=5.0), alpha=0.5).of("aten.rsub.Tensor")],
)  # fmt: skip
def sub(b: Builder, x: Any, y: Any, *, out: QParams | None, alpha: float = 1) -> QTensor:
    """out = x - alpha * y with broadcasting, int8, int16 or plain integers; rounded once by the RESCALE. TOSA 1.0 SUB."""
    return summed(b, "SUB", x, y, alpha, out)


def _product(b: Builder, x: QTensor, y: QTensor, scale: float, out: QParams) -> QTensor:
    """out = scale * (x - zp) * (y - zp), exact in int32, rounded once."""
    (xv, yv), dims = b.aligned(x, y)
    x32 = b.rescale(xv, 1.0, input_zp=x.qparams.zp, dtype="INT32")
    y32 = b.rescale(yv, 1.0, input_zp=y.qparams.zp, dtype="INT32")
    return QTensor(b.requantize(b.emit("MUL", x32, y32, shift=0), scale, out), dims, out)


@op("aten.mul.Tensor", "aten.mul.Scalar", quant=EACH_INPUT, pointwise=True, samples=_PAIRS)
def mul(b: Builder, x: Any, y: Any, *, out: QParams | None) -> QTensor:
    """out = x * y with broadcasting, int8, int16 or plain integers; exact in int32, rounded once by the RESCALE. TOSA 1.0 MUL."""
    if out is None:
        return _plain(b, x, y, lambda xv, yv: b.emit("MUL", xv, yv, shift=0))
    x, y = _quantized(b, x), _quantized(b, y)
    return _product(b, x, y, x.qparams.step * y.qparams.step, out)


_POSITIVE = I8(1, 8, 5, 6, low=0.4, high=3.0)


@op(
    "aten.div.Tensor", "aten.true_divide.Tensor", quant=EACH_INPUT, pointwise=True, bound=2, bound16=80,
    samples=[
        Sample(I8(1, 8, 5, 6), _POSITIVE), Sample(I8(2, 5, 6), I8(6, low=-3.0, high=-0.7)), Sample(I8(3, 40), 2.5),
        Sample(I8(1, 6, 4, 4), W(6, 1, 1, low=0.5)),
    ],
)  # fmt: skip
def div(b: Builder, x: Any, y: Any, *, out: QParams) -> QTensor:
    """out = x / y with broadcasting, int8 or int16: x times a table of 1 / y in 16 bits, rounded once more by the RESCALE.

    The table's step is 1/32767 of the reciprocal of y's smallest code that is not 0; dividing by 0 gives the largest
    quotient. Where int8 divisors differ by more than 8 times, that is too coarse for the largest: then it has 22 bits. An
    int16 divisor's reciprocal is interpolated, coarsely where it is steep. TOSA 1.0 TABLE, MUL.
    """
    x, y = _quantized(b, x), _quantized(b, y)
    if y.qparams.dtype == "INT32":
        raise b.refuse("div.integer_divisor", "its divisor holds plain integers; allowed are quantized tensors and constants")
    real = y.qparams.table_inputs
    least = y.qparams.step * (1 if y.qparams.dtype == "INT8" else 128)
    with np.errstate(divide="ignore"):
        reciprocals = (np.float32(1.0) / real).astype(np.float32)
    if x.qparams.dtype == y.qparams.dtype == "INT8" and np.abs(real).max() > 8 * least:
        unit = 1.0 / least / 2**22                                     # 9 bits of x times 22 fit int32
        fine = b.integer_table(y, np.clip(np.round(reciprocals / unit), -(2**22), 2**22))
        (xv, yv), dims = b.aligned(x, QTensor(fine.value, fine.dims, y.q))
        product = b.emit("MUL", b.rescale(xv, 1.0, input_zp=x.qparams.zp, dtype="INT32"), yv, shift=0)
        return QTensor(b.requantize(product, x.qparams.step * unit, out), dims, out)
    inverse = QParams((1.0 / least / 32767,), (0,), -32767, 32767, "INT16")
    reciprocal = b.table(y, reciprocals, inverse)
    return _product(b, x, reciprocal, x.qparams.step * inverse.step, out)


def extreme_of(b: Builder, name: str, x: Any, y: Any, out: QParams | None) -> QTensor:
    """MAXIMUM or MINIMUM in the codes of ``out``, to which both operands are brought first: that never reverses an order."""
    if out is None:
        result = _plain(b, x, y, lambda xv, yv: b.emit(name, xv, yv))
        return _narrowed(b, result.value, result.dims)
    x, y = (b.requantized(_quantized(b, value), out) for value in (x, y))
    (xv, yv), dims = b.aligned(x, y)
    wide = [b.rescale(value, 1.0, input_zp=out.zp, dtype="INT32") for value in (xv, yv)]
    return QTensor(b.clamp(b.rescale(b.emit(name, *wide), 1.0, output_zp=out.zp, dtype=out.dtype), out.qmin, out.qmax), dims, out)


@op(
    "aten.maximum.default", "aten.max.other", "aten.fmax.default", quant=EACH_INPUT, pointwise=True,
    samples=[sample for sample in _PAIRS if not isinstance(sample.args[1], (int, float))],
)  # fmt: skip
def maximum(b: Builder, x: Any, y: Any, *, out: QParams | None) -> QTensor:
    """out = max(x, y) with broadcasting, int8, int16 or plain integers. TOSA 1.0 MAXIMUM."""
    return extreme_of(b, "MAXIMUM", x, y, out)


@op(
    "aten.minimum.default", "aten.min.other", "aten.fmin.default", quant=EACH_INPUT, pointwise=True,
    samples=[sample for sample in _PAIRS[:5] if not isinstance(sample.args[1], (int, float))],
)  # fmt: skip
def minimum(b: Builder, x: Any, y: Any, *, out: QParams | None) -> QTensor:
    """out = min(x, y) with broadcasting, int8, int16 or plain integers. TOSA 1.0 MINIMUM."""
    return extreme_of(b, "MINIMUM", x, y, out)


@op(
    "aten.clamp.Tensor", "aten.clip.Tensor", quant=EACH_INPUT, pointwise=True,
    also={
        "aten.clamp_min.Tensor": lambda x, low: ((x, low, None), {}),
        "aten.clamp_max.Tensor": lambda x, high: ((x, None, high), {}),
    },
    samples=[Sample(I8(2, 5, 6), I8(6, low=-2.0, high=-1.0), I8(5, 1, low=1.0, high=2.0)), Sample(I8(3, 40), W(1), None)],
)  # fmt: skip
def clamp_tensor(b: Builder, x: Any, low: Any = None, high: Any = None, *, out: QParams | None) -> QTensor:
    """out = min(max(x, low), high) with broadcasting; either bound may be missing. TOSA 1.0 MAXIMUM, MINIMUM."""
    y = x if low is None else extreme_of(b, "MAXIMUM", x, low, out)
    y = y if high is None else extreme_of(b, "MINIMUM", y, high, out)
    return y if out is None else b.requantized(y, out)


@op("aten.abs.default", quant=EACH_INPUT, pointwise=True, samples=[Sample(I8(2, 5, 21)), Sample(Ints(3, 40))])
def absolute(b: Builder, x: QTensor, *, out: QParams | None) -> QTensor:
    """out = |x|: a table, or of plain integers TOSA 1.0 ABS."""
    return _narrowed(b, b.emit("ABS", widened(b, x.value)), x.dims)


@op("aten.neg.default", quant=EACH_INPUT, pointwise=True, samples=[Sample(I8(2, 5, 21)), Sample(Ints(3, 40))])
def neg(b: Builder, x: QTensor, *, out: QParams | None) -> QTensor:
    """out = -x: a table, or of plain integers TOSA 1.0 SUB from 0."""
    zero = b.const(np.zeros((1,) * x.value.rank, np.int32))
    return _narrowed(b, b.emit("SUB", zero, widened(b, x.value)), x.dims)


# --- made of others: what is inside is calibrated ---------------------------------------------------------------------------

#: A quotient one code from an integer may be rounded to either side of it, which is worth a whole integer afterwards.
_ONE_INTEGER, _ONE_INTEGER_16 = 80, 20_000


@composite(
    "aten.div.Tensor_mode", bound=_ONE_INTEGER, bound16=_ONE_INTEGER_16,
    also={"aten.floor_divide.default": lambda x, y: ((x, y), {"rounding_mode": "floor"})},
    samples=[
        *(Sample(I8(2, 5, 6), I8(6, low=0.5, high=1.5), rounding_mode=mode) for mode in ("floor", "trunc", None)),
        Sample(I8(3, 40), 0.5).of("aten.floor_divide.default"),
    ],
)  # fmt: skip
def div_mode(s: Sketch, x: Node, y: Any, *, rounding_mode: str | None = None) -> Node:
    """out = x / y, rounded down or towards 0: the quotient, then a table."""
    quotient = s(aten.div.Tensor, x, y)
    return quotient if rounding_mode is None else s(getattr(aten, rounding_mode).default, quotient)


_QUOTIENTS = [Sample(I8(2, 5, 6), I8(6, low=0.5, high=1.5))]


def _remainder(s: Sketch, x: Node, y: Node, rounding: Any) -> Node:
    return s(aten.sub.Tensor, x, s(aten.mul.Tensor, y, s(rounding, s(aten.div.Tensor, x, y))))


@composite("aten.remainder.Tensor", samples=_QUOTIENTS, bound=_ONE_INTEGER, bound16=_ONE_INTEGER_16)
def remainder(s: Sketch, x: Node, y: Node) -> Node:
    """out = x - y * floor(x / y)."""
    return _remainder(s, x, y, aten.floor.default)


@composite("aten.fmod.Tensor", samples=_QUOTIENTS, bound=_ONE_INTEGER, bound16=_ONE_INTEGER_16)
def fmod(s: Sketch, x: Node, y: Node) -> Node:
    """out = x - y * trunc(x / y)."""
    return _remainder(s, x, y, aten.trunc.default)


@composite(
    "aten.pow.Tensor_Tensor", samples=[Sample(I8(2, 5, 6, low=0.3, high=2.0), I8(6, low=-1.0, high=2.0))], bound=4, bound16=400
)
def power(s: Sketch, x: Node, y: Node) -> Node:
    """out = x ** y = exp(y * log(x)): a base that is not positive counts as the least positive one."""
    return s(aten.exp.default, s(aten.mul.Tensor, y, s(aten.log.default, x)))


def _operands(spec: OpSpec) -> None:
    @spec.check
    def _(*operands: Any, **_: Any) -> Reason | None:
        for value in operands:
            if isinstance(value, (float, np.ndarray)) and np.asarray(value).dtype.kind == "f":
                return Reason(
                    f"{spec.name.split('.')[1]}.operand",
                    "an operand is a float constant; allowed are quantized tensors and integers", "Quantize the module it is in.",
                )  # fmt: skip
        return None


for _spec in (add, sub, mul, div, maximum, minimum, clamp_tensor):
    _operands(_spec)

# --- of floats --------------------------------------------------------------------------------------------------------------


def _direct(b: Builder, name: str, x: Any, y: Any, **attrs: Any) -> QTensor:
    """One operator in the tensors' own dtype, into which a number must fit; in FP32 otherwise."""
    dtypes = {value.q.dtype for value in (x, y) if isinstance(value, QTensor) and value.q is not None}
    numbers = [np.asarray(value, np.float64) for value in (x, y) if not isinstance(value, QTensor)]
    fits = len(dtypes) == 1 and all(np.all(n.astype(DTYPES[dtype]).astype(np.float64) == n) for n in numbers for dtype in dtypes)
    out = real(dtypes.pop() if fits else "FP32")
    values, dims = b.aligned(in_codes_of(b, x, out), in_codes_of(b, y, out))
    return QTensor(b.emit(name, *values, **attrs), dims, out)


@add.floats
def _(b: Builder, x: Any, y: Any, *, alpha: float = 1) -> Any:
    return _direct(b, "ADD", x, y) if alpha == 1 else Real.of(b, x) + Real.of(b, y) * alpha


@sub.floats
def _(b: Builder, x: Any, y: Any, *, alpha: float = 1) -> Any:
    return _direct(b, "SUB", x, y) if alpha == 1 else Real.of(b, x) - Real.of(b, y) * alpha


mul.floats(lambda b, x, y: _direct(b, "MUL", x, y, shift=0))
maximum.floats(lambda b, x, y: _direct(b, "MAXIMUM", x, y))
minimum.floats(lambda b, x, y: _direct(b, "MINIMUM", x, y))
div.floats(lambda b, x, y: Real.of(b, x) / Real.of(b, y))
power.floats(lambda b, x, y: Real.of(b, x) ** y)
absolute.floats(lambda b, x: QTensor(b.emit("ABS", x.value), x.dims, x.q))
neg.floats(lambda b, x: QTensor(b.emit("NEGATE", x.value, input_zp=0, output_zp=0), x.dims, x.q))
div_mode.floats(lambda b, x, y, *, rounding_mode=None: quotient(Real.of(b, x), Real.of(b, y), rounding_mode))


@remainder.floats
def _(b: Builder, x: Any, y: Any) -> Real:
    x, y = Real.of(b, x), Real.of(b, y)
    return x - quotient(x, y, "floor") * y


@fmod.floats
def _(b: Builder, x: Any, y: Any) -> Real:
    x, y = Real.of(b, x), Real.of(b, y)
    return x - quotient(x, y, "trunc") * y


@clamp_tensor.floats
def _(b: Builder, x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else _direct(b, "MAXIMUM", x, low)
    return x if high is None else _direct(b, "MINIMUM", x, high)
