"""Find operators on the CPU that ExecuTorch has no kernel for, while compiling: a runtime could only refuse the file.

``executorch.runtime`` in this process knows the kernels of its libraries for computers, and of libraries that were loaded beside
them. Firmware links the portable ones, which are fewer; the wheel lists them. It is a warning and no error: the file is valid, and
which kernels there are is decided when the runtime is linked.
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

#: Operators whose kernels of ExecuTorch 1.5 take complex tensors, those of two tensors if the shapes are equal; a test runs each.
TAKE_COMPLEX = frozenset(
    (
        "abs", "add", "bmm", "cat", "expand_copy", "_fft_c2r", "_fft_r2c", "mul", "permute_copy", "select_copy", "slice_copy",
        "squeeze_copy", "sub", "sum", "unsqueeze_copy", "view_as_real_copy", "view_copy", "_clone_dim_order",
    )
)  # fmt: skip
#: Batch, channels and spatial axes that ExecuTorch's kernel of aten.convolution takes at most.
_MOST_AXES_OF_CONVOLUTION = 4
#: Namespaces of what ExecuTorch itself puts into programs, and of ``products_on_cpu``.
_ITS_OWN = ("quantized_decomposed", "executorch_prim", "dim_order_ops", "higher_order", "cortex_m", "ethorch")


def without_kernel(node: Node) -> Reason | None:
    """Why ExecuTorch cannot compute a node of an edge program on a CPU, or cannot in firmware; None where it can."""
    name = op_name(node.target)
    op = getattr(node.target, "_op", node.target)
    if not isinstance(op, torch._ops.OpOverload) or name in ASSERTIONS:
        return None
    if op.namespace not in _ITS_OWN:
        kernel = kernel_of(node.target)
        if kernel is None:
            way_out = (
                f"{_instead_of(node)} With an out variant registered in PyTorch and a kernel in the runtime it stays as it is."
            )
            return Reason("cpu.no_out_variant", f"{name} has no out variant, so ExecuTorch cannot write it to a program", way_out)
        if kernel not in registered():
            return Reason(
                "cpu.no_kernel", f"ExecuTorch has no CPU kernel {kernel}", f"{_instead_of(node)} Or link your own kernel."
            )
    values = [value.meta.get("val") for value in (node, *node.all_input_nodes)]
    if any(isinstance(x, torch.Tensor) and x.dtype.is_complex for x in flat(values)):
        base = name.split(".")[1]
        shapes = {x.shape for x in values if isinstance(x, torch.Tensor)}
        alike = len(shapes) == 1 and all(isinstance(arg, Node) for arg in node.args)
        if base not in TAKE_COMPLEX or (base in ("add", "sub", "mul") and not alike):
            text = f"ExecuTorch's CPU kernel of {name} takes no complex tensors"
            return Reason("cpu.complex", text, "Keep real and imaginary parts as two real tensors (torch.view_as_real).")
    if (
        name == "aten.convolution.default"
        and (value := node.meta.get("val")) is not None
        and value.dim() > _MOST_AXES_OF_CONVOLUTION
    ):
        text = f"ExecuTorch's CPU kernel of {name} takes maps of one and two axes, not of three"
        return Reason("cpu.convolution_3d", text, f"{_instead_of(node)} Or compute planes by Conv2d or ConvTranspose2d.")
    if op.namespace == "aten" and (portable := _portable()) and kernel_of(node.target) not in portable:
        return Reason(
            "cpu.not_portable",
            f"ExecuTorch has the CPU kernel {kernel_of(node.target)} in its library for computers only, not in the portable one",
            f"{_instead_of(node)} Or link that kernel into the firmware.",
        )
    return None


def _instead_of(node: Node) -> str:
    """Return the remedy in the model."""
    known, other = find(node.target) is not None, instead_of(op_name(node.target))
    return "It runs on the NPU if it is quantized and not refused." + ("" if other == OTHERS else f" {other}") if known else other


@lru_cache(maxsize=4096)
def kernel_of(target: Any) -> str | None:
    """The kernel that ExecuTorch calls for an edge program's operator, as ``aten::sort.values``; None: it has no out variant."""
    op = getattr(target, "_op", target)
    if any("Tensor" in str(result.type) for result in op._schema.returns) and not op._schema.is_mutable:
        try:
            op = target.to_out_variant() if hasattr(target, "to_out_variant") else to_out_variant(op)[0]
        except (AssertionError, RuntimeError):
            return None
    return _name(op)


def _name(op: Any) -> str:
    return str(op._schema.name) + (f".{op._schema.overload_name}" if op._schema.overload_name else "")


def registered() -> frozenset[str]:
    """Return the kernels of this process's runtime, those of libraries that the user loaded among them."""
    from executorch.runtime import Runtime

    return frozenset(Runtime.get().operator_registry.operator_names)


@lru_cache(maxsize=1)
def _portable() -> frozenset[str]:
    """Portable kernels, which firmware links; none where the wheel does not list them."""
    import executorch.kernels

    listed: set[str] = {"aten::linear.out", "aten::sym_size.int", "aten::sym_numel", "aten::_local_scalar_dense"}
    for folder in executorch.kernels.__path__:
        for path in Path(folder).glob("portable/*.yaml"):
            listed |= {
                name if "::" in name else f"aten::{name}"
                for name in re.findall(r"^- (?:op|func): ([\w:.]+)", path.read_text(), re.MULTILINE)
            }
    return frozenset(listed) if len(listed) > 100 else frozenset()
