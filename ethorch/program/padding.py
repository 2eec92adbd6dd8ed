"""Find the input axes along which padding does not change the results for the original elements.

Each operator runs without padding and with two different paddings, and its results are compared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from ethorch.lower.fx.control_flow import is_control_flow
from ethorch.lower.fx.export import export_module
from ethorch.lower.fx.node import is_in_place, op_name
from ethorch.models.load import UserModel, in_eval_mode
from ethorch.program.shapes import samples_like
from ethorch.support.errors import EthorchError
from ethorch.targets.selection import Padding, Places
from ethorch.targets.settings import Shapes

logger = logging.getLogger(__name__)

_FAR = 1e4
#: Position of the axis in the arguments of operators that index their first operand. None if the axis is not an argument.
_INDEXING = {
    "aten.gather.default": 1, "aten.index_select.default": 1, "aten.scatter.src": 1, "aten.scatter.value": 1,
    "aten.scatter_add.default": 1, "aten.scatter_reduce.two": 1, "aten.index_add.default": 1, "aten.index_copy.default": 1,
    "aten.index_fill.int_Scalar": 1, "aten.take_along_dim.default": 2, "aten.index.Tensor": None, "aten.index_put.default": None,
    "aten.take.default": None, "aten.embedding.default": None, "aten.masked_select.default": None,
}  # fmt: skip


def paddings_of(user: UserModel, shapes: Sequence[Shapes]) -> tuple[Padding, ...]:
    """Return the input axes whose sizes differ in ``shapes`` and that can be padded.

    Args:
        shapes: Input shapes of each method, smallest first.
    """
    axes = []
    for places, sizes in _axes(shapes):
        small, large = (_with_sizes(shapes[0], places, size) for size in (min(sizes), max(sizes)))
        outputs = _outputs_along(user, small, large, (min(sizes), max(sizes)))
        if outputs is not None:
            axes.append(Padding(places, outputs))
    return tuple(axes)


def _axes(shapes: Sequence[Shapes]) -> Iterator[tuple[Places, list[int]]]:
    """Yield (positions in the inputs, sizes) for each axis whose sizes differ between methods."""
    # Input axes with proportional sizes are treated as one axis.
    columns = {
        (number, axis): [tensor_shapes[number][axis] for tensor_shapes in shapes]
        for number, shape in enumerate(shapes[0])
        for axis, _ in enumerate(shape)
        if len({tensor_shapes[number][axis] for tensor_shapes in shapes}) > 1
    }
    while columns:
        base = min(columns.values())
        places = []
        for (number, axis), sizes in list(columns.items()):
            steps = {size / unit for size, unit in zip(sizes, base, strict=True)}
            if len(steps) == 1 and (step := steps.pop()) == int(step):
                places.append((number, axis, int(step)))
                del columns[number, axis]
        yield tuple(places), base


def _with_sizes(shapes: Shapes, places: Places, size: int) -> Shapes:
    changed = {(number, axis): size * step for number, axis, step in places}
    return tuple(
        tuple(changed.get((number, axis), extent) for axis, extent in enumerate(shape)) for number, shape in enumerate(shapes)
    )


def _outputs_along(user: UserModel, small: Shapes, large: Shapes, sizes: tuple[int, int]) -> Places | None:
    try:
        inputs, more = samples_like(user, [small, large])
        with in_eval_mode(user.module), torch.no_grad():
            graphs = [export_module(user.module, graph_inputs).module(check_guards=False) for graph_inputs in (inputs, more)]
            return _compare_graphs(graphs[0], graphs[1], list(pytree.tree_leaves(inputs)), sizes)
    except (EthorchError, RuntimeError, TypeError, ValueError, IndexError) as error:
        logger.debug("an axis cannot be padded: %s", error)
        return None


def _compare_graphs(small: GraphModule, large: GraphModule, inputs: list[Any], sizes: tuple[int, int]) -> Places | None:
    pairs = list(zip(small.graph.nodes, large.graph.nodes, strict=True))
    values: dict[Node, Any] = {}
    twins: dict[Node, Node] = {}
    remaining = iter(inputs)
    for node, twin in pairs:
        twins[twin] = node
        if node.op != twin.op or (node.op == "call_function" and node.target is not twin.target):
            return None
        if node.op == "placeholder":
            values[node] = next(remaining)
        elif node.op == "get_attr":
            values[node] = pytree.tree_map(lambda x: x, _attribute(small, node))
        elif node.op == "call_function":
            if is_control_flow(node) or is_in_place(node) or _indexes_along(node, twin):
                return None
            target: Any = node.target
            values[node] = target(*_map(node.args, values.__getitem__), **_map(node.kwargs, values.__getitem__))
            if not _stays(node, twin, values, twins):
                logger.debug("an axis cannot be padded: %s at %s mixes elements along the axis", node.target, node.name)
                return None
        elif node.op != "output":
            return None
    return _places(small.graph.output_node(), large.graph.output_node(), sizes)


def _attribute(model: GraphModule, node: Node) -> Any:
    value: Any = model
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def _map(args: Any, function: Any) -> Any:
    return torch.fx.map_arg(args, function)


def _stays(node: Node, twin: Node, values: dict[Node, Any], twins: dict[Node, Node]) -> bool:
    """Return True if the operator's results for the original elements do not depend on the padding."""
    expected = pytree.tree_leaves(values[node])
    for above in (True, False):

        def pad(arg: Node, above: bool = above) -> Any:
            return _pad(values[twins[arg]], arg.meta["val"], above)

        target: Any = twin.target
        actual = pytree.tree_leaves(target(*_map(twin.args, pad), **_map(twin.kwargs, pad)))
        is_reduced = all(getattr(a, "shape", ()) == getattr(b, "shape", ()) for a, b in zip(expected, actual, strict=True))
        if is_reduced and any(_is_padded_integer(values[twins[arg]], arg.meta["val"]) for arg in twin.all_input_nodes):
            return False  # the result may depend on padding other than these values
        for small, large in zip(expected, actual, strict=True):
            if isinstance(small, Tensor):
                if small.dim() != large.dim() or any(a > b for a, b in zip(small.shape, large.shape, strict=True)):
                    return False
                if not _equal(small, large[tuple(map(slice, small.shape))]):
                    return False
            elif small != large:
                return False
    return True


def _is_padded_integer(value: Any, like: Any) -> bool:
    return isinstance(value, Tensor) and not value.dtype.is_floating_point and value.shape != like.shape


def _pad(value: Any, like: Any, above: bool) -> Any:
    """Pad a tensor, or each tensor in a list, to the shape of ``like``. Padding values are high if ``above`` is set, else low."""
    if isinstance(value, (tuple, list)):
        return type(value)(_pad(x, like_x, above) for x, like_x in zip(value, like, strict=True))
    if not isinstance(value, Tensor) or value.shape == like.shape:
        return value
    if value.dtype == torch.bool:
        padded = torch.full(tuple(like.shape), above)
    elif value.dtype.is_floating_point:
        padded = torch.rand(tuple(like.shape)).to(value.dtype).add_(1).mul_(_FAR if above else -_FAR)
    else:  # use existing values, because the values can be indices
        most = int(value.max()) if value.numel() else 0
        padded = torch.full(tuple(like.shape), (most or 1) if above else 0, dtype=value.dtype)
    padded[tuple(map(slice, value.shape))] = value
    return padded


def _equal(first: Tensor, second: Tensor) -> bool:
    if not first.dtype.is_floating_point:
        return torch.equal(first, second)
    largest = float(first[first.isfinite()].abs().max()) if first.isfinite().any() else 1.0
    return torch.allclose(first, second, rtol=1e-4, atol=1e-5 * largest, equal_nan=True)


def _indexes_along(node: Node, twin: Node) -> bool:
    """Return True if the operator can access the padding through an index, e.g. an index of -1."""
    name = op_name(node.target)
    if name not in _INDEXING or not isinstance(node.args[0], Node):
        return False
    small_value, large_value = node.args[0].meta["val"], twin.args[0].meta["val"]  # type: ignore[union-attr]
    differ = {axis for axis, (a, b) in enumerate(zip(small_value.shape, large_value.shape, strict=True)) if a != b}
    if name in ("aten.index.Tensor", "aten.index_put.default"):
        indices: Any = node.args[1]
        return any(axis in differ for axis, index in enumerate(indices) if index is not None)
    position = _INDEXING[name]
    if position is None or position >= len(node.args) or not isinstance(node.args[position], int):
        return bool(differ)
    return int(node.args[position]) % max(small_value.dim(), 1) in differ  # type: ignore[arg-type]


def _places(small: Node, large: Node, sizes: tuple[int, int]) -> Places | None:
    places = []
    leaves = zip(pytree.tree_leaves(small.args), pytree.tree_leaves(large.args), strict=True)
    for number, (small_leaf, large_leaf) in enumerate((a, b) for a, b in leaves):
        if not isinstance(small_leaf, Node):
            continue
        shapes = zip(small_leaf.meta["val"].shape, large_leaf.meta["val"].shape, strict=True)
        for axis, (less, more) in enumerate(shapes):
            if less == more:
                continue
            step, rest = divmod(less, sizes[0])
            if rest or more != step * sizes[1]:
                return None
            places.append((number, axis, step))
    return tuple(places)
