"""Formulas on float tensors, for operators whose quantized form uses tables or fixed-point arithmetic.

For all float dtypes, a formula is evaluated in FP32, as in PyTorch's CPU kernels, and its result is rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, float_qparams
from ethorch.lower.builder.reductions import reduce_axes, with_reduced_dims
from ethorch.tosa.layout import contiguous

Number = float | int
FP32 = float_qparams("FP32")
#: The largest finite FP32 number.
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Condition:
    """The result of a comparison."""

    b: Builder
    t: QTensor

    def then(self, yes: FloatTensor | Number, no: FloatTensor | Number) -> FloatTensor:
        true, false = (FloatTensor.of(self.b, value) for value in (yes, no))
        (c, x, y), dims = self.b.align(self.t, true.t, false.t)
        return FloatTensor(self.b, QTensor(self.b.emit("SELECT", c, x, y), dims, FP32))


@dataclass(frozen=True)
class FloatTensor:
    """An FP32 tensor whose operators and functions emit TOSA. Reduced dimensions have size 1."""

    b: Builder
    t: QTensor

    @staticmethod
    def of(b: Builder, x: Any) -> FloatTensor:
        """Convert a tensor, constant array or number to a FloatTensor."""
        if isinstance(x, FloatTensor):
            return x
        if not isinstance(x, QTensor):
            array = np.asarray(x).astype(np.float32)
            return FloatTensor(b, QTensor(b.const(array), contiguous(array.shape), FP32))
        if x.is_integer:
            return FloatTensor(b, QTensor(b.rescale(x.value, 1.0, dtype="FP32"), x.dims, FP32))
        return FloatTensor(b, b.to_qparams(x, FP32))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.t.shape

    # --- binary operators ---------------------------------------------------------------------------------------------

    def _with(self, name: str, operand: Any, *, swap: bool = False, **attrs: Any) -> QTensor:
        y = FloatTensor.of(self.b, operand)
        values, dims = self.b.align(*((y.t, self.t) if swap else (self.t, y.t)))
        return QTensor(self.b.emit(name, *values, **attrs), dims, FP32)

    def __add__(self, operand: Any) -> FloatTensor:
        return FloatTensor(self.b, self._with("ADD", operand))

    def __radd__(self, operand: Any) -> FloatTensor:
        return self.__add__(operand)

    def __sub__(self, operand: Any) -> FloatTensor:
        return FloatTensor(self.b, self._with("SUB", operand))

    def __rsub__(self, operand: Any) -> FloatTensor:
        return FloatTensor(self.b, self._with("SUB", operand, swap=True))

    def __mul__(self, operand: Any) -> FloatTensor:
        return FloatTensor(self.b, self._with("MUL", operand, shift=0))

    def __rmul__(self, operand: Any) -> FloatTensor:
        return self.__mul__(operand)

    def __truediv__(self, operand: Any) -> FloatTensor:
        if isinstance(operand, (int, float)):
            return self * (1 / operand) if operand else self * math.copysign(math.inf, operand)
        return self * FloatTensor.of(self.b, operand).reciprocal()

    def __rtruediv__(self, operand: Any) -> FloatTensor:
        return self.reciprocal().__mul__(operand)

    def __neg__(self) -> FloatTensor:
        return self * -1.0

    def __pow__(self, exponent: Any) -> FloatTensor:
        return FloatTensor(self.b, self._with("POW", exponent))

    def __rpow__(self, base: Any) -> FloatTensor:
        finite = self.minimum(LARGEST).maximum(-LARGEST)  # TOSA 1.0 does not define POW for infinite exponents
        return FloatTensor(self.b, finite._with("POW", base, swap=True))

    def maximum(self, operand: Any) -> FloatTensor:
        return FloatTensor(self.b, self._with("MAXIMUM", operand))

    def minimum(self, operand: Any) -> FloatTensor:
        return FloatTensor(self.b, self._with("MINIMUM", operand))

    def _compare(self, name: str, operand: Any, swap: bool) -> Condition:
        truths = self._with(name, operand, swap=swap)
        return Condition(self.b, QTensor(truths.value, truths.dims, None))

    def __gt__(self, operand: Any) -> Condition:
        return self._compare("GREATER", operand, False)

    def __ge__(self, operand: Any) -> Condition:
        return self._compare("GREATER_EQUAL", operand, False)

    def __lt__(self, operand: Any) -> Condition:
        return self._compare("GREATER", operand, True)

    def __le__(self, operand: Any) -> Condition:
        return self._compare("GREATER_EQUAL", operand, True)

    def equals(self, operand: Any) -> Condition:
        return self._compare("EQUAL", operand, False)

    # --- functions ----------------------------------------------------------------------------------------------------

    def apply(self, name: str) -> FloatTensor:
        return FloatTensor(self.b, QTensor(self.b.emit(name, self.t.value), self.t.dims, FP32))

    def abs(self) -> FloatTensor:
        return self.apply("ABS")

    def floor(self) -> FloatTensor:
        return self.apply("FLOOR")

    def ceil(self) -> FloatTensor:
        return self.apply("CEIL")

    def exp(self) -> FloatTensor:
        return self.apply("EXP")

    def log(self) -> FloatTensor:
        return self.apply("LOG")

    def reciprocal(self) -> FloatTensor:
        return self.apply("RECIPROCAL")

    def rsqrt(self) -> FloatTensor:
        return self.apply("RSQRT")

    def sigmoid(self) -> FloatTensor:
        return self.apply("SIGMOID")

    def tanh(self) -> FloatTensor:
        return self.apply("TANH")

    def erf(self) -> FloatTensor:
        return self.apply("ERF")

    def sin(self) -> FloatTensor:
        return self.apply("SIN")

    def cos(self) -> FloatTensor:
        return self.apply("COS")

    def sqrt(self) -> FloatTensor:
        """Return the square root as x * rsqrt(x), because TOSA does not define POW for negative or infinite bases."""
        return self.equals(0).then(self, self * self.minimum(LARGEST).rsqrt())

    def clamp(self, low: float, high: float) -> FloatTensor:
        return FloatTensor(self.b, QTensor(self.b.clamp(self.t.value, low, high), self.t.dims, FP32))

    def trunc(self) -> FloatTensor:
        return (self < 0).then(self.ceil(), self.floor())

    def sign(self) -> FloatTensor:
        return (self > 0).then(1, (self < 0).then(-1, 0))

    def copy_sign(self, sign: FloatTensor) -> FloatTensor:
        """Negate each element for which ``sign`` is negative."""
        return (sign < 0).then(-self, self)

    def expm1(self) -> FloatTensor:
        """Return exp(x) - 1. For |x| < 1, use 2 t / (1 - t) with t = tanh(x / 2) to avoid cancellation."""
        t = (self * 0.5).tanh()
        return (self.abs() < 1).then((t * 2) / (1 - t), self.exp() - 1)

    def log1p(self) -> FloatTensor:
        """Return log(1 + x). The factor x / (u - 1) compensates for the rounding of u = 1 + x."""
        u = self + 1
        return u.equals(1).then(self, (self > 1e9).then(u.log(), u.log() * self / (u - 1)))

    def polynomial(self, coefficients: Sequence[float]) -> FloatTensor:
        """Evaluate a polynomial. Coefficients start with the highest power."""
        total = self * coefficients[0] + coefficients[1]
        for coefficient in coefficients[2:]:
            total = total * self + coefficient
        return total

    # --- reductions and shapes ----------------------------------------------------------------------------------------

    def _reduce(self, name: str, dims: Sequence[int]) -> FloatTensor:
        dims = [dim % self.t.rank for dim in dims]
        value = reduce_axes(self.b, name, self.t.value, {axis for dim in dims for axis in self.t.dims[dim]})
        return FloatTensor(self.b, with_reduced_dims(self.t, value, dims, FP32))

    def sum(self, dims: Sequence[int]) -> FloatTensor:
        return self._reduce("REDUCE_SUM", dims)

    def mean(self, dims: Sequence[int]) -> FloatTensor:
        return self.sum(dims) / math.prod(self.shape[dim] for dim in dims)

    def amax(self, dims: Sequence[int]) -> FloatTensor:
        return self._reduce("REDUCE_MAX", dims)

    def amin(self, dims: Sequence[int]) -> FloatTensor:
        return self._reduce("REDUCE_MIN", dims)

    def prod(self, dims: Sequence[int]) -> FloatTensor:
        return self._reduce("REDUCE_PRODUCT", dims)

    def view(self, shape: Sequence[int]) -> FloatTensor:
        return FloatTensor(self.b, self.b.view(self.t, shape))


Formula = Callable[..., FloatTensor]


def quotient(x: FloatTensor, y: FloatTensor, rounding: str | None) -> FloatTensor:
    """Return x / y, rounded according to ``rounding`` (None, ``trunc`` or ``floor``). The remainder corrects the rounded value."""
    if rounding is None:
        return x / y
    if rounding == "trunc":
        integer = quotient(x.abs(), y.abs(), "floor")
        return integer.copy_sign(x * y.sign())
    integer = (x / y).floor()
    remainder = (x - integer * y) * y.sign()
    return (remainder >= y.abs()).then(integer + 1, (remainder < 0).then(integer - 1, integer))
