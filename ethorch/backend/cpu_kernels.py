"""Check at compile time that ExecuTorch has a kernel for each CPU operator.

A missing kernel causes only a warning, because users can link their own kernels.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from executorch.exir.operator.convert import to_out_variant
from torch.fx import Node

from ethorch.lower.fx.node import ASSERTIONS, flat, op_name
from ethorch.lower.ops.spec import find
from ethorch.lower.replacements import OTHERS, instead_of
from ethorch.support.errors import Reason
from ethorch.targets.cpu_operators import CPU_OPERATORS, base_name

#: Maximum rank of the result of ExecuTorch's aten.convolution kernel.
_MAX_CONVOLUTION_RANK = 4
_REAL_PARTS = "Represent each complex tensor by two real tensors (real and imaginary parts), e.g. return torch.view_as_real(y)."
#: Namespaces of operators that ExecuTorch or ``products_on_cpu`` inserts.
_ITS_OWN = ("quantized_decomposed", "executorch_prim", "dim_order_ops", "higher_order", "cortex_m", "ethorch")


def without_kernel(node: Node) -> Reason | None:
    """Return None if ExecuTorch's desktop and portable libraries both have a kernel that supports a node, or else the reason."""
    name = op_name(node.target)
    op = getattr(node.target, "_op", node.target)
    if not isinstance(op, torch._ops.OpOverload) or name in ASSERTIONS:
        return None
    if op.namespace not in _ITS_OWN:
        kernel = kernel_of(node.target)
        if kernel is None:
            remedy = f"{_remedy(node)} Or register an out variant in PyTorch and a kernel in the runtime."
            return Reason("cpu.no_out_variant", f"{name} has no out variant, so ExecuTorch cannot write it to a program", remedy)
        if kernel not in registered_kernels():
            return Reason("cpu.no_kernel", f"ExecuTorch has no CPU kernel {kernel}", f"{_remedy(node)} Or link your own kernel.")
    values = [value.meta.get("val") for value in (node, *node.all_input_nodes)]
    if any(isinstance(x, torch.Tensor) and x.dtype.is_complex for x in flat(values)):
        base = base_name(name)
        shapes = {x.shape for x in values if isinstance(x, torch.Tensor)}
        alike = len(shapes) == 1 and all(isinstance(arg, Node) for arg in node.args)
        if base not in CPU_OPERATORS or not CPU_OPERATORS[base].has_complex_kernel or (base in ("add", "sub", "mul") and not alike):
            text = f"ExecuTorch's CPU kernel for {name} does not support complex tensors"
            return Reason("cpu.complex", text, _REAL_PARTS)
    if name == "aten._fft_r2c.default" and node.args[3] is False:
        return Reason("cpu.fft", f"ExecuTorch's CPU kernel for {name} computes only half of the spectrum (onesided)", _REAL_PARTS)
    if name == "aten.convolution.default" and (value := node.meta.get("val")) is not None and value.dim() > _MAX_CONVOLUTION_RANK:
        text = f"ExecuTorch's CPU kernel for {name} supports one or two spatial axes, not three"
        return Reason("cpu.convolution_3d", text, f"{_remedy(node)} Or apply Conv2d or ConvTranspose2d to each plane.")
    if op.namespace == "aten" and (portable := _portable()) and kernel_of(node.target) not in portable:
        return Reason(
            "cpu.not_portable",
            f"ExecuTorch's desktop library contains the kernel {kernel_of(node.target)}, but its portable library does not",
            f"{_remedy(node)} Or link your own kernel into the firmware.",
        )
    return None


def _remedy(node: Node) -> str:
    replacement = instead_of(op_name(node.target))
    if find(node.target) is None:
        return replacement
    return "The operator runs on the NPU if it is quantized and not refused." + ("" if replacement == OTHERS else f" {replacement}")


@lru_cache(maxsize=4096)
def kernel_of(target: Any) -> str | None:
    """Return the kernel name of an edge operator, e.g. ``aten::sort.values``, or None if the operator has no out variant."""
    op = getattr(target, "_op", target)
    if any("Tensor" in str(result.type) for result in op._schema.returns) and not op._schema.is_mutable:
        try:
            op = target.to_out_variant() if hasattr(target, "to_out_variant") else to_out_variant(op)[0]
        except (AssertionError, RuntimeError):
            return None
    return _name(op)


def _name(op: Any) -> str:
    return str(op._schema.name) + (f".{op._schema.overload_name}" if op._schema.overload_name else "")


def registered_kernels() -> frozenset[str]:
    from executorch.runtime import Runtime

    return frozenset(Runtime.get().operator_registry.operator_names)


@lru_cache(maxsize=1)
def _portable() -> frozenset[str]:
    import executorch.kernels

    listed: set[str] = {"aten::linear.out", "aten::sym_size.int", "aten::sym_numel", "aten::_local_scalar_dense"}
    for folder in executorch.kernels.__path__:
        for path in Path(folder).glob("portable/*.yaml"):
            listed |= {
                name if "::" in name else f"aten::{name}"
                for name in re.findall(r"^- (?:op|func): ([\w:.]+)", path.read_text(), re.MULTILINE)
            }
    return frozenset(listed) if len(listed) > 100 else frozenset()
