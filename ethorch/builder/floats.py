"""Real: float tensors in formulas, for the operators that are tables and fixed-point arithmetic where they are quantized.

A formula computes in FP32 whatever its tensors are, as PyTorch's CPU kernels do, and is rounded once, at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ethorch.layout import contiguous
from ethorch.qparams import QTensor, real
from ethorch.tosa.builder import Builder

Number = float | int
FP32 = real("FP32")


@dataclass(frozen=True)
class Truth:
    """The result of a comparison in a formula: chooses between two numbers or tensors."""

    b: Builder
    t: QTensor

    def then(self, yes: Real | Number, no: Real | Number) -> Real:
        """yes where it holds, else no. TOSA 1.0 SELECT."""
        one, other = (Real.of(self.b, value) for value in (yes, no))
        (c, x, y), dims = self.b.aligned(self.t, one.t, other.t)
        return Real(self.b, QTensor(self.b.emit("SELECT", c, x, y), dims, FP32))


@dataclass(frozen=True)
class Real:
    """An FP32 tensor: arithmetic, comparisons and functions on it emit the TOSA operators of their names."""

    b: Builder
    t: QTensor

    @staticmethod
    def of(b: Builder, x: Any) -> Real:
        """A float tensor, plain integers, truth values, a constant array or a number."""
        if isinstance(x, Real):
            return x
        if not isinstance(x, QTensor):
            array = np.asarray(x).astype(np.float32)
            return Real(b, QTensor(b.const(array), contiguous(array.shape), FP32))
        if x.q is None:
            return Real(b, QTensor(b.rescale(x.value, 1.0, dtype="FP32"), x.dims, FP32))
        return Real(b, b.requantized(x, FP32))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.t.shape

    # --- operators of two ---------------------------------------------------------------------------------------------

    def _with(self, name: str, other: Any, *, swap: bool = False, **attrs: Any) -> QTensor:
        y = Real.of(self.b, other)
        values, dims = self.b.aligned(*((y.t, self.t) if swap else (self.t, y.t)))
        return QTensor(self.b.emit(name, *values, **attrs), dims, FP32)

    def __add__(self, other: Any) -> Real:
        return Real(self.b, self._with("ADD", other))

    def __radd__(self, other: Any) -> Real:
        return self + other

    def __sub__(self, other: Any) -> Real:
        return Real(self.b, self._with("SUB", other))

    def __rsub__(self, other: Any) -> Real:
        return Real(self.b, self._with("SUB", other, swap=True))

    def __mul__(self, other: Any) -> Real:
        return Real(self.b, self._with("MUL", other, shift=0))

    def __rmul__(self, other: Any) -> Real:
        return self * other

    def __truediv__(self, other: Any) -> Real:
        if isinstance(other, (int, float)):
            return self * (1 / other) if other else self * math.copysign(math.inf, other)
        return self * Real.of(self.b, other).reciprocal()

    def __rtruediv__(self, other: Any) -> Real:
        return self.reciprocal() * other

    def __neg__(self) -> Real:
        return self * -1.0

    def __pow__(self, exponent: Any) -> Real:
        return Real(self.b, self._with("POW", exponent))

    def __rpow__(self, base: Any) -> Real:
        return Real(self.b, self._with("POW", base, swap=True))

    def maximum(self, other: Any) -> Real:
        return Real(self.b, self._with("MAXIMUM", other))

    def minimum(self, other: Any) -> Real:
        return Real(self.b, self._with("MINIMUM", other))

    def _compared(self, name: str, other: Any, swap: bool) -> Truth:
        found = self._with(name, other, swap=swap)
        return Truth(self.b, QTensor(found.value, found.dims, None))

    def __gt__(self, other: Any) -> Truth:
        return self._compared("GREATER", other, False)

    def __ge__(self, other: Any) -> Truth:
        return self._compared("GREATER_EQUAL", other, False)

    def __lt__(self, other: Any) -> Truth:
        return self._compared("GREATER", other, True)

    def __le__(self, other: Any) -> Truth:
        return self._compared("GREATER_EQUAL", other, True)

    def equals(self, other: Any) -> Truth:
        return self._compared("EQUAL", other, False)

    # --- functions of one ----------------------------------------------------------------------------------------------

    def apply(self, name: str) -> Real:
        """TOSA operator ``name`` of it."""
        return Real(self.b, QTensor(self.b.emit(name, self.t.value), self.t.dims, FP32))

    def abs(self) -> Real:
        return self.apply("ABS")

    def floor(self) -> Real:
        return self.apply("FLOOR")

    def ceil(self) -> Real:
        return self.apply("CEIL")

    def exp(self) -> Real:
        return self.apply("EXP")

    def log(self) -> Real:
        return self.apply("LOG")

    def reciprocal(self) -> Real:
        return self.apply("RECIPROCAL")

    def rsqrt(self) -> Real:
        return self.apply("RSQRT")

    def sigmoid(self) -> Real:
        return self.apply("SIGMOID")

    def tanh(self) -> Real:
        return self.apply("TANH")

    def erf(self) -> Real:
        return self.apply("ERF")

    def sin(self) -> Real:
        return self.apply("SIN")

    def cos(self) -> Real:
        return self.apply("COS")

    def sqrt(self) -> Real:
        return self**0.5

    def clamp(self, low: float, high: float) -> Real:
        return Real(self.b, QTensor(self.b.clamp(self.t.value, low, high), self.t.dims, FP32))

    def trunc(self) -> Real:
        """Towards zero."""
        return (self < 0).then(self.ceil(), self.floor())

    def sign(self) -> Real:
        """-1, 0 or 1."""
        return (self > 0).then(1, (self < 0).then(-1, 0))

    def signed_like(self, other: Real) -> Real:
        """Its negative where ``other`` is negative."""
        return (other < 0).then(-self, self)

    def expm1(self) -> Real:
        """exp(x) - 1. Near 0, where the difference cancels, 2 t / (1 - t) with t = tanh(x / 2)."""
        t = (self * 0.5).tanh()
        return (self.abs() < 1).then((t * 2) / (1 - t), self.exp() - 1)

    def log1p(self) -> Real:
        """log(1 + x). The rounding error of u = 1 + x is made up for: log(u) * x / (u - 1)."""
        u = self + 1
        return u.equals(1).then(self, u.log() * self / (u - 1))

    def polynomial(self, coefficients: Sequence[float]) -> Real:
        """Horner's rule, the highest coefficient first."""
        total = self * coefficients[0] + coefficients[1]
        for coefficient in coefficients[2:]:
            total = total * self + coefficient
        return total

    # --- reductions and shapes --------------------------------------------------------------------------------------------

    def _reduced(self, name: str, dims: Sequence[int]) -> Real:
        """``name`` over the logical ``dims``, which keep extent 1; stored axes side by side are reduced as one."""
        shape = self.t.value.shape
        reduced = {axis for dim in dims for axis in self.t.dims[dim] if shape[axis] > 1}
        runs: list[list[int]] = []
        for axis in range(len(shape)):
            if runs and axis - 1 in runs[-1] and {axis - 1, axis} <= reduced:
                runs[-1].append(axis)
            else:
                runs.append([axis])
        value = self.b.reshape(self.t.value, [math.prod(shape[axis] for axis in run) for run in runs])
        for index, run in enumerate(runs):
            if run[0] in reduced:
                value = self.b.emit(name, value, axis=index)
        value = self.b.reshape(value, [1 if axis in reduced else extent for axis, extent in enumerate(shape)])
        kept = {dim % self.t.rank for dim in dims}
        return Real(self.b, QTensor(value, tuple(() if d in kept else axes for d, axes in enumerate(self.t.dims)), FP32))

    def sum(self, dims: Sequence[int]) -> Real:
        return self._reduced("REDUCE_SUM", dims)

    def mean(self, dims: Sequence[int]) -> Real:
        return self.sum(dims) / math.prod(self.shape[dim] for dim in dims)

    def amax(self, dims: Sequence[int]) -> Real:
        return self._reduced("REDUCE_MAX", dims)

    def amin(self, dims: Sequence[int]) -> Real:
        return self._reduced("REDUCE_MIN", dims)

    def prod(self, dims: Sequence[int]) -> Real:
        return self._reduced("REDUCE_PRODUCT", dims)

    def view(self, shape: Sequence[int]) -> Real:
        return Real(self.b, self.b.view(self.t, shape))


Formula = Callable[..., Real]


def quotient(x: Real, y: Real, rounding: str | None) -> Real:
    """x / y, rounded to an integer by ``floor`` or ``trunc``: x times the reciprocal may miss it by one, which the rest tells."""
    if rounding is None:
        return x / y
    if rounding == "trunc":
        whole = quotient(x.abs(), y.abs(), "floor")
        return whole.signed_like(x * y.sign())
    whole = (x / y).floor()
    rest = (x - whole * y) * y.sign()
    return (rest >= y.abs()).then(whole + 1, (rest < 0).then(whole - 1, whole))
