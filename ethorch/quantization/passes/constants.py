"""Operators of constants: computed once before annotation, or promoted to the dtype that their readers want."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node, map_arg

from ethorch.lower.fx.aten_builder import INHERITED, AtenBuilder, constant
from ethorch.lower.fx.node import LIKE, UNINITIALIZED, first_value, is_float, is_in_place, op_name, tensor_of
from ethorch.lower.ops.cast import to
from ethorch.lower.ops.joining import cat
from ethorch.lower.ops.spec import find
from ethorch.models.open_sizes import has_open_size
from ethorch.quantization.passes.context import PassContext

#: Operators that take a number out of a tensor.
_NUMBERS = frozenset({"aten.item.default", "aten._local_scalar_dense.default"})
#: Operators that read the shape of one of their arguments, and not what it holds -> which one that is.
_LIKE = dict.fromkeys(LIKE, 0) | {"aten.expand_as.default": 1, "aten.view_as.default": 1, "aten.reshape_as.default": 1}
#: Elements of the largest constant that is folded. What makes a larger one (an expanded mask) stays an operator.
_LARGEST_CONSTANT = 1 << 24


def fold_constants(graph_module: GraphModule, context: PassContext) -> None:
    """Replace what depends on no input (masks, position tables, arange, a table of biases looked up) by a buffer that holds it.

    A number taken out of a constant becomes a number, and a tensor without elements a constant. What is made of random numbers or
    of a buffer that the program writes to is no constant; of a trainable model what is made of a parameter is none either.
    """
    graph = graph_module.graph
    known: dict[Node, Any] = {}
    for node in graph.nodes:
        if node.op == "get_attr" and not any(_writes(user, node) for user in node.users):
            tensor = tensor_of(graph_module, node)
            if tensor is not None and not (context.trainable and isinstance(tensor, torch.nn.Parameter)):
                known[node] = tensor
        elif node.op == "call_function" and _foldable(node, known):
            if is_float(node) and any(user.op == "output" for user in node.users):
                continue  # a result of the program, which is quantized as what computes it
            known[node] = _evaluate(node, known)
    for node in list(graph.nodes):
        if node.op != "call_function" or node not in known:
            continue
        if isinstance(known[node], (bool, int, float)):
            _put_number(node, known[node])
            continue
        if not isinstance(known[node], torch.Tensor):
            continue
        if all(user in known for user in node.users) or known[node].numel() > _LARGEST_CONSTANT:
            continue
        mode = detect_fake_mode([node.meta["val"]]) or detect_fake_mode([n.meta["val"] for n in graph.nodes if "val" in n.meta])
        with graph.inserting_before(node):
            folded = constant(graph_module, known[node], mode, {k: node.meta[k] for k in INHERITED if k in node.meta})
        for user in list(node.users):
            if user not in known:
                user.replace_input_with(node, folded)


def promote_constants(graph_module: GraphModule, context: PassContext) -> None:
    """Integer tensors that meet floats in an elementwise operator (``x * torch.arange(8)``) as floats, which are quantized."""
    for node in list(graph_module.graph.nodes):
        pointwise = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
        if not pointwise or not is_float(node):
            continue
        for arg in node.all_input_nodes:
            tensor = tensor_of(graph_module, arg)
            if tensor is None or tensor.dim() == 0 or any(_writes(user, arg) for user in arg.users):
                continue
            if tensor.is_floating_point() or tensor.dtype == torch.bool:
                continue
            with graph_module.graph.inserting_before(node):
                promoted = constant(graph_module, tensor.to(node.meta["val"].dtype), detect_fake_mode([node.meta["val"]]), arg.meta)
            node.replace_input_with(arg, promoted)


_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def promote_integers(graph_module: GraphModule, context: PassContext) -> None:
    """Cast computed integers that meet floats in an elementwise operator, as PyTorch does, so that they are quantized.

    So are int64 tensors, and others that meet constants only: lowerings take those as they are beside a quantized tensor. Python
    integers among the operands become floats. ExecuTorch would make them int64 tensors, and cast those whenever the program runs on
    the CPU.
    """
    casts: dict[tuple[Node, torch.dtype], Node] = {}
    for node in list(graph_module.graph.nodes):
        pointwise = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
        if not is_float(node) or not (pointwise or find(node.target) is cat) or find(node.target) is to:
            continue
        if pointwise:
            _promote_numbers(node)
        meets_tensor = any(is_float(arg) and arg.op != "get_attr" for arg in node.all_input_nodes)
        for arg in node.all_input_nodes:
            value = first_value(arg)
            promoted = value is not None and value.dtype in ((torch.int64,) if meets_tensor else _INTEGERS)
            if arg.op == "get_attr" or not promoted:
                continue
            dtype = node.meta["val"].dtype
            if (arg, dtype) not in casts:
                casts[arg, dtype] = AtenBuilder(graph_module, node)(torch.ops.aten.to.dtype, arg, dtype)
            node.replace_input_with(arg, casts[arg, dtype])


def _promote_numbers(node: Node) -> None:
    """Replace Python integers that are operands of an elementwise operator by floats of the same value."""
    for index, (argument, value) in enumerate(zip(node.target._schema.arguments, node.args, strict=False)):  # type: ignore[union-attr]
        is_operand = isinstance(argument.type, torch.TensorType) or argument.name == "other"
        if is_operand and type(value) is int and int(float(value)) == value:
            node.update_arg(index, float(value))


def _put_number(node: Node, number: float) -> None:
    """Write ``number`` into the operators that read ``node``."""
    for user in list(node.users):
        user.args, user.kwargs = map_arg((user.args, user.kwargs), lambda arg: number if arg is node else arg)


def _foldable(node: Node, known: dict[Node, Any]) -> bool:
    target = node.target
    if op_name(target) in _NUMBERS:
        return all(arg in known for arg in node.all_input_nodes)
    if not isinstance(node.meta.get("val"), (torch.Tensor, tuple, list)):
        return False
    if target is not operator.getitem:
        if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
            return False
        if torch.Tag.nondeterministic_seeded in target.tags or target.namespace != "aten":
            return False
    if _is_empty(node):
        return True
    if (like := _like(node)) is not None:
        return isinstance(node.meta["val"], torch.Tensor) and all(arg in known for arg in node.all_input_nodes if arg is not like)
    return all(arg in known for arg in node.all_input_nodes)


def _like(node: Node) -> Node | None:
    """Return the argument of which only the shape counts, if there is one and it has no open size."""
    place = _LIKE.get(op_name(node.target))
    like = node.args[place] if place is not None and place < len(node.args) else None
    return like if isinstance(like, Node) and not has_open_size(like.meta["val"]) else None


def _is_empty(node: Node) -> bool:
    """Return True if the result is one tensor without elements."""
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and not has_open_size(value) and 0 in value.shape


def _evaluate(node: Node, known: dict[Node, Any]) -> Any:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and _is_empty(node):
        return torch.empty(value.shape, dtype=value.dtype)
    like = _like(node)
    given = known if like is None else {**known, like: torch.empty(like.meta["val"].shape, dtype=like.meta["val"].dtype)}
    args, kwargs = map_arg((node.args, node.kwargs), given.__getitem__)
    with torch.no_grad():
        value = node.target(*args, **kwargs)  # type: ignore[operator]
    # Memory may hold NaN, and numbers that calibration would take for some of the network's.
    return torch.zeros_like(value) if op_name(node.target) in UNINITIALIZED else value


def _writes(user: Node, node: Node) -> bool:
    return is_in_place(user) and bool(user.args) and user.args[0] is node
