"""Create views of tensors, and write new values of a view back to its tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.fx import Node

from ethorch.lower.fx.aten_builder import shape_of

aten = torch.ops.aten

#: PyTorch names of views, grouped by their inverse.
_SAME_ORDER = {
    "view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as",
    "_reshape_alias", "ravel",
}  # fmt: skip
_PERMUTATIONS = {
    "permute", "transpose", "t", "movedim", "moveaxis", "swapaxes", "swapdims", "numpy_T", "matrix_H", "mT", "mH", "adjoint",
}  # fmt: skip
_IDENTITIES = {
    "alias", "detach", "contiguous", "to", "dropout", "feature_dropout", "alpha_dropout", "lift_fresh", "type_as", "positive",
    "resolve_conj", "resolve_neg", "expand", "expand_as", "atleast_1d",
}  # fmt: skip
#: In-place operators that only change the shape.
RESHAPE_IN_PLACE = {"squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_"}

#: Function ``emit(target, *args)`` that adds a node to the graph.
Emit = Callable[..., Node]


@dataclass(frozen=True)
class ViewStep:
    """A view operation.

    Attributes:
        key: Key by which equal views of a tensor are recognized.
        take: Function from the node of a tensor to the node of the view.
        put: Function from (tensor, new value of the view) to the updated tensor.
    """

    key: tuple[Any, ...]
    take: Callable[[Node], Node]
    put: Callable[[Node, Node], Node]


def view_step(node: Node, source: Node, shape: tuple[int, ...], emit: Emit, refuse: Callable[[str], NoReturn]) -> ViewStep:
    """Return the view step from ``source`` to ``node``.

    Args:
        node, source, shape: View operator, the tensor that it views, and the shape of that tensor.
        emit: Function that adds a node when the view is created or written back.
        refuse: Function that raises an error for a view that cannot be written back.
    """
    assert isinstance(node.target, torch._ops.OpOverload)
    name = name_of(node)
    if name in RESHAPE_IN_PLACE:
        name = name[:-1]
    if name in ("slice", "narrow"):
        return _slice_view(node, name, shape, emit)
    if name == "select":
        dim = argument(node, "dim") % len(shape)
        return select_step(shape, dim, argument(node, "index") % shape[dim], emit)
    if name in _SAME_ORDER:
        shape_of_view = list(shape_of(node))
        return ViewStep(
            ("view", *map(str, shape_of_view)),  # dynamic sizes are not hashable
            lambda x: emit(aten.reshape.default, x, shape_of_view),
            lambda _, new: emit(aten.reshape.default, new, list(shape)),
        )
    if name in _PERMUTATIONS:
        order = _permutation(node, len(shape))
        back = [order.index(dim) for dim in range(len(order))]
        return ViewStep(
            ("permute", *order),
            lambda x: emit(aten.permute.default, x, order),
            lambda _, new: emit(aten.permute.default, new, back),
        )
    if name in _IDENTITIES and shape_of(node) == shape:
        return ViewStep(("same",), lambda x: x, lambda _, new: new)
    if name == "diagonal":
        rest = [argument(node, key) for key in ("offset", "dim1", "dim2")]
        return ViewStep(
            ("diagonal", *rest),
            lambda x: emit(aten.diagonal_copy.default, x, *rest),
            lambda old, new: emit(aten.diagonal_scatter.default, old, new, *rest),
        )
    return one_way_step(node, source, emit, refuse)


def allow_other_strides(node: Node) -> None:
    """Replace ``view``, which requires certain strides, with ``reshape``."""
    if node.target is aten.view.default:
        node.target = aten.reshape.default


def one_way_step(node: Node, source: Node, emit: Emit, refuse: Callable[[str], NoReturn], index: int | None = None) -> ViewStep:
    """Return a view step whose view cannot be written back."""
    target, args, kwargs = node.target, node.args, node.kwargs

    def take(x: Node) -> Node:
        def follow(arg: Node) -> Node:
            return x if arg is source else arg

        output = emit(target, *torch.fx.map_arg(args, follow), **torch.fx.map_arg(kwargs, follow))
        return output if index is None else emit(operator.getitem, output, index)

    def put(_: Node, __: Node) -> Node:
        refuse(f"the operator writes through a view created by {target}")

    return ViewStep((str(target), str(args), str(kwargs), index), take, put)


def split_steps(node: Node, shape: tuple[int, ...], emit: Emit) -> list[ViewStep] | None:
    """Return the view steps for the outputs of split, chunk, unbind and similar operators, or None for other operators."""
    name, values = name_of(node), node.meta["val"]
    if name == "unbind":
        dim = argument(node, "dim") % len(shape)
        return [select_step(shape, dim, index, emit) for index in range(len(values))]
    if name not in ("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk"):
        return None
    dim = argument(node, "dim") % len(shape)
    steps, start = [], 0
    for value in values:
        end = start + int(value.shape[dim])
        steps.append(slice_step(shape, dim, start, end, 1, emit))
        start = end
    return steps


def _slice_view(node: Node, name: str, shape: Sequence[int], emit: Emit) -> ViewStep:
    dim = argument(node, "dim") % len(shape)
    computed = (argument(node, "start"), argument(node, "length" if name == "narrow" else "end"))
    if any(isinstance(bound, Node) for bound in computed):
        return _slice_of_computed_bounds(node, name, dim, emit)
    if name == "narrow":
        start, step = argument(node, "start"), 1
        start = start if start >= 0 else start + shape[dim]
        end = start + argument(node, "length")
    else:
        bounds = slice(argument(node, "start"), argument(node, "end"), argument(node, "step"))
        start, end, step = bounds.indices(shape[dim])
    return slice_step(shape, dim, start, end, step, emit)


def _slice_of_computed_bounds(node: Node, name: str, dim: int, emit: Emit) -> ViewStep:
    if name == "narrow":
        start, step = argument(node, "start"), 1
        end = emit(operator.add, start, argument(node, "length"))
    else:
        start, end, step = (argument(node, name) for name in ("start", "end", "step"))
    return ViewStep(
        ("slice", dim, start, end, step),
        lambda x: emit(aten.slice.Tensor, x, dim, start, end, step),
        lambda old, new: emit(aten.slice_scatter.default, old, new, dim, start, end, step),
    )


def slice_step(shape: Sequence[int], dim: int, start: int, end: int, step: int, emit: Emit) -> ViewStep:
    end = max(start, end)

    def take(x: Node) -> Node:
        return emit(aten.slice.Tensor, x, dim, start, end, step)

    def put(old: Node, new: Node) -> Node:
        if step != 1:
            return emit(aten.slice_scatter.default, old, new, dim, start, end, step)
        parts = [emit(aten.slice.Tensor, old, dim, 0, start)] if start else []
        parts.append(new)
        if end < shape[dim]:
            parts.append(emit(aten.slice.Tensor, old, dim, end, shape[dim]))
        return emit(aten.cat.default, parts, dim) if len(parts) > 1 else new

    return ViewStep(("slice", dim, start, end, step), take, put)


def select_step(shape: Sequence[int], dim: int, index: int, emit: Emit) -> ViewStep:
    narrow = slice_step(shape, dim, index, index + 1, 1, emit)
    return ViewStep(
        ("select", dim, index),
        lambda x: emit(aten.select.int, x, dim, index),
        lambda old, new: narrow.put(old, emit(aten.unsqueeze.default, new, dim)),
    )


def _permutation(node: Node, rank: int) -> list[int]:
    probe = torch.empty(tuple(range(2, 2 + rank)), device="meta")
    result = functional_of(node.target)(probe, *node.args[1:], **node.kwargs)
    return [int(extent) - 2 for extent in result.shape]


# --- arguments of calls -----------------------------------------------------------------------------------------------------


def name_of(node: Node) -> str:
    """Return the operator's name without its namespace, e.g. ``relu_`` for ``aten::relu_``."""
    name: str = node.target._schema.name  # type: ignore[union-attr]
    return name.split("::")[1]


def argument(node: Node, name: str) -> Any:
    """Return an argument by name, or its default value."""
    for index, declared in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if declared.name == name:
            return node.args[index] if index < len(node.args) else node.kwargs.get(name, declared.default_value)
    raise KeyError(name)


def functional_of(target: Any) -> Any:
    """Return the functional form of an in-place operator, with the same argument types, or None if PyTorch has no such form.

    The names may differ: the functional form of ``aten.pow_.Scalar`` is ``aten.pow.Tensor_Scalar``.
    """
    packet = getattr(aten, target._schema.name.split("::")[1].removesuffix("_"), None)
    if packet is None:
        return None

    def types(overload: Any) -> list[str]:
        return [str(argument.type) for argument in overload._schema.arguments]

    matches = [getattr(packet, name) for name in packet.overloads() if types(getattr(packet, name)) == types(target)]
    return next((overload for overload in matches if overload._overloadname == target._overloadname), next(iter(matches), None))
