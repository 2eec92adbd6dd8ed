"""FloatTensor: float tensors in formulas, for the operators that are tables and fixed-point arithmetic where they are quantized.

A formula computes in FP32 whatever its tensors are, as PyTorch's CPU kernels do, and is rounded once, at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QTensor, float_qparams
from ethorch.lower.builder.reductions import reduced_by, reduced_tensor
from ethorch.tosa.layout import contiguous

Number = float | int
FP32 = float_qparams("FP32")
#: The largest finite FP32.
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Condition:
    """The result of a comparison in a formula: chooses between two numbers or tensors."""

    b: Builder
    t: QTensor

    def then(self, yes: FloatTensor | Number, no: FloatTensor | Number) -> FloatTensor:
        """yes where it holds, else no. TOSA 1.0 SELECT."""
        one, other = (FloatTensor.of(self.b, value) for value in (yes, no))
        (c, x, y), dims = self.b.aligned(self.t, one.t, other.t)
        return FloatTensor(self.b, QTensor(self.b.emit("SELECT", c, x, y), dims, FP32))


@dataclass(frozen=True)
class FloatTensor:
    """An FP32 tensor: arithmetic, comparisons and functions on it emit the TOSA operators of their names."""

    b: Builder
    t: QTensor

    @staticmethod
    def of(b: Builder, x: Any) -> FloatTensor:
        """A float tensor, plain integers, truth values, a constant array or a number."""
        if isinstance(x, FloatTensor):
            return x
        if not isinstance(x, QTensor):
            array = np.asarray(x).astype(np.float32)
            return FloatTensor(b, QTensor(b.const(array), contiguous(array.shape), FP32))
        if x.is_integer:
            return FloatTensor(b, QTensor(b.rescale(x.value, 1.0, dtype="FP32"), x.dims, FP32))
        return FloatTensor(b, b.requantized(x, FP32))

    @property
    def shape(self) -> tuple[int, ...]:
        """Its logical shape."""
        return self.t.shape

    # --- operators of two ---------------------------------------------------------------------------------------------

    def _with(self, name: str, other: Any, *, swap: bool = False, **attrs: Any) -> QTensor:
        y = FloatTensor.of(self.b, other)
        values, dims = self.b.aligned(*((y.t, self.t) if swap else (self.t, y.t)))
        return QTensor(self.b.emit(name, *values, **attrs), dims, FP32)

    def __add__(self, other: Any) -> FloatTensor:
        return FloatTensor(self.b, self._with("ADD", other))

    def __radd__(self, other: Any) -> FloatTensor:
        return self.__add__(other)

    def __sub__(self, other: Any) -> FloatTensor:
        return FloatTensor(self.b, self._with("SUB", other))

    def __rsub__(self, other: Any) -> FloatTensor:
        return FloatTensor(self.b, self._with("SUB", other, swap=True))

    def __mul__(self, other: Any) -> FloatTensor:
        return FloatTensor(self.b, self._with("MUL", other, shift=0))

    def __rmul__(self, other: Any) -> FloatTensor:
        return self.__mul__(other)

    def __truediv__(self, other: Any) -> FloatTensor:
        if isinstance(other, (int, float)):
            return self * (1 / other) if other else self * math.copysign(math.inf, other)
        return self * FloatTensor.of(self.b, other).reciprocal()

    def __rtruediv__(self, other: Any) -> FloatTensor:
        return self.reciprocal().__mul__(other)

    def __neg__(self) -> FloatTensor:
        return self * -1.0

    def __pow__(self, exponent: Any) -> FloatTensor:
        return FloatTensor(self.b, self._with("POW", exponent))

    def __rpow__(self, base: Any) -> FloatTensor:
        finite = self.minimum(LARGEST).maximum(-LARGEST)  # TOSA 1.0 does not define POW by an infinite exponent
        return FloatTensor(self.b, finite._with("POW", base, swap=True))

    def maximum(self, other: Any) -> FloatTensor:
        """The larger of both. TOSA 1.0 MAXIMUM."""
        return FloatTensor(self.b, self._with("MAXIMUM", other))

    def minimum(self, other: Any) -> FloatTensor:
        """The smaller of both. TOSA 1.0 MINIMUM."""
        return FloatTensor(self.b, self._with("MINIMUM", other))

    def _compared(self, name: str, other: Any, swap: bool) -> Condition:
        found = self._with(name, other, swap=swap)
        return Condition(self.b, QTensor(found.value, found.dims, None))

    def __gt__(self, other: Any) -> Condition:
        return self._compared("GREATER", other, False)

    def __ge__(self, other: Any) -> Condition:
        return self._compared("GREATER_EQUAL", other, False)

    def __lt__(self, other: Any) -> Condition:
        return self._compared("GREATER", other, True)

    def __le__(self, other: Any) -> Condition:
        return self._compared("GREATER_EQUAL", other, True)

    def equals(self, other: Any) -> Condition:
        """Is it equal to ``other``? TOSA 1.0 EQUAL."""
        return self._compared("EQUAL", other, False)

    # --- functions of one ---------------------------------------------------------------------------------------------

    def apply(self, name: str) -> FloatTensor:
        """TOSA operator ``name`` of it."""
        return FloatTensor(self.b, QTensor(self.b.emit(name, self.t.value), self.t.dims, FP32))

    def abs(self) -> FloatTensor:
        """Absolute value."""
        return self.apply("ABS")

    def floor(self) -> FloatTensor:
        """The largest integer that is not above it."""
        return self.apply("FLOOR")

    def ceil(self) -> FloatTensor:
        """The smallest integer that is not below it."""
        return self.apply("CEIL")

    def exp(self) -> FloatTensor:
        """e to its power."""
        return self.apply("EXP")

    def log(self) -> FloatTensor:
        """Natural logarithm."""
        return self.apply("LOG")

    def reciprocal(self) -> FloatTensor:
        """1 / x."""
        return self.apply("RECIPROCAL")

    def rsqrt(self) -> FloatTensor:
        """1 / sqrt(x)."""
        return self.apply("RSQRT")

    def sigmoid(self) -> FloatTensor:
        """1 / (1 + exp(-x))."""
        return self.apply("SIGMOID")

    def tanh(self) -> FloatTensor:
        """Hyperbolic tangent."""
        return self.apply("TANH")

    def erf(self) -> FloatTensor:
        """Error function."""
        return self.apply("ERF")

    def sin(self) -> FloatTensor:
        """Sine."""
        return self.apply("SIN")

    def cos(self) -> FloatTensor:
        """Cosine."""
        return self.apply("COS")

    def sqrt(self) -> FloatTensor:
        """Square root, by that of 1 / x, which TOSA defines of every number: POW it does not of negative and infinite ones."""
        return self.equals(0).then(self, self * self.minimum(LARGEST).rsqrt())

    def clamp(self, low: float, high: float) -> FloatTensor:
        """At least ``low``, at most ``high``."""
        return FloatTensor(self.b, QTensor(self.b.clamp(self.t.value, low, high), self.t.dims, FP32))

    def trunc(self) -> FloatTensor:
        """Towards zero."""
        return (self < 0).then(self.ceil(), self.floor())

    def sign(self) -> FloatTensor:
        """-1, 0 or 1."""
        return (self > 0).then(1, (self < 0).then(-1, 0))

    def signed_like(self, other: FloatTensor) -> FloatTensor:
        """Its negative where ``other`` is negative."""
        return (other < 0).then(-self, self)

    def expm1(self) -> FloatTensor:
        """exp(x) - 1. Near 0, where the difference cancels, 2 t / (1 - t) with t = tanh(x / 2)."""
        t = (self * 0.5).tanh()
        return (self.abs() < 1).then((t * 2) / (1 - t), self.exp() - 1)

    def log1p(self) -> FloatTensor:
        """log(1 + x). The rounding error of u = 1 + x is made up for: log(u) * x / (u - 1), up to where there is none."""
        u = self + 1
        return u.equals(1).then(self, (self > 1e9).then(u.log(), u.log() * self / (u - 1)))

    def polynomial(self, coefficients: Sequence[float]) -> FloatTensor:
        """Horner's rule, the highest coefficient first."""
        total = self * coefficients[0] + coefficients[1]
        for coefficient in coefficients[2:]:
            total = total * self + coefficient
        return total

    # --- reductions and shapes ----------------------------------------------------------------------------------------

    def _reduced(self, name: str, dims: Sequence[int]) -> FloatTensor:
        """``name`` over the logical ``dims``, which keep extent 1; stored axes side by side are reduced as one."""
        dims = [dim % self.t.rank for dim in dims]
        value = reduced_by(self.b, name, self.t.value, {axis for dim in dims for axis in self.t.dims[dim]})
        return FloatTensor(self.b, reduced_tensor(self.t, value, dims, FP32))

    def sum(self, dims: Sequence[int]) -> FloatTensor:
        """Sum over the logical ``dims``, which keep extent 1."""
        return self._reduced("REDUCE_SUM", dims)

    def mean(self, dims: Sequence[int]) -> FloatTensor:
        """Mean over the logical ``dims``, which keep extent 1."""
        return self.sum(dims) / math.prod(self.shape[dim] for dim in dims)

    def amax(self, dims: Sequence[int]) -> FloatTensor:
        """Maximum over the logical ``dims``, which keep extent 1."""
        return self._reduced("REDUCE_MAX", dims)

    def amin(self, dims: Sequence[int]) -> FloatTensor:
        """Minimum over the logical ``dims``, which keep extent 1."""
        return self._reduced("REDUCE_MIN", dims)

    def prod(self, dims: Sequence[int]) -> FloatTensor:
        """Product over the logical ``dims``, which keep extent 1."""
        return self._reduced("REDUCE_PRODUCT", dims)

    def view(self, shape: Sequence[int]) -> FloatTensor:
        """Under another logical shape."""
        return FloatTensor(self.b, self.b.view(self.t, shape))


Formula = Callable[..., FloatTensor]


def quotient(x: FloatTensor, y: FloatTensor, rounding: str | None) -> FloatTensor:
    """x / y, rounded to an integer by ``floor`` or ``trunc``: x times the reciprocal may miss it by one, which the rest tells."""
    if rounding is None:
        return x / y
    if rounding == "trunc":
        whole = quotient(x.abs(), y.abs(), "floor")
        return whole.signed_like(x * y.sign())
    whole = (x / y).floor()
    rest = (x - whole * y) * y.sign()
    return (rest >= y.abs()).then(whole + 1, (rest < 0).then(whole - 1, whole))
