"""CPU operators that the writer supports, and the operators that ExecuTorch replaces them by.

Tests compare each with ExecuTorch's lowering, which may decompose operators that are not listed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch.fx import Node

from ethorch.backend.products_on_cpu import QUANTIZED_PRODUCT
from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, arguments

_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh", "elu", "erf", "exp", "expm1",
    "floor", "gelu", "hardtanh", "isinf", "isnan", "leaky_relu", "log", "log10", "log1p", "log2", "logical_not", "neg",
    "reciprocal", "relu",
    "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
_BINARY = (
    "add.Tensor", "atan2", "bitwise_and.Scalar", "bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor", "div.Tensor",
    "div.Tensor_mode", "fmod.Tensor", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "mul.Tensor", "pow.Scalar",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "remainder.Scalar", "remainder.Tensor", "sub.Tensor",
    *(f"{name}.{kind}" for name in ("eq", "ge", "gt", "le", "lt", "ne") for kind in ("Scalar", "Tensor")),
)  # fmt: skip
_REDUCTIONS = (
    "amax", "amin", "any", "any.dim", "argmax", "argmin", "cumsum", "max.dim", "mean", "mean.dim", "min.dim", "prod.dim_int",
    "sum.dim_IntList", "topk",
)  # fmt: skip
_MOVES = (
    "cat", "clamp", "constant_pad_nd", "embedding", "flip", "gather", "index.Tensor", "index_put", "index_select", "repeat",
    "scatter.src", "scatter.value", "scatter_add", "slice_scatter", "where.self",
)  # fmt: skip
_OTHERS = ("_log_softmax", "_softmax", "addmm", "bmm", "full", "full_like", "mm", "scalar_tensor")


def _aten(*names: str) -> frozenset[str]:
    """Return full names, e.g. ``aten.relu.default`` for ``relu`` and ``aten.add.Tensor`` for ``add.Tensor``."""
    return frozenset(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in names)


#: Operators that are written unchanged.
PLAIN = _aten(*_UNARY, *_BINARY, *_REDUCTIONS, *_MOVES, *_OTHERS) | frozenset(
    [QUANTIZED_PRODUCT, *(name for name in QUANTIZE | DEQUANTIZE if "per_tensor.default" in name)]
)
#: Operators with two operands that ExecuTorch casts to one dtype, and the kind of promotion.
PROMOTED = {
    f"aten.{name}": PROMOTION.INT_TO_FLOAT if name == "div.Tensor" else PROMOTION.DEFAULT
    for name in ("add.Tensor", "div.Tensor", "minimum.default", "mul.Tensor", "sub.Tensor")
}
#: Views with the elements in the same order. They need no instruction unless the program returns them.
VIEWS = _aten("_unsafe_view", "flatten.using_ints", "reshape", "unflatten.int", "view", "view_as")
#: Operators that change only the dtype.
CASTS = _aten("_to_copy", "to.device", "to.dtype", "type_as")
#: Copies.
CLONES = _aten("clone")

Call = tuple[Any, tuple[Any, ...]]  # an operator and its arguments
_ops = torch.ops.aten


def _dim(node: Node, dim: int) -> int:
    """Return a non-negative dimension of the first operand."""
    rank = node.args[0].meta["val"].dim()  # type: ignore[union-attr]
    return dim % rank if rank else 0


def _permute(node: Node, first: int, second: int) -> Call:
    order = list(range(node.meta["val"].dim()))
    if order:
        first, second = _dim(node, first), _dim(node, second)
        order[first], order[second] = order[second], order[first]
    return _ops.permute_copy.default, (node.args[0], order)


def _transpose(node: Node) -> Call:
    (_, first, second), _ = arguments(node)
    return _permute(node, first, second)


def _squeeze(node: Node) -> Call:
    x, *rest = arguments(node)[0]
    dims = rest[0] if rest else [k for k, extent in enumerate(x.meta["val"].shape) if extent == 1]
    return _ops.squeeze_copy.dims, (x, list(dims) if isinstance(dims, (list, tuple)) else [dims])


def _copy_view(node: Node) -> Call:
    """Return the ``_copy`` variant of an operator that returns a view."""
    op = node.target
    packet = getattr(_ops, f"{op._overloadpacket.__name__}_copy")  # type: ignore[union-attr]
    return getattr(packet, op._overloadname), arguments(node)[0]  # type: ignore[union-attr]


def _slice(node: Node) -> Call | None:
    """Return ``slice_copy``, or None if the slice is the whole tensor."""
    is_whole = node.args[0].meta["val"].shape == node.meta["val"].shape  # type: ignore[union-attr]
    return None if is_whole and arguments(node)[0][4] == 1 else _copy_view(node)


#: Functions that return the operator and arguments that ExecuTorch writes instead, or None to use the operand.
REWRITTEN: dict[str, Callable[[Node], Call | None]] = {
    **dict.fromkeys(_aten("expand", "permute", "select.int", "unsqueeze"), _copy_view),
    **dict.fromkeys(_aten("squeeze", "squeeze.dim", "squeeze.dims"), _squeeze),
    "aten.slice.Tensor": _slice,
    "aten.t.default": lambda node: _permute(node, 0, 1),
    "aten.transpose.int": _transpose,
    "aten.softmax.int": lambda node: (_ops._softmax.default, (*node.args[:2], False)),
    "aten.log_softmax.int": lambda node: (_ops._log_softmax.default, (*node.args[:2], False)),
    "aten.arange.default": lambda node: (_ops.arange.start_step, (0, *node.args, 1)),
    "aten.arange.start": lambda node: (_ops.arange.start_step, (*node.args, 1)),
    "aten.arange.start_step": lambda node: (_ops.arange.start_step, arguments(node)[0]),
    "aten.clip.default": lambda node: (_ops.clamp.default, arguments(node)[0]),
    "aten.clamp_min.default": lambda node: (_ops.clamp.default, arguments(node)[0]),
    "aten.clamp_max.default": lambda node: (_ops.clamp.default, (node.args[0], None, node.args[1])),
}
