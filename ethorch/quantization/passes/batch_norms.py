"""Batch norms folded into the convolutions before them, in time that is linear in their number."""

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
    """Fold what ``prepare_pt2e`` would fold first of all, in place, to the same nodes and weights.

    torchao looks through all of the graph for dead code after each batch norm, so that 200 of them take most of the time of
    preparing; here that is done once. Convolutions that share a weight and have different batch norms behind them, as the heads of
    detectors for several levels, get a weight for each: torchao would fold the first one into all. And a batch norm stays where
    others read its convolution, too, as in front of a residual branch that begins with one: torchao would let them read the
    normalized values. So does one whose convolution has a computed weight, which torchao refuses.
    """
    settle_batch_norms(graph, lambda norm: _shares_convolution(norm) or _has_computed_weight(norm))
    _part_weights(graph)
    with _without_search(graph.graph), patch.object(torchao_utils, "fuse_conv_bn_weights", _fuse_weights):
        torchao_utils._fuse_conv_bn_(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def rename_shared_weights(graph_module: GraphModule, context: PassContext) -> None:
    """A name for the weight and bias of each convolution that shares them and has a batch norm behind it, in place, for training.

    It is one parameter still, of which the optimizer knows nothing new. ``prepare_qat_pt2e`` scales the weight by each batch norm
    and fails where two are observed as one; ``convert_pt2e`` folds each batch norm into what has the name.
    """
    for name, convolutions in _uses(graph_module).items():
        for number, convolution in enumerate(convolutions if len(convolutions) > 1 else ()):
            if _norm_of(convolution) is not None:
                for place in (1, 2):
                    _give_own(
                        graph_module,
                        [convolution],
                        place,
                        f"{name.replace('.', '_')}_at_{number}" + "_bias" * (place == 2),
                        tied=True,
                    )


def _part_weights(graph: GraphModule) -> None:
    """A weight and a bias for each batch norm that follows their convolutions.

    Where a weight is read several times and no bias is there, torchao would give all but the first a bias of zeros.
    """
    for name, convolutions in _uses(graph).items():
        groups: dict[tuple[str, ...], list[Node]] = {}
        for node in convolutions:
            groups.setdefault(_norm_behind(node), []).append(node)
        for number, group in enumerate(group for norm, group in groups.items() if norm):
            own = f"{name.replace('.', '_')}_of_norm_{number}"
            if len(groups) > 1:
                for place in (1, 2):
                    _give_own(graph, group, place, own + "_bias" * (place == 2))
            if len(group) > 1:
                _give_bias(graph, group, f"{own}_bias")


def _uses(graph: GraphModule) -> dict[str, list[Node]]:
    """The convolutions that read each weight, by its name."""
    uses: dict[str, list[Node]] = {}
    for node in graph.graph.nodes:
        if node.op == "call_function" and op_name(node.target).startswith("aten.conv") and len(node.args) > 1:
            weight = node.args[1]
            if isinstance(weight, Node) and weight.op == "get_attr":
                uses.setdefault(str(weight.target), []).append(node)
    return uses


def _shares_convolution(norm: Node) -> bool:
    """Is it a batch norm of a convolution that has other readers, or of such a one's batch norm?"""
    if not _is_norm(norm):
        return False
    source, shared = norm, False
    while _is_norm(source) and isinstance(source.args[0], Node):
        source = source.args[0]
        shared = shared or len(source.users) > 1
    return shared and source.op == "call_function" and op_name(source.target).startswith("aten.conv")


def _has_computed_weight(norm: Node) -> bool:
    """Return True if a batch norm follows a convolution whose weight or bias is an input or a result."""
    source = norm.args[0] if _is_norm(norm) else None
    if not (isinstance(source, Node) and source.op == "call_function" and op_name(source.target).startswith("aten.conv")):
        return False
    return any(isinstance(arg, Node) and arg.op != "get_attr" for arg in source.args[1:3])


def _is_norm(node: Node) -> bool:
    return node.op == "call_function" and op_name(node.target) in _NORMS


def _norm_of(convolution: Node) -> Node | None:
    """The batch norm that reads it."""
    return next(filter(_is_norm, convolution.users), None)


def _norm_behind(convolution: Node) -> tuple[str, ...]:
    """The parameters of the batch norm that reads it; empty where none does."""
    norm = _norm_of(convolution)
    return () if norm is None else tuple(str(arg.target) if isinstance(arg, Node) else str(arg) for arg in norm.args[1:])


def _give_own(graph: GraphModule, convolutions: list[Node], place: int, name: str, *, tied: bool = False) -> None:
    """Let convolutions read what they have at a place of their arguments by one node and this name: a copy, or ``tied``, itself."""
    first = convolutions[0]
    source = first.args[place] if len(first.args) > place else None
    tensor = tensor_of(graph, source) if isinstance(source, Node) else None
    if tensor is None or not isinstance(source, Node):
        return
    if not tied:
        tensor = nn.Parameter(tensor.detach().clone(), requires_grad=tensor.requires_grad)
    graph.register_parameter(name, tensor)  # type: ignore[arg-type]  # a weight is a parameter
    with graph.graph.inserting_before(first), torch.no_grad():
        own = graph.graph.get_attr(name)
    own.meta = dict(source.meta)
    for convolution in convolutions:
        convolution.update_arg(place, own)


def _give_bias(graph: GraphModule, convolutions: list[Node], name: str) -> None:
    """One bias of zeros for convolutions that have none."""
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
    """Return what ``fuse_conv_bn_weights`` returns, also for transposed convolutions in groups.

    Their weight is [inputs, outputs / groups, ...], and PyTorch scales the second axis as if it were all outputs.
    """
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
    """Calls of ``graph.eliminate_dead_code`` do nothing."""
    setattr(graph, "eliminate_dead_code", lambda *_: False)  # noqa: B010
    try:
        yield
    finally:
        delattr(graph, "eliminate_dead_code")
