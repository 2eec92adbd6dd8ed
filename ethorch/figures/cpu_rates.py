"""What operators on the CPU cost: the kernel to link, and an estimate of its cycles on a Cortex-M55.

A rate says how many cycles a kernel takes for each of its units of work. None was measured on a Cortex-M55. Those that are counted
are instructions of the C kernels that firmware has (docs/cpu-kernels.md), on an emulated Cortex-M33, a cycle each. The others are
assumed, from what the kernel does with an element in C++ without vector instructions, or, of ``cortex_m``, with them. They tell a
layer that matters from one that does not; they predict no board.
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
    """Cycles of a Cortex-M55 for a unit of work.

    Attributes:
        name: stable name, which a layer's ``estimate`` gives.
        unit: what is counted: ``element`` of the largest tensor, ``byte`` of the outputs, ``mac``.
        cycles: for each unit.
        source: ``counted`` with what was, or ``assumed`` with why.
    """

    name: str
    unit: str
    cycles: float
    source: str


def _assumed(name: str, unit: str, cycles: float, why: str) -> tuple[str, Rate]:
    return name, Rate(name, unit, cycles, f"{ASSUMED}: {why}")


def _counted(name: str, unit: str, cycles: float, what: str) -> tuple[str, Rate]:
    return name, Rate(name, unit, cycles, f"{COUNTED}: instructions of firmware's C kernels on a Cortex-M33, {what}")


RATES: Mapping[str, Rate] = MappingProxyType(
    dict(
        (
            _counted("quantize", "element", 29, "to int8 and to int16"),
            _counted("dequantize", "element", 13, "of int8 and of int16"),
            _assumed("quantize.cortex_m", "element", 3, "four elements at a time, some ten vector instructions"),
            _assumed("dequantize.cortex_m", "element", 3, "four elements at a time, some ten vector instructions"),
            _assumed("copy", "byte", 0.5, "memcpy: loads and stores of eight bytes in two cycles each"),
            _counted("permuted copy", "element", 12, "a permute of int8 with 8 channels"),
            _assumed("none", "element", 0, "a view of the same memory, or arithmetic on one number"),
            _counted("pointwise", "element", 13, "from 11 (add) to 14 (where)"),
            _counted("function", "element", 90, "from 67 (exp) to 104 (gelu)"),
            _counted("softmax", "element", 96, "rows of 32"),
            _counted("reduction", "element", 12, "a mean of 64"),
            _counted("normalization", "element", 53, "a layer norm of 64"),
            _counted("sort", "element", 57, "the 5 greatest of 64"),
            _assumed("float mac", "mac", 10, "portable C++: addresses of input and weight, two loads, a multiply-add"),
            _assumed("int8 mac.cortex_m", "mac", 0.5, "CMSIS-NN with vector instructions, loads included"),
            _assumed("other", "element", 50, "what no other rate is for"),
        )
    )
)

# First part of an operator's name, without namespace, underscores and "_copy" -> its rate.
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

# Namespace of an operator -> ExecuTorch's library that firmware links for it, as its CMake files call them.
_LIBRARIES: Mapping[str, str] = {
    "aten": "portable_ops_lib",
    "dim_order_ops": "portable_ops_lib",
    "quantized_decomposed": "quantized_ops_lib",
    "cortex_m": "cortex_m_ops_lib",
    "executorch_prim": "executorch",
    "et_view": "executorch",
}


def library_of(kernel: str) -> str:
    """ExecuTorch's library that has a kernel: of ``aten::add.out`` ``portable_ops_lib``; empty for a kernel of the user's own."""
    return _LIBRARIES.get(kernel.partition("::")[0], "")


def base_name(operator: str) -> str:
    """``view`` of ``aten::view_copy.out`` and ``aten.view.default``: no namespace, overload, outer underscores, ``_copy``."""
    name = operator.rpartition("::")[2]
    if name == operator and operator.count(".") > 1:  # aten.view.default
        name = operator.split(".")[1]
    return name.partition(".")[0].strip("_").removesuffix("_copy").removesuffix("_").strip("_")


def rate_of(kernel: str) -> Rate:
    """The rate of a kernel; ``other`` where there is none for it."""
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
    """Cycles of a Cortex-M55 for one call of a kernel.

    Args:
        inputs, outputs: its tensors.
        macs: multiply-accumulates it does, where that is known.
    """
    rate = rate_of(kernel)
    if base_name(kernel) == "index_put" and kernel.endswith("_"):  # in place: it moves the values and nothing else
        inputs, outputs = inputs[-1:], []
    if rate.unit == "byte":
        return round(rate.cycles * sum(value.nbytes for value in outputs))
    if rate.unit == "mac":
        return round(rate.cycles * macs)
    return round(rate.cycles * max((prod(value.shape) for value in (*inputs, *outputs)), default=0))


def macs_of(kernel: str, inputs: list[Value], outputs: list[Value]) -> int:
    """Multiply-accumulates of a call: for each element of the output, the product of the weights' axes but the first."""
    if rate_of(kernel).unit != "mac" or len(inputs) < 2 or not outputs:
        return 0
    name = base_name(kernel)
    if name in ("mm", "bmm", "matmul", "quantized_batch_matmul"):
        return prod(outputs[0].shape) * inputs[0].shape[-1]
    if name == "addmm":
        return prod(outputs[0].shape) * inputs[1].shape[-1]
    return prod(outputs[0].shape) * prod(inputs[1].shape[1:])
