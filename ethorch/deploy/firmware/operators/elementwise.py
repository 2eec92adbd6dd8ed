"""Elementwise operators with broadcasting, and tables that map ATen names to C row functions.

Results of arithmetic, rounding, comparisons and logical operators equal those of ExecuTorch's runtime on the host, bit for bit.
"""

# docs/cpu-kernels.md lists the errors of functions such as exp.

from __future__ import annotations

from collections.abc import Callable

from ethorch.deploy.firmware.operators.dtypes import Number, computing, need_float32, promote, scalar, with_scalar, wrap
from ethorch.deploy.firmware.operators.dtypes import compute as compute_in
from ethorch.deploy.firmware.operators.table import kernel
from ethorch.deploy.firmware.views import View
from ethorch.deploy.firmware.writer import SUFFIX, Refused, Writer, refuse_dtype

_FILE = "elementwise.c"

#: Functions of float32; integers and bools are converted to float32.
FLOAT_FUNCTIONS = {
    "reciprocal": ("reciprocal", _FILE),
    "sqrt": ("sqrt", _FILE),
    "rsqrt": ("rsqrt", _FILE),
    "exp": ("exp", "functions.c"),
    "expm1": ("expm1", "functions.c"),
    "log": ("log", "functions.c"),
    "log1p": ("log1p", "functions.c"),
    "log2": ("log2", "functions.c"),
    "log10": ("log10", "functions.c"),
    "tanh": ("tanh", "functions.c"),
    "sigmoid": ("sigmoid", "functions.c"),
    "sin": ("sin", "functions.c"),
    "cos": ("cos", "functions.c"),
    "tan": ("tan", "functions.c"),
    "erf": ("erf", "functions.c"),
}
#: Functions whose output has the dtype of the input -> True if the function is the identity on integers.
SAME_DTYPE = {"neg": False, "abs": False, "sign": False, "relu": False, "floor": True, "ceil": True, "trunc": True, "round": True}
#: Binary functions of tensors or numbers, computed in the promoted dtype.
ARITHMETIC = {"mul": "mul", "minimum": "minimum", "maximum": "maximum", "fmod": "fmod"}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
BITWISE = {
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
}


def _register_named(name: str, body: Callable[..., None], *operators: str) -> None:
    body.__name__ = name
    kernel(*operators)(body)


def _pair(w: Writer, x: View, y: View | Number) -> tuple[View, View, str]:
    if isinstance(y, View):
        return x, y, promote(x.dtype, y.dtype)
    dtype = with_scalar(x.dtype, y)
    need_float32(dtype)
    return x, scalar(w, wrap(y, dtype), computing(dtype)), dtype


def _in(w: Writer, name: str, dtype: str, out: View, *inputs: View, output_dtype: str | None = None, parameters: str = "0") -> None:
    need_float32(dtype)
    wide = computing(dtype)
    compute_in(w, f"etk_{name}_{SUFFIX[wide]}", _FILE, (wide,) * len(inputs), output_dtype or wide, (out, *inputs), parameters)


def _float_function(name: str, function: str, file: str) -> None:
    def body(w: Writer, x: View, out: View) -> None:
        need_float32(x.dtype)
        compute_in(w, f"etk_{function}_f32", file, ("float32",), "float32", (out, x))

    _register_named(name, body, f"aten::{name}.out")


def _same_dtype(name: str, identity_of_integers: bool) -> None:
    def body(w: Writer, x: View, out: View) -> None:
        if identity_of_integers and not x.dtype.startswith(("float", "bfloat")):
            w.copy(out, x)
        else:
            _in(w, name, x.dtype, out, x)

    _register_named(name, body, f"aten::{name}.out")


def _arithmetic(name: str, function: str, operators: tuple[str, ...]) -> None:
    def body(w: Writer, x: View, y: View | Number, out: View) -> None:
        a, b, dtype = _pair(w, x, y)
        _in(w, function, dtype, out, a, b)

    _register_named(name, body, *operators)


def _comparison(name: str) -> None:
    def body(w: Writer, x: View, y: View | Number, out: View) -> None:
        a, b, dtype = _pair(w, x, y)
        _in(w, name, dtype, out, a, b, output_dtype="bool")

    _register_named(name, body, f"aten::{name}.Tensor_out", f"aten::{name}.Scalar_out")


def _bitwise(name: str, function: str, operators: tuple[str, ...]) -> None:
    def body(w: Writer, x: View, y: View | Number, out: View) -> None:
        a, b, dtype = _pair(w, x, y)
        if dtype.startswith(("float", "bfloat")):
            raise refuse_dtype(dtype, "an integer dtype or bool")
        _in(w, function, dtype, out, a, b)

    _register_named(name, body, *operators)


def _logical(name: str) -> None:
    def body(w: Writer, x: View, y: View, out: View) -> None:
        compute_in(w, f"etk_{name}_b8", _FILE, ("bool", "bool"), "bool", (out, x, y))

    _register_named(name, body, f"aten::{name}.out")


for _name, (_function, _source) in FLOAT_FUNCTIONS.items():
    _float_function(_name, _function, _source)
for _name, _identity in SAME_DTYPE.items():
    _same_dtype(_name, _identity)
for _name, _function in ARITHMETIC.items():
    _scalars = (f"aten::{_name}.Scalar_out",) if _name in ("mul", "fmod") else ()
    _of_tensors = f"aten::{_name}.Tensor_out" if _name == "fmod" else f"aten::{_name}.out"
    _arithmetic(_name, _function, (_of_tensors, *_scalars))
for _name in COMPARISONS:
    _comparison(_name)
for _name, _function in BITWISE.items():
    _end = "Tensor_Scalar_out" if "shift" in _name else "Scalar_out"
    _bitwise(_name, _function, (f"aten::{_name}.Tensor_out", f"aten::{_name}.{_end}"))
for _name in ("logical_and", "logical_or", "logical_xor"):
    _logical(_name)


def _call_scaled(w: Writer, name: str, x: View, y: View | Number, alpha: Number, out: View) -> None:
    a, b, dtype = _pair(w, x, y)
    if alpha == 1:
        _in(w, name, dtype, out, a, b)
    else:
        need_float32(dtype)
        _in(w, f"{name}_scaled", dtype, out, a, b, parameters=w.numbers([alpha], computing(dtype)))


@kernel("aten::add.out", "aten::add.Scalar_out")
def add(w: Writer, x: View, y: View | Number, alpha: Number, out: View) -> None:
    _call_scaled(w, "add", x, y, alpha, out)


@kernel("aten::sub.out", "aten::sub.Scalar_out")
def sub(w: Writer, x: View, y: View | Number, alpha: Number, out: View) -> None:
    _call_scaled(w, "sub", x, y, alpha, out)


@kernel("aten::rsub.Scalar_out")
def rsub(w: Writer, x: View, y: Number, alpha: Number, out: View) -> None:
    a, b, dtype = _pair(w, x, y)
    if alpha == 1:
        _in(w, "sub", dtype, out, b, a)
    else:
        _in(w, "sub_scaled", dtype, out, b, a, parameters=w.numbers([alpha], computing(dtype)))


@kernel("aten::div.out", "aten::div.Scalar_out")
def div(w: Writer, x: View, y: View | Number, out: View) -> None:
    """Compute x / y in float32, even for integers.

    If x and y are float32 and only y has one element, compute x * (1 / y), as in ExecuTorch's optimized host kernels.
    """
    need_float32(x.dtype)
    divisor = y if isinstance(y, View) else scalar(w, y, "float32")
    need_float32(divisor.dtype)
    by_one = x.numel > 1 and divisor.numel == 1 and x.dtype == divisor.dtype == "float32"
    function = "etk_div_by_one_f32" if by_one else "etk_div_f32"
    compute_in(w, function, _FILE, ("float32", "float32"), "float32", (out, x, divisor))


@kernel("aten::div.out_mode", "aten::div.Scalar_mode_out")
def div_mode(w: Writer, x: View, y: View | Number, mode: str | None, out: View) -> None:
    """Compute x / y with the rounding ``mode``: ``trunc`` or ``floor``."""
    if mode is None:
        div(w, x, y, out)
        return
    a, b, dtype = _pair(w, x, y)
    _in(w, f"{mode}_divide", dtype, out, a, b)


@kernel("aten::floor_divide.out")
def floor_divide(w: Writer, x: View, y: View, out: View) -> None:
    """Compute floor(x / y). Integer division by 0 returns 0, whereas ExecuTorch's runtime raises an error."""
    _in(w, "floor_divide", promote(x.dtype, y.dtype), out, x, y)


@kernel("aten::remainder.Tensor_out", "aten::remainder.Scalar_out")
def remainder(w: Writer, x: View, y: View | Number, out: View) -> None:
    """Compute the remainder of x / y, with the sign of y for floats and the sign of x for integers, as in ExecuTorch's kernels."""
    a, b, dtype = _pair(w, x, y)
    _in(w, "remainder" if dtype == "float32" else "fmod", dtype, out, a, b)


@kernel("aten::bitwise_not.out")
def bitwise_not(w: Writer, x: View, out: View) -> None:
    if x.dtype == "bool":
        logical_not(w, x, out)
    elif x.dtype.startswith(("float", "bfloat")):
        raise refuse_dtype(x.dtype, "an integer dtype or bool")
    else:
        _in(w, "bitwise_not", x.dtype, out, x)


@kernel("aten::logical_not.out")
def logical_not(w: Writer, x: View, out: View) -> None:
    compute_in(w, "etk_logical_not_b8", _FILE, ("bool",), "bool", (out, x))


@kernel("aten::isnan.out")
def isnan(w: Writer, x: View, out: View) -> None:
    compute_in(w, "etk_isnan_f32", _FILE, ("float32",), "bool", (out, x))


@kernel("aten::isinf.out")
def isinf(w: Writer, x: View, out: View) -> None:
    compute_in(w, "etk_isinf_f32", _FILE, ("float32",), "bool", (out, x))


_LIMITS: dict[str, tuple[Number, Number]] = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "float32": (float("-inf"), float("inf")),
}


@kernel("aten::clamp.out")
def clamp(w: Writer, x: View, low: Number | None, high: Number | None, out: View) -> None:
    """Compute min(max(x, low), high). NaN remains NaN."""
    dtype = x.dtype
    for bound in (low, high):
        dtype = dtype if bound is None else promote(dtype, with_scalar(dtype, bound))
    need_float32(dtype)
    wide = computing(dtype)
    bounds = [scalar(w, limit if bound is None else bound, wide) for bound, limit in zip((low, high), _LIMITS[wide], strict=True)]
    _in(w, "clamp", dtype, out, x, *bounds)


@kernel("aten::clamp.Tensor_out")
def clamp_tensor(w: Writer, x: View, low: View | None, high: View | None, out: View) -> None:
    dtype = x.dtype
    for bound in (low, high):
        dtype = dtype if bound is None else promote(dtype, bound.dtype)
    need_float32(dtype)
    wide = computing(dtype)
    bounds = [
        bound if bound is not None else scalar(w, limit, wide) for bound, limit in zip((low, high), _LIMITS[wide], strict=True)
    ]
    _in(w, "clamp_each" if wide == "float32" else "clamp", dtype, out, x, *bounds)


@kernel("aten::hardtanh.out")
def hardtanh(w: Writer, x: View, low: Number, high: Number, out: View) -> None:
    wide = computing(x.dtype)
    name = "hardtanh" if wide == "float32" else "clamp"
    _in(w, name, x.dtype, out, x, scalar(w, low, wide), scalar(w, high, wide))


@kernel("aten::leaky_relu.out")
def leaky_relu(w: Writer, x: View, slope: Number, out: View) -> None:
    compute_in(w, "etk_leaky_relu_f32", _FILE, ("float32", "float32"), "float32", (out, x, scalar(w, slope, "float32")))


@kernel("aten::elu.out")
def elu(w: Writer, x: View, alpha: Number, scale: Number, input_scale: Number, out: View) -> None:
    """Compute scale * x for x > 0, and scale * alpha * (e^(x * input_scale) - 1) otherwise."""
    need_float32(x.dtype)
    numbers = w.numbers([alpha, scale, input_scale], "float32")
    compute_in(w, "etk_elu_f32", "functions.c", ("float32",), "float32", (out, x), numbers)


@kernel("aten::gelu.out")
def gelu(w: Writer, x: View, approximate: str, out: View) -> None:
    """Compute x * Phi(x) with erf or with the ``tanh`` approximation."""
    need_float32(x.dtype)
    name = "etk_gelu_tanh_f32" if approximate == "tanh" else "etk_gelu_f32"
    compute_in(w, name, "functions.c", ("float32",), "float32", (out, x))


@kernel("aten::glu.out")
def glu(w: Writer, x: View, dim: int, out: View) -> None:
    need_float32(x.dtype)
    axis = x.axis(dim)
    half = x.shape[axis] // 2
    compute_in(w, "etk_sigmoid_f32", "functions.c", ("float32",), "float32", (out, x.slice(axis, half, 2 * half)))
    _in(w, "mul", x.dtype, out, x.slice(axis, 0, half), out)


@kernel("aten::where.self_out")
def where(w: Writer, condition: View, x: View, y: View, out: View) -> None:
    dtype = promote(x.dtype, y.dtype)
    need_float32(dtype)
    wide = computing(dtype)
    function = f"etk_where_{SUFFIX[wide]}"
    compute_in(w, function, _FILE, ("bool", wide, wide), wide, (out, condition, x, y))


@kernel("aten::masked_fill.Scalar_out")
def masked_fill(w: Writer, x: View, mask: View, value: Number, out: View) -> None:
    need_float32(x.dtype)
    where(w, mask, scalar(w, wrap(value, x.dtype), computing(x.dtype)), x, out)


@kernel("aten::pow.Tensor_Scalar_out", "aten::pow.Tensor_Tensor_out", "aten::pow.Scalar_out")
def pow(w: Writer, x: View | Number, y: View | Number, out: View) -> None:
    """Raise x to the power of y in float32."""
    views = [value if isinstance(value, View) else scalar(w, value, "float32") for value in (x, y)]
    if out.dtype != "float32":
        raise Refused(
            "dtype",
            f"expected a float32 output, got {out.dtype}",
            "Convert the inputs to float32 in the model (x.float()).",
        )
    compute_in(w, "etk_pow_f32", "pow.c", ("float32", "float32"), "float32", (out, *views))
