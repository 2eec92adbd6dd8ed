"""Fold operators on constants, and convert integer operands of float operators to float."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node, map_arg

from ethorch.lower.fx.aten_builder import INHERITED, AtenBuilder, constant
from ethorch.lower.fx.node import LIKE, UNINITIALIZED, first_value, is_float, is_in_place, makes_constant, op_name, tensor_of
from ethorch.lower.ops.cast import to
from ethorch.lower.ops.division import div
from ethorch.lower.ops.spec import find
from ethorch.models.open_sizes import has_open_size
from ethorch.quantization.passes.context import PassContext

#: Operators that extract a number from a tensor.
_NUMBERS = frozenset({"aten.item.default", "aten._local_scalar_dense.default"})
#: Position of the argument of which an operator reads only the shape.
_LIKE = dict.fromkeys(LIKE, 0) | {"aten.expand_as.default": 1, "aten.view_as.default": 1, "aten.reshape_as.default": 1}
#: Maximum number of elements of a folded constant.
_LARGEST_CONSTANT = 1 << 24


def fold_constants(graph_module: GraphModule, context: PassContext) -> None:
    """Replace input-independent values (masks, empty inputs) with numbers, or with buffers of up to 2**24 elements.

    Random numbers, written buffers and parameters of a trainable model are not constant.
    """
    graph = graph_module.graph
    constants: dict[Node, Any] = {}
    for node in graph.nodes:
        if node.op == "get_attr" and not any(_writes(user, node) for user in node.users):
            tensor = tensor_of(graph_module, node)
            if tensor is not None and not (context.trainable and isinstance(tensor, torch.nn.Parameter)):
                constants[node] = tensor
        elif (node.op == "placeholder" and _is_empty(node)) or (node.op == "call_function" and _is_foldable(node, constants)):
            constants[node] = _evaluate(node, constants)
    for node in list(graph.nodes):
        if node.op == "get_attr" or node not in constants:
            continue
        if isinstance(constants[node], (bool, int, float)):
            _put_number(node, constants[node])
            continue
        if not isinstance(constants[node], torch.Tensor):
            continue
        if all(user in constants or _writes(user, node) for user in node.users) or constants[node].numel() > _LARGEST_CONSTANT:
            continue
        mode = detect_fake_mode([node.meta["val"]]) or detect_fake_mode([n.meta["val"] for n in graph.nodes if "val" in n.meta])
        with graph.inserting_before(node):
            folded = constant(graph_module, constants[node], mode, {k: node.meta[k] for k in INHERITED if k in node.meta})
        for user in list(node.users):
            if user not in constants and not _writes(user, node):
                user.replace_input_with(node, folded)
    _copy_outputs(graph_module)


def _copy_outputs(graph_module: GraphModule) -> None:
    # Constant outputs that operators also read are copied, because a delegate owns the constants that it reads.
    output = graph_module.graph.output_node()
    for node in list(output.all_input_nodes):
        tensor = tensor_of(graph_module, node)
        is_shared = any(user is not output for user in node.users)
        if tensor is None or not is_shared or any(_writes(user, node) for user in node.users):
            continue
        with graph_module.graph.inserting_before(output):
            inherited = {key: node.meta[key] for key in INHERITED if key in node.meta}
            copied = constant(graph_module, tensor.detach().clone(), detect_fake_mode([node.meta["val"]]), inherited)
        output.replace_input_with(node, copied)


def promote_constants(graph_module: GraphModule, context: PassContext) -> None:
    """Convert integer constants to float if an elementwise operator combines them with floats (e.g. ``x * torch.arange(8)``)."""
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
    """Cast integer tensors to float, for quantization, if an elementwise operator or ``cat`` combines them with floats.

    int64 tensors and divisors are always cast, narrower tensors only if all float operands are constants. Python integers become
    floats, because ExecuTorch would otherwise cast int64 tensors in every call. Its kernels of ``cat`` and of operators with an
    argument ``dtype`` require one dtype.
    """
    casts: dict[tuple[Node, torch.dtype], Node] = {}
    for node in list(graph_module.graph.nodes):
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or find(target) is to:
            continue
        if not isinstance(node.meta["val"], torch.Tensor):
            continue
        pointwise = torch.Tag.pointwise in target.tags and is_float(node)
        arguments = {argument.name for argument in target._schema.arguments}
        needs_casts = "tensors" in arguments or ("dtype" in arguments and is_float(node) and not makes_constant(node))
        if not (pointwise or needs_casts):
            continue
        if pointwise:
            _promote_numbers(node)
        meets_tensor = any(is_float(arg) and arg.op != "get_attr" for arg in node.all_input_nodes)
        for arg in node.all_input_nodes:
            value = first_value(arg)
            dtype = node.meta["val"].dtype
            if arg.op == "get_attr" or value is None or value.dtype == dtype:
                continue
            divides = find(node.target) is div and arg is node.args[1]
            if not needs_casts and value.dtype not in ((torch.int64,) if meets_tensor and not divides else _INTEGERS):
                continue
            if (arg, dtype) not in casts:
                casts[arg, dtype] = AtenBuilder(graph_module, node)(torch.ops.aten.to.dtype, arg, dtype)
            node.replace_input_with(arg, casts[arg, dtype])


def _promote_numbers(node: Node) -> None:
    for index, (argument, value) in enumerate(zip(node.target._schema.arguments, node.args, strict=False)):  # type: ignore[union-attr]
        is_operand = isinstance(argument.type, torch.TensorType) or argument.name == "other"
        if is_operand and type(value) is int and int(float(value)) == value:
            node.update_arg(index, float(value))


def _put_number(node: Node, number: float) -> None:
    for user in list(node.users):
        user.args, user.kwargs = map_arg((user.args, user.kwargs), lambda arg: number if arg is node else arg)


def _is_foldable(node: Node, constants: dict[Node, Any]) -> bool:
    target = node.target
    if op_name(target) in _NUMBERS:
        return all(arg in constants for arg in node.all_input_nodes)
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
        return isinstance(node.meta["val"], torch.Tensor) and all(
            arg in constants for arg in node.all_input_nodes if arg is not like
        )
    return all(arg in constants for arg in node.all_input_nodes)


def _like(node: Node) -> Node | None:
    place = _LIKE.get(op_name(node.target))
    like = node.args[place] if place is not None and place < len(node.args) else None
    return like if isinstance(like, Node) and not has_open_size(like.meta["val"]) else None


def _is_empty(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not has_open_size(value) and 0 in value.shape


def _evaluate(node: Node, constants: dict[Node, Any]) -> Any:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and _is_empty(node):
        return torch.empty(value.shape, dtype=value.dtype)
    like = _like(node)
    operands = constants if like is None else {**constants, like: torch.empty(like.meta["val"].shape, dtype=like.meta["val"].dtype)}
    args, kwargs = map_arg((node.args, node.kwargs), operands.__getitem__)
    with torch.no_grad():
        value = node.target(*args, **kwargs)  # type: ignore[operator]
    # Uninitialized memory may contain NaN or large values.
    return torch.zeros_like(value) if op_name(node.target) in UNINITIALIZED else value


def _writes(user: Node, node: Node) -> bool:
    return is_in_place(user) and bool(user.args) and user.args[0] is node
