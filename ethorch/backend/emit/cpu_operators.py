"""Replace CPU operators with the operators that ExecuTorch's lowering writes.

The column ``form`` of ``ethorch/targets/cpu_operators.csv`` selects an operator's replacement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ethorch.lower.fx.node import arguments

Replacement = tuple[Any, tuple[Any, ...]]  # an operator and its arguments
_ops = torch.ops.aten


def _dim(node: Node, dim: int) -> int:
    rank = node.args[0].meta["val"].dim()  # type: ignore[union-attr]
    return dim % rank if rank else 0


def _permute(node: Node, first: int, second: int) -> Replacement:
    order = list(range(node.meta["val"].dim()))
    if order:
        first, second = _dim(node, first), _dim(node, second)
        order[first], order[second] = order[second], order[first]
    return _ops.permute_copy.default, (node.args[0], order)


def _transpose(node: Node) -> Replacement:
    (_, first, second), _ = arguments(node)
    return _permute(node, first, second)


def _squeeze(node: Node) -> Replacement:
    x, *rest = arguments(node)[0]
    dims = rest[0] if rest else [k for k, extent in enumerate(x.meta["val"].shape) if extent == 1]
    return _ops.squeeze_copy.dims, (x, list(dims) if isinstance(dims, (list, tuple)) else [dims])


def _copy_view(node: Node) -> Replacement:
    op = node.target
    packet = getattr(_ops, f"{op._overloadpacket.__name__}_copy")  # type: ignore[union-attr]
    return getattr(packet, op._overloadname), arguments(node)[0]  # type: ignore[union-attr]


def _slice(node: Node) -> Replacement | None:
    is_whole = node.args[0].meta["val"].shape == node.meta["val"].shape  # type: ignore[union-attr]
    return None if is_whole and arguments(node)[0][4] == 1 else _copy_view(node)


def _arange(node: Node) -> Replacement:
    bounds = (0, *node.args) if len(node.args) == 1 else node.args
    return _ops.arange.start_step, (*bounds, 1)[:3]


#: Form -> function that returns the replacement, or None if the result equals the operand.
REPLACEMENTS: dict[str, Callable[[Node], Replacement | None]] = {
    "copy_view": _copy_view,
    "squeeze": _squeeze,
    "slice": _slice,
    "t": lambda node: _permute(node, 0, 1),
    "transpose": _transpose,
    "softmax": lambda node: (_ops._softmax.default, (*node.args[:2], False)),
    "log_softmax": lambda node: (_ops._log_softmax.default, (*node.args[:2], False)),
    "arange": _arange,
    "clamp": lambda node: (_ops.clamp.default, arguments(node)[0]),
    "clamp_max": lambda node: (_ops.clamp.default, (node.args[0], None, node.args[1])),
}
