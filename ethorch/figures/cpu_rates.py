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
from ethorch.targets.cpu_operators import CPU_OPERATORS, base_name

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


def rate_of(kernel: str) -> Rate:
    """Return the rate of a kernel, by default ``other``."""
    namespace, name = kernel.partition("::")[0], base_name(kernel)
    if namespace == "executorch_prim":
        return RATES["none"]
    if namespace == "cortex_m":
        if (vectorized := f"{name.removesuffix('_per_tensor')}.cortex_m") in RATES:
            return RATES[vectorized]
        name = name if name in CPU_OPERATORS else name.removeprefix("quantized_")
    return RATES[CPU_OPERATORS[name].rate if name in CPU_OPERATORS else "other"]


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
