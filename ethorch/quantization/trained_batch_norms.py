"""Fold batch norms into convolutions after quantization-aware training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ethorch.lower.fx.node import attribute, op_name

_NORM = "aten.batch_norm.default"


@dataclass(frozen=True, eq=False)
class _TrainedNorm:
    norm: Node
    convolution: Node
    scaled: Node
    weight: Node
    bias: Node | None


def fold_trained_batch_norms(prepared: GraphModule) -> int:
    """Fold batch norms of a graph from ``prepare_qat_pt2e`` in place, and return their number.

    ``norm(conv(x, round(w * s)) / s + b)`` with s = gamma / sqrt(variance + eps) becomes
    ``conv(x, round(w * s), beta + (b - mean) * s)``. ``convert_pt2e`` would search for this pattern for 15 s.
    """
    norms = [trained for node in list(prepared.graph.nodes) if (trained := _match_trained_norm(node)) is not None]
    with torch.no_grad():
        for number, trained in enumerate(norms):
            _fold(prepared, trained, f"_trained_{number}")
    if norms:
        for node in list(prepared.graph.nodes):
            if _counts_batches(node):
                prepared.graph.erase_node(node)
        prepared.graph.eliminate_dead_code()
        prepared.recompile()
    return len(norms)


def _fold(prepared: GraphModule, trained: _TrainedNorm, name: str) -> None:
    arguments: tuple[Any, ...] = trained.norm.args
    _, gamma, beta, mean, variance, _, _, eps = arguments[:8]
    factor = attribute(prepared, gamma) / torch.sqrt(attribute(prepared, variance) + eps)
    weight: Tensor = attribute(prepared, trained.weight)
    shape = trained.scaled.args[1].args[1]  # type: ignore[union-attr]
    old_bias = 0.0 if trained.bias is None else attribute(prepared, trained.bias)
    bias = attribute(prepared, beta) + (old_bias - attribute(prepared, mean)) * factor
    for end, value in (("weight", weight * factor.reshape(shape)), ("bias", bias)):
        prepared.register_parameter(f"{name}_{end}", nn.Parameter(value.detach(), weight.requires_grad))
    with prepared.graph.inserting_before(trained.convolution):
        bias_node = prepared.graph.get_attr(f"{name}_bias")
    with prepared.graph.inserting_before(trained.scaled):
        weight_node = prepared.graph.get_attr(f"{name}_weight")
    weight_node.meta, bias_node.meta = dict(trained.weight.meta), dict(beta.meta)
    trained.scaled.replace_all_uses_with(weight_node)
    trained.convolution.args = (*trained.convolution.args[:2], bias_node, *trained.convolution.args[3:])
    trained.norm.replace_all_uses_with(trained.convolution)
    prepared.graph.erase_node(trained.norm)


def _match_trained_norm(norm: Node) -> _TrainedNorm | None:
    if not _calls(norm, _NORM) or len(norm.args) < 8:
        return None
    _, gamma, beta, mean, variance = norm.args[:5]
    if not all(isinstance(x, Node) and x.op == "get_attr" for x in (gamma, beta, mean, variance)):
        return None
    source, bias = _only(norm.args[0]), None
    if source is not None and _calls(source, "aten.add.Tensor"):
        bias = _reshape_input(source.args[1])
        if bias is None or bias.op != "get_attr":
            return None
        source = _only(source.args[0])
    if source is None or not _calls(source, "aten.div.Tensor") or not _is_factor(_reshape_input(source.args[1]), norm):
        return None
    convolution = _only(source.args[0])
    if convolution is None or not op_name(convolution.target).startswith("aten.conv") or len(convolution.args) < 2:
        return None
    rounded = convolution.args[1]
    scaled = rounded.args[0] if isinstance(rounded, Node) and rounded.op == "call_module" else None
    if not isinstance(scaled, Node) or not _calls(scaled, "aten.mul.Tensor"):
        return None
    weight = scaled.args[0]
    if not isinstance(weight, Node) or weight.op != "get_attr" or not _is_factor(_reshape_input(scaled.args[1]), norm):
        return None
    zeros = convolution.args[2] if len(convolution.args) > 2 else None
    if zeros is not None and not (isinstance(zeros, Node) and _calls(zeros, "aten.zeros_like.default")):
        return None
    return _TrainedNorm(norm, convolution, scaled, weight, bias)


def _is_factor(factor: Node | None, norm: Node) -> bool:
    if factor is None or not _calls(factor, "aten.div.Tensor"):
        return False
    gamma, root = factor.args[:2]
    moved = root.args[0] if isinstance(root, Node) and _calls(root, "aten.sqrt.default") else None
    if not isinstance(moved, Node) or not _calls(moved, "aten.add.Tensor"):
        return False
    return _same(gamma, norm.args[1]) and _same(moved.args[0], norm.args[4]) and moved.args[1] == norm.args[7]


def _same(a: object, b: object) -> bool:
    return isinstance(a, Node) and isinstance(b, Node) and a.op == b.op == "get_attr" and a.target == b.target


def _reshape_input(node: object) -> Node | None:
    source = node.args[0] if isinstance(node, Node) and _calls(node, "aten.reshape.default") else None
    return source if isinstance(source, Node) else None


def _only(node: object) -> Node | None:
    return node if isinstance(node, Node) and node.op == "call_function" and len(node.users) == 1 else None


def _calls(node: Node, name: str) -> bool:
    return node.op == "call_function" and op_name(node.target) == name


def _counts_batches(node: Node) -> bool:
    counter = node.args[0] if _calls(node, "aten.add.Tensor") and not node.users and node.args else None
    return isinstance(counter, Node) and counter.op == "get_attr" and str(counter.target).endswith("num_batches_tracked")


__all__ = ["fold_trained_batch_norms"]
