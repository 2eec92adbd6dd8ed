from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torchao.quantization.pt2e import utils as torchao_utils

from ethorch.lower.fx.node import op_name, tensor_of
from ethorch.quantization.passes.context import PassContext
from ethorch.quantization.passes.decompose import settle_batch_norms

_NORMS = ("aten.batch_norm.default", "aten._native_batch_norm_legit_no_training.default")


def fold_batch_norms(graph: GraphModule) -> None:
    """Fold batch norms in place, like ``prepare_pt2e``, but eliminate dead code only once.

    Convolutions that share a weight but have different batch norms (detector heads) get separate weights, because torchao would
    fold the first batch norm into all of them. A batch norm is not folded if another operator reads the result of the
    convolution, or if the model computes a parameter.
    """
    settle_batch_norms(graph, lambda norm: _shares_convolution(norm) or _has_computed_weight(norm))
    _part_weights(graph)
    with _without_search(graph.graph), patch.object(torchao_utils, "fuse_conv_bn_weights", _fuse_weights):
        torchao_utils._fuse_conv_bn_(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def rename_shared_weights(graph_module: GraphModule, context: PassContext) -> None:
    """Rename shared parameters for training, so that each convolution with a batch norm has its own weight and bias nodes.

    ``prepare_qat_pt2e`` fails if two observed weights are the same node.
    """
    for name, convolutions in _uses(graph_module).items():
        for number, convolution in enumerate(convolutions if len(convolutions) > 1 else ()):
            if _norm_of(convolution) is not None:
                for position in (1, 2):
                    _separate_argument(
                        graph_module,
                        [convolution],
                        position,
                        f"{name.replace('.', '_')}_at_{number}" + "_bias" * (position == 2),
                        tied=True,
                    )


def _part_weights(graph: GraphModule) -> None:
    # Convolutions that share a batch norm and have no bias get a common bias of zeros. torchao would add a bias only to the first.
    for name, convolutions in _uses(graph).items():
        groups: dict[tuple[str, ...], list[Node]] = {}
        for node in convolutions:
            groups.setdefault(_norm_parameters(node), []).append(node)
        for number, group in enumerate(group for norm, group in groups.items() if norm):
            prefix = f"{name.replace('.', '_')}_of_norm_{number}"
            if len(groups) > 1:
                for position in (1, 2):
                    _separate_argument(graph, group, position, prefix + "_bias" * (position == 2))
            if len(group) > 1:
                _add_zero_bias(graph, group, f"{prefix}_bias")


def _uses(graph: GraphModule) -> dict[str, list[Node]]:
    uses: dict[str, list[Node]] = {}
    for node in graph.graph.nodes:
        if node.op == "call_function" and op_name(node.target).startswith("aten.conv") and len(node.args) > 1:
            weight = node.args[1]
            if isinstance(weight, Node) and weight.op == "get_attr":
                uses.setdefault(str(weight.target), []).append(node)
    return uses


def _shares_convolution(norm: Node) -> bool:
    if not _is_norm(norm):
        return False
    source, shared = norm, False
    while _is_norm(source) and isinstance(source.args[0], Node):
        source = source.args[0]
        shared = shared or len(source.users) > 1
    return shared and source.op == "call_function" and op_name(source.target).startswith("aten.conv")


def _has_computed_weight(norm: Node) -> bool:
    source = norm.args[0] if _is_norm(norm) else None
    if not (isinstance(source, Node) and source.op == "call_function" and op_name(source.target).startswith("aten.conv")):
        return False
    return any(isinstance(arg, Node) and arg.op != "get_attr" for arg in (*source.args[1:3], *norm.args[1:5]))


def _is_norm(node: Node) -> bool:
    return node.op == "call_function" and op_name(node.target) in _NORMS


def _norm_of(convolution: Node) -> Node | None:
    return next(filter(_is_norm, convolution.users), None)


def _norm_parameters(convolution: Node) -> tuple[str, ...]:
    norm = _norm_of(convolution)
    return () if norm is None else tuple(str(arg.target) if isinstance(arg, Node) else str(arg) for arg in norm.args[1:])


def _separate_argument(graph: GraphModule, convolutions: list[Node], position: int, name: str, *, tied: bool = False) -> None:
    first = convolutions[0]
    source = first.args[position] if len(first.args) > position else None
    tensor = tensor_of(graph, source) if isinstance(source, Node) else None
    if tensor is None or not isinstance(source, Node):
        return
    if not tied:
        tensor = nn.Parameter(tensor.detach().clone(), requires_grad=tensor.requires_grad)
    graph.register_parameter(name, tensor)  # type: ignore[arg-type]  # a weight is a parameter
    with graph.graph.inserting_before(first), torch.no_grad():
        parameter = graph.graph.get_attr(name)
    parameter.meta = dict(source.meta)
    for convolution in convolutions:
        convolution.update_arg(position, parameter)


def _add_zero_bias(graph: GraphModule, convolutions: list[Node], name: str) -> None:
    if any(len(convolution.args) > 2 and convolution.args[2] is not None for convolution in convolutions):
        return
    norm = _norm_of(convolutions[0])
    mean = norm.args[3] if norm is not None else None
    tensor = tensor_of(graph, mean) if isinstance(mean, Node) else None
    if tensor is None or not isinstance(mean, Node):
        return
    graph.register_parameter(name, nn.Parameter(torch.zeros_like(tensor)))
    with graph.graph.inserting_before(convolutions[0]):
        bias = graph.graph.get_attr(name)
    bias.meta = dict(mean.meta)
    for convolution in convolutions:
        convolution.args = (*convolution.args[:2], bias, *convolution.args[3:])


def _fuse_weights(
    weight: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor, *norm: Any, transpose: bool = False
) -> tuple[Tensor, Tensor]:
    # PyTorch's function assumes that the second axis of a transposed weight [inputs, outputs / groups, ...] contains all outputs.
    groups = mean.numel() // weight.shape[1] if transpose else 1
    by_output = weight.unflatten(0, (groups, -1)).transpose(0, 1).flatten(1, 2)
    eps, gamma, beta = norm
    fused, fused_bias = fuse_conv_bn_weights(
        by_output if groups > 1 else weight, bias, mean, variance, eps, gamma, beta, transpose=transpose
    )
    if groups > 1:
        in_groups = fused.detach().unflatten(1, (groups, -1)).transpose(0, 1).flatten(0, 1).contiguous()
        fused = nn.Parameter(in_groups, fused.requires_grad)
    return fused, fused_bias


@contextmanager
def _without_search(graph: Graph) -> Iterator[None]:
    setattr(graph, "eliminate_dead_code", lambda *_: False)  # noqa: B010
    try:
        yield
    finally:
        delattr(graph, "eliminate_dead_code")
