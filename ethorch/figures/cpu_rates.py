"""The kernel library and estimated Cortex-M55 cycles of each CPU operator.

The rates were not measured on a Cortex-M55. Use them to rank layers, not to predict the time on a board.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from ethorch.formats.pte_types import Value
from ethorch.targets.cpu_operators import CPU_OPERATORS, base_name

ASSUMED = "assumed"
COUNTED = "counted"


@dataclass(frozen=True)
class Rate:
    """The Cortex-M55 cycles for one unit of work.

    Attributes:
        name: Stable name, used by ``Layer.estimate``.
        unit: Unit of work: ``element`` of the largest tensor, ``byte`` of the outputs, or ``mac``.
        source: Text that starts with ``counted`` (instructions of the firmware's C kernels on an emulated Cortex-M33) or
            ``assumed`` (derived from the work per unit).
    """

    name: str
    unit: str
    cycles: float
    source: str


def _make_assumed_rate(name: str, unit: str, cycles: float, reason: str) -> tuple[str, Rate]:
    return name, Rate(name, unit, cycles, f"{ASSUMED}: {reason}")


def _make_counted_rate(name: str, unit: str, cycles: float, inputs: str) -> tuple[str, Rate]:
    return name, Rate(name, unit, cycles, f"{COUNTED}: instructions executed by the firmware's C kernels on a Cortex-M33, {inputs}")


RATES: Mapping[str, Rate] = MappingProxyType(
    dict(
        (
            _make_counted_rate("quantize", "element", 29, "to int8 and int16"),
            _make_counted_rate("dequantize", "element", 13, "from int8 and int16"),
            _make_assumed_rate("quantize.cortex_m", "element", 3, "about ten vector instructions for four elements"),
            _make_assumed_rate("dequantize.cortex_m", "element", 3, "about ten vector instructions for four elements"),
            _make_assumed_rate("copy", "byte", 0.5, "memcpy with eight-byte loads and stores that take two cycles each"),
            _make_counted_rate("permuted copy", "element", 12, "an int8 permute with 8 channels"),
            _make_assumed_rate("none", "element", 0, "a view of the same memory, or arithmetic on a single number"),
            _make_counted_rate("pointwise", "element", 13, "from 11 (add) to 14 (where)"),
            _make_counted_rate("function", "element", 90, "from 67 (exp) to 104 (gelu)"),
            _make_counted_rate("softmax", "element", 96, "rows of 32 elements"),
            _make_counted_rate("reduction", "element", 12, "mean over 64 elements"),
            _make_counted_rate("normalization", "element", 53, "layer norm over 64 elements"),
            _make_counted_rate("sort", "element", 57, "top 5 of 64 elements"),
            _make_assumed_rate("float mac", "mac", 10, "portable C++: two address computations, two loads, one multiply-add"),
            _make_assumed_rate("int8 mac.cortex_m", "mac", 0.5, "CMSIS-NN with vector instructions, including loads"),
            _make_assumed_rate("other", "element", 50, "operators without a specific rate"),
        )
    )
)

# CMake target of the ExecuTorch library for each operator namespace.
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


def rate_of(kernel: str) -> Rate:
    """Return the rate of a kernel, or the default rate ``other``."""
    namespace, name = kernel.partition("::")[0], base_name(kernel)
    if namespace == "executorch_prim":
        return RATES["none"]
    if namespace == "cortex_m":
        name = name.removesuffix("_nhwc")
        if (vectorized := f"{name.removesuffix('_per_tensor')}.cortex_m") in RATES:
            return RATES[vectorized]
        name = name if name in CPU_OPERATORS else name.removeprefix("quantized_")
    return RATES[CPU_OPERATORS[name].rate if name in CPU_OPERATORS else "other"]


def estimate(kernel: str, inputs: list[Value], outputs: list[Value], macs: int) -> int:
    """Estimate the Cortex-M55 cycles of one kernel call."""
    rate = rate_of(kernel)
    if base_name(kernel) == "index_put" and kernel.endswith("_"):  # the in-place operator moves only the values
        inputs, outputs = inputs[-1:], []
    if rate.unit == "byte":
        return round(rate.cycles * sum(value.nbytes for value in outputs))
    if rate.unit == "mac":
        return round(rate.cycles * macs)
    return round(rate.cycles * max((prod(value.shape) for value in (*inputs, *outputs)), default=0))


def macs_of(kernel: str, inputs: list[Value], outputs: list[Value], transposed: bool = False) -> int:
    """Return the number of multiply-accumulates of a call, or 0 if the kernel's rate is not per MAC.

    Args:
        transposed: Whether ``aten::convolution`` is transposed, so that each input element is multiplied by a kernel.
    """
    if rate_of(kernel).unit != "mac" or len(inputs) < 2 or not outputs:
        return 0
    name = base_name(kernel).removesuffix("_nhwc")
    first, second, result = inputs[0].shape, inputs[1].shape, outputs[0].shape
    if name in ("mm", "bmm", "matmul", "quantized_batch_matmul"):
        return prod(result) * prod(first[-1:])
    if name == "addmm":
        return prod(result) * prod(second[-1:])
    if name == "quantized_depthwise_conv2d":  # weights [1, H, W, O]
        return prod(result) * prod(second[1:3])
    if name == "quantized_transpose_conv2d":  # weights [O, H, W, I]
        return prod(first) * prod(second[:3])
    return prod(first if transposed else result) * prod(second[1:])
