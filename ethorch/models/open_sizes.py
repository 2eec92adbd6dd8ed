"""Detect, describe and preserve dynamic dims of exported programs (``torch.export.Dim``)."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch.export import Dim, ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv, has_free_unbacked_symbols
from torch.utils import _pytree as pytree


class OpenSize(Exception):
    """An error raised if a dynamic size is used as a number."""


def is_dynamic(node: Node) -> bool:
    """Return True if the result or an input of ``node`` has a dynamic dim.

    Data-dependent sizes do not count. See ``lower.fx.node.shape_of_values``.
    """
    values = [operand.meta.get("val") for operand in (node, *node.all_input_nodes)]
    return any(isinstance(size, torch.SymInt) and not has_free_unbacked_symbols(size) for size in _sizes(values))


def has_open_size(tensor: torch.Tensor) -> bool:
    return any(isinstance(size, torch.SymInt) for size in tensor.shape)


def is_size(node: Node) -> bool:
    """Return True if the node's result is a number computed from dynamic sizes."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool, torch.SymFloat))


def open_shape(node: Node) -> str:
    """Return the shape of the first tensor with dynamic dims, among a node's result and inputs, e.g. ``[1, 8..128, 16]``."""
    for operand in (node, *node.all_input_nodes):
        for value in pytree.tree_leaves(operand.meta.get("val")):
            if isinstance(value, torch.Tensor) and has_open_size(value):
                return f"[{', '.join(map(_range, value.shape))}]"
    return "of dynamic shape"


def dynamic_shapes_of(program: ExportedProgram) -> list[dict[int, Any]] | None:
    """Return the dynamic dims of each input tensor, or None if all dims of all inputs are fixed.

    The dims have the program's ranges, and equal symbols share one ``Dim``.
    """
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    dims: dict[sympy.Symbol, Any] = {}
    names = (name for name in program.graph_signature.user_inputs if isinstance(name, str))
    values: list[Any] = [value for name in names if isinstance(value := nodes[name].meta.get("val"), torch.Tensor)]
    shapes = [
        {axis: _dim(size, dims, program.range_constraints) for axis, size in enumerate(x.shape) if isinstance(size, torch.SymInt)}
        for x in values
    ]
    return shapes if any(shapes) else None


def list_unlimited_dims(shapes: Sequence[dict[int, Any]]) -> list[tuple[int, int]]:
    """Return (tensor index, axis) of each dynamic dim without an upper bound."""
    return [
        (number, axis)
        for number, dims in enumerate(shapes)
        for axis, dim in dims.items()
        if dim is not Dim.AUTO and not isinstance(dim.max, int)
    ]


def in_structure(module: torch.nn.Module, inputs: tuple[Any, ...], shapes: Sequence[dict[int, Any]]) -> dict[str, Any]:
    """Return the dynamic dims, structured like the inputs of the module, for ``torch.export.export``."""
    remaining = iter(shapes)
    arguments = inspect.signature(module.forward).bind(*inputs).arguments
    return {
        name: pytree.tree_map(lambda leaf: next(remaining) if isinstance(leaf, torch.Tensor) else None, value)
        for name, value in arguments.items()
    }


@contextmanager
def suppress_guards(nodes: Iterable[Node]) -> Iterator[None]:
    """Preserve dynamic dims inside the context by preventing guards for comparisons of sizes.

    A guard for ``x.shape == y.shape`` would fix a size to its example value. Sizes that may differ compare as unequal, and are
    ordered like their example values. The code inside the context must skip nodes for which ``is_dynamic`` returns True.

    Raises:
        OpenSize: A dynamic size was used as a number.
    """
    env_by_id = {id(env): env for node in nodes for size in _sizes([node.meta.get("val")]) if (env := _shape_env(size)) is not None}
    with ExitStack() as patches:
        for env in env_by_id.values():
            patches.enter_context(patch.object(env, "evaluate_expr", _evaluator(env)))
        yield


def _evaluator(env: ShapeEnv) -> Any:
    original: Any = env.evaluate_expr

    def evaluate(expr: Any, *args: Any, **keywords: Any) -> Any:
        if any(map(env.is_unbacked_symint, getattr(expr, "free_symbols", ()))):
            return original(expr, *args, **keywords)
        hint, fallback_value = (*args, keywords.get("hint"))[0], keywords.get("fallback_value")
        decided = env._maybe_evaluate_static(expr)
        if decided is not None:
            return decided
        if fallback_value is not None:
            return sympy.true if fallback_value else sympy.false
        if isinstance(expr, (sympy.Eq, sympy.Ne)):
            return sympy.true if isinstance(expr, sympy.Ne) else sympy.false
        if not isinstance(hint, bool):
            raise OpenSize(f"expected a fixed size, got the dynamic size {expr}")
        return sympy.true if hint else sympy.false

    return evaluate


def _shape_env(size: Any) -> ShapeEnv | None:
    return size.node.shape_env if isinstance(size, (torch.SymInt, torch.SymBool, torch.SymFloat)) else None


def _sizes(values: Iterable[Any]) -> list[Any]:
    leaves = pytree.tree_leaves(list(values))
    return [size for leaf in leaves for size in (leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,))]


def _range(size: Any) -> str:
    if not isinstance(size, torch.SymInt):
        return str(size)
    bounds = size.node.shape_env.bound_sympy(size.node.expr)
    low = "" if bounds.lower <= 2 else str(bounds.lower)  # torch.export uses 2 as the default lower bound
    return f"{low}..{_upper_bound(bounds) or ''}"


def _upper_bound(bounds: Any) -> int | None:
    return int(bounds.upper) if bounds.upper.is_Integer else None


def _dim(size: torch.SymInt, dims: dict[sympy.Symbol, Any], ranges: Mapping[Any, Any]) -> Any:
    expr = size.node.expr
    symbols = sorted(expr.free_symbols, key=str)
    if len(symbols) != 1:
        return Dim.AUTO
    (symbol,) = symbols
    if symbol not in dims:
        bounds = ranges.get(symbol) or size.node.shape_env.bound_sympy(symbol)
        dims[symbol] = Dim(f"d{len(dims)}_{symbol}", min=int(bounds.lower), max=_upper_bound(bounds))
    if expr == symbol:
        return dims[symbol]
    slope = expr.diff(symbol)
    if not slope.is_Integer:
        return Dim.AUTO
    return int(slope) * dims[symbol] + int(expr - slope * symbol)
