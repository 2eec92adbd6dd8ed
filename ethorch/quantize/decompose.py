"""Before annotation: constants are folded, and composite operators become the operators they are made of.

What is inside a composite (attention's scores, a cell's gates) can only be calibrated if it is there while PyTorch's
observers watch. So each operator whose OpSpec has a ``decompose`` is replaced here by a small ATen graph that its
function draws on a ``Sketch``; source lines, module paths and parameters stay what they were.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node

from ethorch.limits import Limits
from ethorch.masks import gather_masks
from ethorch.ops.spec import OpSpec, find, op_name
from ethorch.sketch import INHERITED, MADE_FOR, Sketch, attribute, constant

aten = torch.ops.aten

#: Operators of which only the shape of their argument counts.
LIKE = {f"aten.{name}.default" for name in ("full_like", "zeros_like", "ones_like", "new_zeros", "new_ones", "new_full")}
_CHECKS = {"aten._assert_tensor_metadata.default", "aten._assert_scalar.default", "aten._assert_async.msg"}
_MOVES = {"aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.permute.default", "aten.transpose.int"}
#: A folded constant may be this many times larger than what it is made of (an expanded mask); beyond, it stays an operator.
_LARGEST_CONSTANT = 1 << 24


#: Arguments (x, p, train); in evaluation they do nothing.
_DROPOUTS = {"aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default"}


def decompose(
    model: GraphModule,
    keep: Callable[[Node], bool] = lambda node: False,
    limits: Mapping[str, Limits] | None = None,
    *,
    trains: bool = True,
) -> GraphModule:
    """Fold constants and replace every composite operator, in place.

    Args:
        model: a graph as torch.export leaves it.
        keep: nodes to leave whole: those that nobody asked to quantize.
        limits: what the target can run, by TOSA operator.
        trains: parameters will change, so that nothing computed from them is constant.
    """
    for node in list(model.graph.nodes):
        if node.op == "call_function" and op_name(node.target) in _CHECKS and not node.users:
            model.graph.erase_node(node)
        elif node.op == "call_function" and op_name(node.target) in _DROPOUTS and node.args[2] is False:
            if node.args[0].op != "call_function":
                continue  # a weight or input: what is quantized is its copy
            node.replace_all_uses_with(node.args[0])
            model.graph.erase_node(node)
    fold_constants(model, trains=trains)
    model.graph.eliminate_dead_code()
    pending = deque(node for node in model.graph.nodes if node.op == "call_function")
    while pending:
        node = pending.popleft()
        spec = find(node.target)
        if spec is None or spec.decompose is None or node.target._schema.is_mutable:
            continue
        if not (_is_float(node) or spec.decomposes_integers) or keep(node):
            continue
        before = node.prev
        args, kwargs = arguments(node, spec)
        made = spec.decompose(Sketch(model, node, limits), *args, **kwargs)
        if made is None:
            continue
        drawn = node.prev
        while drawn is not before:  # in the order of the graph, before what follows
            pending.extendleft([drawn] if drawn.op == "call_function" else [])
            drawn = drawn.prev
        replace(node, made)
        model.graph.erase_node(node)
    fold_constants(model, trains=trains)
    gather_masks(model, keep)
    promote_constants(model)
    hoist_clamps(model)
    model.graph.eliminate_dead_code()
    model.recompile()
    return model


def arguments(node: Node, spec: OpSpec) -> tuple[list[Any], dict[str, Any]]:
    """The node's arguments in the order of the canonical ATen schema, defaults filled in."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for index, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            positional.append(value)
    args, kwargs = spec.canonical(op_name(node.target), tuple(positional), keywords)
    return list(args), kwargs


def replace(node: Node, made: Node | Sequence[Node | None]) -> None:
    """Let the users of ``node`` read ``made``: a node, or one per result of an operator that has several."""
    if isinstance(made, Node):
        node.replace_all_uses_with(made)
        return
    for user in list(node.users):
        assert user.target is operator.getitem, f"{user.format_node()} reads several results at once"
        result = made[user.args[1]]  # type: ignore[index]
        assert result is not None or not user.users, f"nothing computes result {user.args[1]} of {node.format_node()}"
        if result is not None:
            user.replace_all_uses_with(result)
        user.graph.erase_node(user)


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def hoist_clamps(model: GraphModule) -> None:
    """``relu(view(y))`` becomes ``view(relu(y))`` where a decomposition drew the view: the clamp then costs nothing, in place."""
    for node in list(model.graph.nodes):
        spec = find(node.target) if node.op == "call_function" else None
        if spec is None or not spec.absorbs or node.target._schema.is_mutable or len(node.all_input_nodes) != 1:
            continue
        (move,) = node.all_input_nodes
        while (
            MADE_FOR in move.meta and op_name(move.target) in _MOVES and len(move.users) == 1
            and node.meta["val"].shape == move.meta["val"].shape
        ):  # fmt: skip
            (source,) = move.all_input_nodes
            node.replace_input_with(move, source)
            node.replace_all_uses_with(move)
            move.replace_input_with(source, node)
            node.append(move)
            node.meta["val"] = source.meta["val"]
            move = source


def settle_batch_norms(model: GraphModule) -> None:
    """Batch norms that stay become the form with fixed statistics, in place.

    ``convert_pt2e`` takes the other forms for a sign of training and exports 96 patterns to look for (10 s).
    """
    for node in list(model.graph.nodes):
        if node.op == "call_function" and op_name(node.target) == "aten._native_batch_norm_legit_no_training.default":
            x, weight, bias, mean, var, momentum, eps = node.args
            replace(node, Sketch(model, node)(aten.native_batch_norm.default, x, weight, bias, mean, var, False, momentum, eps))
            model.graph.erase_node(node)
        elif node.op == "call_function" and op_name(node.target) == "aten.batch_norm.default" and not node.args[5]:
            x, weight, bias, mean, var, _, momentum, eps = node.args[:8]
            made = Sketch(model, node)(aten.native_batch_norm.default, x, weight, bias, mean, var, False, momentum, eps)
            replace(node, made[0])
            model.graph.erase_node(node)


# --- constants ----------------------------------------------------------------------------------------------------------


def fold_constants(model: GraphModule, *, trains: bool = True) -> None:
    """Replace what depends on no input (masks, position tables, arange, a table of biases looked up) by a buffer that holds it.

    Parameters that may be trained are left alone; so are buffers that the program writes to, and random numbers.
    """
    graph = model.graph
    known: dict[Node, Any] = {}
    for node in graph.nodes:
        if node.op == "get_attr" and not any(_writes(user, node) for user in node.users):
            tensor = attribute(model, node)
            if isinstance(tensor, torch.Tensor) and not (trains and isinstance(tensor, torch.nn.Parameter)):
                known[node] = tensor
        elif node.op == "call_function" and _foldable(node, known):
            known[node] = _evaluate(node, known)
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(known.get(node), torch.Tensor):
            continue
        if all(user in known for user in node.users) or known[node].numel() > _LARGEST_CONSTANT:
            continue
        if known[node].is_floating_point() and any(user.op == "output" for user in node.users):
            continue  # a result of the program, which is quantized as what computes it
        mode = detect_fake_mode([node.meta["val"]]) or detect_fake_mode([n.meta["val"] for n in graph.nodes if "val" in n.meta])
        with graph.inserting_before(node):
            folded = constant(model, known[node], mode, {k: node.meta[k] for k in INHERITED if k in node.meta})
        for user in list(node.users):
            if user not in known:
                user.replace_input_with(node, folded)


def promote_constants(model: GraphModule) -> None:
    """Integer tensors that meet floats in an elementwise operator (``x * torch.arange(8)``) as floats, which are quantized."""
    for node in list(model.graph.nodes):
        pointwise = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
        if not pointwise or not _is_float(node):
            continue
        for arg in node.all_input_nodes:
            tensor = attribute(model, arg) if arg.op == "get_attr" else None
            if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0 or any(_writes(user, arg) for user in arg.users):
                continue
            if tensor.is_floating_point() or tensor.dtype == torch.bool:
                continue
            with model.graph.inserting_before(node):
                promoted = constant(model, tensor.to(node.meta["val"].dtype), detect_fake_mode([node.meta["val"]]), arg.meta)
            node.replace_input_with(arg, promoted)


def _foldable(node: Node, known: dict[Node, Any]) -> bool:
    target = node.target
    if not isinstance(node.meta.get("val"), (torch.Tensor, tuple, list)):
        return False
    if target is not operator.getitem:
        if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
            return False
        if torch.Tag.nondeterministic_seeded in target.tags or target.namespace != "aten":
            return False
    if op_name(target) in LIKE:
        return isinstance(node.meta["val"], torch.Tensor)
    return all(arg in known for arg in node.all_input_nodes)


def _evaluate(node: Node, known: dict[Node, Any]) -> Any:
    if op_name(node.target) in LIKE:
        like = node.args[0]
        assert isinstance(like, Node)
        value = like.meta["val"]
        args, kwargs = (torch.empty(value.shape, dtype=value.dtype), *node.args[1:]), node.kwargs
    else:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
    with torch.no_grad():
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _writes(user: Node, node: Node) -> bool:
    schema = getattr(user.target, "_schema", None)
    return user.op == "call_function" and schema is not None and schema.is_mutable and bool(user.args) and user.args[0] is node
