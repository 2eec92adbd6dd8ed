"""Float functions without a TOSA operator, accurate to a few ulp in FP32.

The polynomials are from Cephes (asinf, atanf; public domain) and M. Giles, "Approximating the erfinv function" (2010).
"""

from __future__ import annotations

import math

from ethorch.lower.builder.floats import LARGEST, FloatTensor
from ethorch.lower.builder.qparams import QTensor

_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
_ERFINV_MIDDLE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                  -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_ERFINV_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


def gelu(x: FloatTensor, *, approximate: str = "none") -> FloatTensor:
    """Return x * P(X <= x) for a standard normal X, or the tanh approximation of GELU."""
    if approximate == "tanh":
        return x * ((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)).tanh() * 0.5 + x * 0.5
    return x * 0.5 * ((x * math.sqrt(0.5)).erf() + 1)


def elu(x: FloatTensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> FloatTensor:
    """Return scale * x if x > 0, or scale * alpha * (exp(input_scale * x) - 1) otherwise."""
    below = (x * input_scale).minimum(0).expm1() * (alpha * scale)
    return (x > 0).then(x if scale == 1 else x * scale, below)


def softplus(x: FloatTensor, beta: float = 1, threshold: float = 20) -> FloatTensor:
    """Return log(1 + exp(beta * x)) / beta without overflow, or x if beta * x exceeds ``threshold``."""
    y = x if beta == 1 else x * beta
    soft = (y.maximum(0) + (-y.abs()).exp().log1p()) / beta
    return soft if threshold >= 20 else (y > threshold).then(x, soft)


def power(x: FloatTensor, exponent: float) -> FloatTensor:
    """Return x ** exponent. Small integer exponents use multiplications."""
    if exponent != int(exponent):
        if abs(exponent) == 0.5:
            return x.sqrt() if exponent > 0 else x.rsqrt()
        return (x < 0).then(math.nan, x.abs() ** exponent)
    count = abs(int(exponent))
    if count == 0:
        return x * 0 + 1
    if count > 4:
        product = x.abs() ** count
        product = product.copy_sign(x) if count % 2 else product
    else:
        product = x
        for _ in range(count - 1):
            product = product * x
    return product if exponent > 0 else product.reciprocal()


def exponential(base: FloatTensor, x: QTensor) -> FloatTensor:
    return base ** FloatTensor.of(base.b, x).minimum(LARGEST).maximum(-LARGEST)


def logit(x: FloatTensor, eps: float | None = None) -> FloatTensor:
    x = x if eps is None else x.clamp(eps, 1 - eps)
    return (x / (1 - x)).log()


def atan(x: FloatTensor) -> FloatTensor:
    y = x.abs()  # arguments of the polynomial are at most tan(pi / 8)
    high, middle = y > math.tan(3 * math.pi / 8), y > math.tan(math.pi / 8)
    reduced = high.then(-y.reciprocal(), middle.then((y - 1) / (y + 1), y))
    start = high.then(math.pi / 2, middle.then(math.pi / 4, 0))
    z = reduced * reduced
    return (start + z.polynomial(_ATAN) * z * reduced + reduced).copy_sign(x)


def _asin_parts(x: FloatTensor) -> tuple[FloatTensor, FloatTensor]:
    y = x.abs()
    z = (y > 0.5).then((1 - y) * 0.5, y * y)
    root = (y > 0.5).then(z.sqrt(), y)
    return z.polynomial(_ASIN) * z * root + root, y


def asin(x: FloatTensor) -> FloatTensor:
    part, y = _asin_parts(x)
    return (y > 0.5).then(math.pi / 2 - part * 2, part).copy_sign(x)


def acos(x: FloatTensor) -> FloatTensor:
    part, y = _asin_parts(x)
    angle = (y > 0.5).then(part * 2, math.pi / 2 - part)
    return (x < 0).then(math.pi - angle, angle)


def sinh(x: FloatTensor) -> FloatTensor:
    """Return (e + e / (e + 1)) / 2 with the sign of x, where e = exp(|x|) - 1. This form avoids cancellation."""
    e = x.abs().expm1()
    finite = e.minimum(1e30)
    return ((e + finite / (finite + 1)) * 0.5).copy_sign(x)


def asinh(x: FloatTensor) -> FloatTensor:
    """Return log(1 + y + y**2 / (1 + sqrt(1 + y**2))) with the sign of x, where y = |x|."""
    y = x.abs()
    square = y * y
    return (y + (y > 1e15).then(y, square / ((square + 1).sqrt() + 1))).log1p().copy_sign(x)


def acosh(x: FloatTensor) -> FloatTensor:
    t = x - 1
    return (t + t.sqrt() * (t + 2).sqrt()).log1p()


def atanh(x: FloatTensor) -> FloatTensor:
    y = x.abs()
    return ((y * 2 / (1 - y)).log1p() * 0.5).copy_sign(x)


def erfinv(x: FloatTensor) -> FloatTensor:
    """Return the inverse error function. Clamping w = -log(1 - x**2) to 30 affects only the poles."""
    w = -((1 - x) * (x + 1)).log()
    w = w.minimum(30)
    middle, tail = (w - 2.5).polynomial(_ERFINV_MIDDLE), (w.maximum(5).sqrt() - 3).polynomial(_ERFINV_TAIL)
    inside = (w < 5).then(middle, tail) * x
    return x.abs().equals(1).then(x * math.inf, inside)


def nan_to_num(x: FloatTensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> FloatTensor:
    largest = 3.4028234663852886e38
    finite = x.equals(x).then(x, nan or 0)
    finite = finite.equals(math.inf).then(largest if posinf is None else posinf, finite)
    return finite.equals(-math.inf).then(-largest if neginf is None else neginf, finite)


def round_half_even(x: FloatTensor) -> FloatTensor:
    low = x.floor()
    remainder = x - low
    odd = low - (low * 0.5).floor() * 2
    nearest = (remainder > 0.5).then(low + 1, (remainder < 0.5).then(low, low + odd))
    return (x.abs() < 2.0**23).then(nearest, x)
