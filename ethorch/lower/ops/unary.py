"""Elementwise functions of one tensor. A chain of such functions with constants becomes one TABLE.

- For int8, the TABLE has 256 entries, computed by running the functions.
- For int16, the TABLE interpolates 513 entries. For a steep or discontinuous function, several TABLEs are summed.

If a function is undefined for a value, e.g. the log of a negative number, the table repeats the nearest valid entry. Infinities
saturate.
"""

from __future__ import annotations

import math

from ethorch.lower.builder import float_functions as f
from ethorch.lower.builder.builder import Builder
from ethorch.lower.builder.qparams import QParams, QTensor, Result
from ethorch.lower.builder.reductions import int32_product
from ethorch.lower.ops.quant_rules import UNIT_DOMAIN, fixed_output
from ethorch.lower.ops.samples import I8, Sample
from ethorch.lower.ops.spec import table_op
from ethorch.tosa.ir import Value

# --- piecewise polynomials for int16, exact and cheaper than interpolated tables -----------------------------------


def _hardsigmoid(b: Builder, x: QTensor, unit: float) -> Value:
    scale = x.qparams.step / 6 / unit
    fine = 2.0 ** math.floor(29 - math.log2(max(32768 * scale, 0.5 / unit)))
    middle = b.const_like(x.value, round(0.5 / unit * fine))
    return b.rescale(b.emit("ADD", b.rescale(x.value, scale * fine, dtype="INT32"), middle), 1 / fine, dtype="INT16")


def _lower_hardsigmoid(b: Builder, x: QTensor, *, out: Result) -> QTensor:
    if out.qparams.dtype != "INT16":
        return b.to_qparams(_lower_hardsigmoid(b, x, out=Result(out.shape, out.dtype, _UNIT)), out.qparams)
    q = out.qparams
    return QTensor(b.clamp(_hardsigmoid(b, x, q.step), 0, min(round(1 / q.step), q.qmax)), x.dims, q)


def _lower_hardswish(b: Builder, x: QTensor, *, out: Result) -> QTensor:
    gate = b.clamp(_hardsigmoid(b, x, _UNIT.step), 0, 32767)
    return QTensor(b.requantize(int32_product(b, x.value, gate), x.qparams.step * _UNIT.step, out.qparams), x.dims, out.qparams)


_UNIT = QParams((1 / 32767,), (0,), -32767, 32767, "INT16")

# --- functions with a known output range ---------------------------------------------------------------------

table_op(
    "aten.sigmoid.default",
    "aten.special_expit.default",
    quant=fixed_output(0.0, 1.0, 255 / 256),
    doc="1 / (1 + exp(-x))",
    floats="SIGMOID",
)
table_op(
    "aten.hardsigmoid.default",
    quant=fixed_output(0.0, 1.0),
    doc="min(max(x / 6 + 1/2, 0), 1)",
    lower=_lower_hardsigmoid,
    floats=lambda x: (x / 6 + 0.5).clamp(0, 1),
)
table_op("aten.tanh.default", quant=fixed_output(-1.0, 1.0, 127 / 128), doc="tanh(x)", bound16=2, floats="TANH")

# --- activations ----------------------------------------------------------------------------------------------------------

table_op("aten.silu.default", doc="x / (1 + exp(-x))", floats=lambda x: x * x.sigmoid())
table_op(
    "aten.hardswish.default",
    doc="x * min(max(x + 3, 0), 6) / 6",
    lower=_lower_hardswish,
    floats=lambda x: x * (x + 3).clamp(0, 6) / 6,
)
table_op(
    "aten.gelu.default",
    doc="x * P(X <= x) for a standard normal X, or a tanh approximation",
    calls=[(), {"approximate": "tanh"}],
    floats=f.gelu,
)
table_op("aten.elu.default", doc="x, or alpha * (exp(x) - 1) if x < 0", calls=[(), (1.5,), (0.7, 1.2, 0.8)], floats=f.elu)
table_op("aten.selu.default", doc="1.0507 * elu(x, 1.6733)", floats=lambda x: f.elu(x, 1.6732632423543772, 1.0507009873554805))
table_op(
    "aten.celu.default",
    doc="max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)",
    calls=[(), (0.5,)],
    bound16=2,
    floats=lambda x, alpha=1: f.elu(x, alpha, 1, 1 / alpha),
)
table_op(
    "aten.leaky_relu.default",
    homogeneous=0,
    doc="x, or negative_slope * x if x < 0",
    calls=[(), (0.2,)],
    floats=lambda x, slope=0.01: (x > 0).then(x, x * slope),
)
table_op("aten.softplus.default", doc="log(1 + exp(beta * x)) / beta", calls=[(), (2.0, 4.0)], bound16=2, floats=f.softplus)
table_op("aten.mish.default", doc="x * tanh(log(1 + exp(x)))", bound16=2, floats=lambda x: x * f.softplus(x).tanh())
table_op("aten.log_sigmoid.default", doc="-log(1 + exp(-x))", floats=lambda x: -f.softplus(-x))
table_op(
    "aten.hardshrink.default",
    doc="0 if |x| <= lambd, x otherwise",
    calls=[(), (1.0,)],
    steps=True,
    floats=lambda x, lambd=0.5: (x.abs() <= lambd).then(0, x),
)
table_op(
    "aten.softshrink.default",
    doc="x moved towards 0 by lambd, or 0 if |x| <= lambd",
    calls=[(), (1.0,)],
    bound16=2,
    floats=lambda x, lambd=0.5: x - x.clamp(-lambd, lambd),
)
table_op(
    "aten.threshold.default",
    doc="value if x <= threshold, x otherwise",
    calls=[(0.5, -1.0)],
    steps=True,
    floats=lambda x, threshold, value: (x <= threshold).then(value, x),
)
table_op(
    "aten.rrelu.default",
    doc="x, or x * (lower + upper) / 2 if x < 0 (eval mode)",
    floats=lambda x, lower=1 / 8, upper=1 / 3, *_: (x > 0).then(x, x * ((lower + upper) / 2)),
)

# --- exponentials, logarithms, powers -------------------------------------------------------------------------------------

exp = table_op("aten.exp.default", doc="e**x", bound16=2, floats="EXP")
table_op("aten.exp2.default", doc="2**x", bound16=2, floats=lambda x: 2.0**x)
table_op("aten.expm1.default", doc="e**x - 1", bound16=2, floats=lambda x: x.expm1())
table_op("aten.log.default", doc="natural logarithm of x", low=0.05, high=4.0, bound16=22, floats="LOG")
table_op(
    "aten.log2.default",
    doc="base-2 logarithm of x",
    low=0.05,
    high=4.0,
    bound16=22,
    floats=lambda x: x.log() * (1 / math.log(2)),
)
table_op(
    "aten.log10.default",
    doc="base-10 logarithm of x",
    low=0.05,
    high=4.0,
    bound16=22,
    floats=lambda x: x.log() * (1 / math.log(10)),
)
table_op("aten.log1p.default", doc="natural logarithm of 1 + x", low=-0.9, high=3.0, bound16=8, floats=lambda x: x.log1p())
table_op("aten.sqrt.default", doc="square root of x", low=0.0, high=4.0, bound16=4, floats=lambda x: x.sqrt())
table_op("aten.rsqrt.default", doc="reciprocal square root of x", low=0.1, high=4.0, bound16=14, floats="RSQRT")
table_op("aten.reciprocal.default", doc="1 / x", low=0.2, high=4.0, bound16=16, floats="RECIPROCAL")
table_op("aten.square.default", doc="x * x", bound16=2, floats=lambda x: x * x)
table_op("aten.pow.Tensor_Scalar", doc="x ** exponent", calls=[(2,), (3,), (1,)], bound16=2, floats=f.power)
table_op("aten.pow.Scalar", doc="base ** x", samples=[Sample(1.7, I8(3, 71))], bound16=2, floats=f.exponential)
table_op(
    "aten.logit.default",
    doc="log(x / (1 - x)), with x clamped to eps..1-eps",
    low=0.05,
    high=0.95,
    calls=[(), (0.1,)],
    bound16=8,
    floats=f.logit,
)

# --- trigonometric and hyperbolic functions -------------------------------------------------------------------------------

table_op("aten.sin.default", doc="sine of x", floats="SIN")
table_op("aten.cos.default", doc="cosine of x", floats="COS")
table_op("aten.tan.default", doc="tangent of x", low=-1.2, high=1.2, bound16=2, floats=lambda x: x.sin() / x.cos())
table_op("aten.asin.default", quant=UNIT_DOMAIN, doc="inverse sine of x", low=-1.0, high=1.0, bound16=90, floats=f.asin)
table_op("aten.acos.default", quant=UNIT_DOMAIN, doc="inverse cosine of x", low=-1.0, high=1.0, bound16=3, floats=f.acos)
table_op("aten.atan.default", doc="inverse tangent of x", floats=f.atan)
table_op("aten.sinh.default", doc="hyperbolic sine of x", bound16=2, floats=f.sinh)
table_op("aten.cosh.default", doc="hyperbolic cosine of x", bound16=2, floats=lambda x: (x.exp() + (-x).exp()) * 0.5)
table_op("aten.asinh.default", doc="inverse hyperbolic sine of x", floats=f.asinh)
table_op("aten.acosh.default", doc="inverse hyperbolic cosine of x", low=1.0, high=5.0, bound16=200, floats=f.acosh)
table_op(
    "aten.atanh.default", quant=UNIT_DOMAIN, doc="inverse hyperbolic tangent of x", low=-0.95, high=0.95, bound16=6, floats=f.atanh
)
table_op(
    "aten.sinc.default",
    doc="sin(pi * x) / (pi * x), or 1 if x = 0",
    bound16=2,
    floats=lambda x: x.equals(0).then(1, (x * math.pi).sin() / (x * math.pi)),
)
table_op("aten.deg2rad.default", doc="x * pi / 180", floats=lambda x: x * (math.pi / 180))
table_op("aten.rad2deg.default", doc="x * 180 / pi", floats=lambda x: x * (180 / math.pi))

# --- special functions ----------------------------------------------------------------------------------------------------

table_op("aten.erf.default", doc="error function of x", bound16=2, floats="ERF")
table_op("aten.erfc.default", doc="1 - erf(x)", floats=lambda x: 1 - x.erf())
table_op("aten.erfinv.default", doc="inverse error function of x", low=-0.95, high=0.95, bound16=4, floats=f.erfinv)
table_op("aten.lgamma.default", doc="log of |gamma(x)|", low=0.5, high=4.0, bound16=4)
table_op("aten.digamma.default", doc="derivative of lgamma", low=0.5, high=4.0, bound16=10)
table_op("aten.polygamma.default", doc="n-th derivative of digamma", samples=[Sample(1, I8(3, 71, low=0.5, high=4.0))])
table_op("aten.i0.default", doc="modified Bessel function of the first kind of x, order 0")
table_op("aten.special_i0e.default", doc="exp(-|x|) * i0(x)")
table_op("aten.special_i1.default", doc="modified Bessel function of the first kind of x, order 1")
table_op("aten.special_i1e.default", doc="exp(-|x|) * i1(x)")
table_op("aten.special_bessel_j0.default", doc="Bessel function of the first kind of x, order 0")
table_op("aten.special_bessel_j1.default", doc="Bessel function of the first kind of x, order 1")
table_op("aten.special_ndtri.default", doc="quantile function of the standard normal distribution", low=0.05, high=0.95, bound16=3)
table_op("aten.special_erfcx.default", doc="exp(x * x) * erfc(x)", low=-1.0, high=3.0, bound16=2)

# --- signs ----------------------------------------------------------------------------------------------------------------

table_op("aten.positive.default", doc="x", floats=lambda x: x)
rsub = table_op(
    "aten.rsub.Scalar", doc="other - alpha * x", calls=[(1.5,), (1, 2)], floats=lambda x, other, alpha=1: other - x * alpha
)
table_op("aten.div.Scalar", doc="x / other", calls=[(1.7,)], floats=lambda x, other: x / other)
table_op("aten.nan_to_num.default", doc="x with NaN and infinities replaced by numbers", floats=f.nan_to_num)
table_op("aten.sign.default", "aten.sgn.default", doc="sign of x: -1, 0 or 1", steps=True, floats=lambda x: x.sign())
