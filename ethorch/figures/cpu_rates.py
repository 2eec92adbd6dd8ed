"""Kernel library and estimated Cortex-M55 cycles of CPU operators.

Rates are cycles per unit of work. Counted rates are instructions of firmware's C kernels (docs/cpu-kernels.md) on an emulated
Cortex-M33, at one cycle each. Assumed rates follow from the work per element in C++, with vector instructions for ``cortex_m``
only. No rate was measured on a Cortex-M55, so rates rank layers but do not predict the time on a board.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from ethorch.formats.pte_types import Value

ASSUMED = "assumed"
COUNTED = "counted"


@dataclass(frozen=True)
class Rate:
    """Cortex-M55 cycles for a unit of work.

    Attributes:
        name: Stable name, used by ``Layer.estimate``.
        unit: ``element`` of the largest tensor, ``byte`` of the outputs, or ``mac``.
        source: ``counted`` or ``assumed``, and the details.
    """

    name: str
    unit: str
    cycles: float
    source: str


def _make_assumed_rate(name: str, unit: str, cycles: float, reason: str) -> tuple[str, Rate]:
    return name, Rate(name, unit, cycles, f"{ASSUMED}: {reason}")


def _make_counted_rate(name: str, unit: str, cycles: float, inputs: str) -> tuple[str, Rate]:
    return name, Rate(name, unit, cycles, f"{COUNTED}: instructions of firmware's C kernels on a Cortex-M33, {inputs}")


RATES: Mapping[str, Rate] = MappingProxyType(
    dict(
        (
            _make_counted_rate("quantize", "element", 29, "to int8 and to int16"),
            _make_counted_rate("dequantize", "element", 13, "of int8 and of int16"),
            _make_assumed_rate("quantize.cortex_m", "element", 3, "four elements at a time, some ten vector instructions"),
            _make_assumed_rate("dequantize.cortex_m", "element", 3, "four elements at a time, some ten vector instructions"),
            _make_assumed_rate("copy", "byte", 0.5, "memcpy: loads and stores of eight bytes in two cycles each"),
            _make_counted_rate("permuted copy", "element", 12, "a permute of int8 with 8 channels"),
            _make_assumed_rate("none", "element", 0, "a view of the same memory, or arithmetic on one number"),
            _make_counted_rate("pointwise", "element", 13, "from 11 (add) to 14 (where)"),
            _make_counted_rate("function", "element", 90, "from 67 (exp) to 104 (gelu)"),
            _make_counted_rate("softmax", "element", 96, "rows of 32"),
            _make_counted_rate("reduction", "element", 12, "a mean of 64"),
            _make_counted_rate("normalization", "element", 53, "a layer norm of 64"),
            _make_counted_rate("sort", "element", 57, "the 5 greatest of 64"),
            _make_assumed_rate("float mac", "mac", 10, "portable C++: addresses of input and weight, two loads, a multiply-add"),
            _make_assumed_rate("int8 mac.cortex_m", "mac", 0.5, "CMSIS-NN with vector instructions, loads included"),
            _make_assumed_rate("other", "element", 50, "operators without a rate of their own"),
        )
    )
)

# Rate by `base_name` of an operator.
_BY_NAME: Mapping[str, str] = {
    **dict.fromkeys(("quantize_per_tensor", "quantize_per_channel", "quantize_per_token"), "quantize"),
    **dict.fromkeys(("dequantize_per_tensor", "dequantize_per_channel", "dequantize_per_token"), "dequantize"),
    **dict.fromkeys(("view", "clone", "copy", "to", "clone_dim_order", "to_dim_order", "cat", "split", "split_with_sizes",
                     "squeeze", "unsqueeze", "slice", "select", "alias", "detach", "empty", "full", "full_like", "fill",
                     "embedding", "index_select", "stack", "expand", "lift_fresh", "narrow", "unbind", "repeat", "slice_scatter",
                     "select_scatter", "zeros_like", "ones_like"), "copy"),
    **dict.fromkeys(("permute", "t", "transpose", "flip", "roll", "gather", "scatter", "index", "index_put", "constant_pad_nd",
                     "pixel_shuffle", "pixel_unshuffle", "tril", "triu", "unfold", "as_strided"), "permuted copy"),
    **dict.fromkeys(("softmax", "log_softmax"), "softmax"),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "prod", "cumsum", "var", "std",
                     "max_pool2d_with_indices", "avg_pool2d", "adaptive_avg_pool2d", "nonzero"), "reduction"),
    **dict.fromkeys(("native_layer_norm", "native_group_norm", "native_batch_norm", "native_batch_norm_legit_no_training",
                     "rms_norm"), "normalization"),
    **dict.fromkeys(("sort", "topk"), "sort"),
    **dict.fromkeys(("exp", "log", "tanh", "sigmoid", "sin", "cos", "tan", "erf", "gelu", "silu", "pow", "sqrt", "rsqrt", "log1p",
                     "expm1", "atan", "asin", "acos", "sinh", "cosh", "atan2", "elu", "log2", "log10", "fft_r2c",
                     "fft_c2r"), "function"),
    **dict.fromkeys(("convolution", "conv2d", "linear", "mm", "bmm", "addmm", "matmul"), "float mac"),
    **dict.fromkeys(("add", "sub", "mul", "div", "neg", "abs", "relu", "clamp", "minimum", "maximum", "where", "eq", "ne", "lt",
                     "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or",
                     "bitwise_not", "bitwise_xor", "hardtanh", "leaky_relu", "floor", "ceil", "round", "trunc", "sign", "remainder",
                     "fmod", "floor_divide", "reciprocal", "isnan", "isinf", "masked_fill", "arange", "glu"), "pointwise"),
}  # fmt: skip
_MACS = frozenset(
    ("quantized_linear", "quantized_conv2d", "quantized_depthwise_conv2d", "quantized_transpose_conv2d", "quantized_batch_matmul")
)

# CMake target of ExecuTorch's library, by namespace of the operator.
_LIBRARIES: Mapping[str, str] = {
    "aten": "portable_ops_lib",
    "dim_order_ops": "portable_ops_lib",
    "quantized_decomposed": "quantized_ops_lib",
    "cortex_m": "cortex_m_ops_lib",
    "executorch_prim": "executorch",
    "et_view": "executorch",
}


def library_of(kernel: str) -> str:
    """Return the ExecuTorch library of a kernel, e.g. ``portable_ops_lib`` for ``aten::add.out``, or "" for a custom kernel."""
    return _LIBRARIES.get(kernel.partition("::")[0], "")


def base_name(operator: str) -> str:
    """Return the name without namespace, overload, outer underscores and ``_copy``.

    ``aten::view_copy.out`` and ``aten.view.default`` become ``view``.
    """
    name = operator.rpartition("::")[2]
    if name == operator and operator.count(".") > 1:  # aten.view.default
        name = operator.split(".")[1]
    return name.partition(".")[0].strip("_").removesuffix("_copy").removesuffix("_").strip("_")


def rate_of(kernel: str) -> Rate:
    """Return the rate of a kernel, by default ``other``."""
    namespace, name = kernel.partition("::")[0], base_name(kernel)
    if namespace == "executorch_prim":
        return RATES["none"]
    if namespace == "cortex_m":
        if name in _MACS:
            return RATES["int8 mac.cortex_m"]
        if f"{name.removesuffix('_per_tensor')}.cortex_m" in RATES:
            return RATES[f"{name.removesuffix('_per_tensor')}.cortex_m"]
        name = name.removeprefix("quantized_")
    return RATES[_BY_NAME.get(name, "other")]


def estimate(kernel: str, inputs: list[Value], outputs: list[Value], macs: int) -> int:
    """Estimate the Cortex-M55 cycles of one kernel call.

    Args:
        macs: Multiply-accumulates, from :func:`macs_of`.
    """
    rate = rate_of(kernel)
    if base_name(kernel) == "index_put" and kernel.endswith("_"):  # in place: moves only the values
        inputs, outputs = inputs[-1:], []
    if rate.unit == "byte":
        return round(rate.cycles * sum(value.nbytes for value in outputs))
    if rate.unit == "mac":
        return round(rate.cycles * macs)
    return round(rate.cycles * max((prod(value.shape) for value in (*inputs, *outputs)), default=0))


def macs_of(kernel: str, inputs: list[Value], outputs: list[Value]) -> int:
    """Count the multiply-accumulates of a call; 0 for kernels that are not rated per MAC.

    Each output element needs the product of the weight's axes, except the first.
    """
    if rate_of(kernel).unit != "mac" or len(inputs) < 2 or not outputs:
        return 0
    name = base_name(kernel)
    if name in ("mm", "bmm", "matmul", "quantized_batch_matmul"):
        return prod(outputs[0].shape) * inputs[0].shape[-1]
    if name == "addmm":
        return prod(outputs[0].shape) * inputs[1].shape[-1]
    return prod(outputs[0].shape) * prod(inputs[1].shape[1:])
