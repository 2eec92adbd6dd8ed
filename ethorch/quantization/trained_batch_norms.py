"""Batch norms that were trained with the weights rounded, folded into the convolutions before them.

``prepare_qat_pt2e`` writes a convolution with its batch norm as ``norm(conv(x, round(w * s)) / s + b)``, where s is what the norm
multiplies by: gamma / sqrt(variance + eps). When training is over that is ``conv(x, round(w * s), beta + (b - mean) * s)``.
``convert_pt2e`` finds it by 96 patterns, each of which it exports (15 s, whatever the model); here it is read off the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ethorch.lower.fx.node import attribute, op_name

_NORM = "aten.batch_norm.default"


@dataclass(frozen=True, eq=False)
class _Trained:
    """A convolution with its batch norm, as ``prepare_qat_pt2e`` leaves them.

    Attributes:
        scaled: the product of the weight and what the norm multiplies by, which is rounded.
        bias: the convolution's own, or None.
    """

    norm: Node
    convolution: Node
    scaled: Node
    weight: Node
    bias: Node | None


def fold_trained_batch_norms(prepared: GraphModule) -> int:
    """Fold every batch norm of that form, in place; how many there were. Others stay, for ``convert_pt2e`` to look at."""
    found = [trained for node in list(prepared.graph.nodes) if (trained := _trained(node)) is not None]
    with torch.no_grad():
        for number, trained in enumerate(found):
            _fold(prepared, trained, f"_trained_{number}")
    if found:
        for node in list(prepared.graph.nodes):
            if _counts_batches(node):
                prepared.graph.erase_node(node)
        prepared.graph.eliminate_dead_code()
        prepared.recompile()
    return len(found)


def _fold(prepared: GraphModule, trained: _Trained, name: str) -> None:
    arguments: tuple[Any, ...] = trained.norm.args
    _, gamma, beta, mean, variance, _, _, eps = arguments[:8]
    factor = attribute(prepared, gamma) / torch.sqrt(attribute(prepared, variance) + eps)
    weight: Tensor = attribute(prepared, trained.weight)
    shape = trained.scaled.args[1].args[1]  # type: ignore[union-attr]
    own = 0.0 if trained.bias is None else attribute(prepared, trained.bias)
    bias = attribute(prepared, beta) + (own - attribute(prepared, mean)) * factor
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


def _trained(norm: Node) -> _Trained | None:
    """What belongs to a batch norm, if all of it is as expected."""
    if not _calls(norm, _NORM) or len(norm.args) < 8:
        return None
    _, gamma, beta, mean, variance = norm.args[:5]
    if not all(isinstance(x, Node) and x.op == "get_attr" for x in (gamma, beta, mean, variance)):
        return None
    source, bias = _only(norm.args[0]), None
    if source is not None and _calls(source, "aten.add.Tensor"):
        bias = _reshaped(source.args[1])
        if bias is None or bias.op != "get_attr":
            return None
        source = _only(source.args[0])
    if source is None or not _calls(source, "aten.div.Tensor") or not _is_factor(_reshaped(source.args[1]), norm):
        return None
    convolution = _only(source.args[0])
    if convolution is None or not op_name(convolution.target).startswith("aten.conv") or len(convolution.args) < 2:
        return None
    rounded = convolution.args[1]
    scaled = rounded.args[0] if isinstance(rounded, Node) and rounded.op == "call_module" else None
    if not isinstance(scaled, Node) or not _calls(scaled, "aten.mul.Tensor"):
        return None
    weight = scaled.args[0]
    if not isinstance(weight, Node) or weight.op != "get_attr" or not _is_factor(_reshaped(scaled.args[1]), norm):
        return None
    own = convolution.args[2] if len(convolution.args) > 2 else None
    if own is not None and not (isinstance(own, Node) and _calls(own, "aten.zeros_like.default")):
        return None
    return _Trained(norm, convolution, scaled, weight, bias)


def _is_factor(factor: Node | None, norm: Node) -> bool:
    """Is it gamma / sqrt(variance + eps) of the batch norm?"""
    if factor is None or not _calls(factor, "aten.div.Tensor"):
        return False
    gamma, root = factor.args[:2]
    moved = root.args[0] if isinstance(root, Node) and _calls(root, "aten.sqrt.default") else None
    if not isinstance(moved, Node) or not _calls(moved, "aten.add.Tensor"):
        return False
    return _same(gamma, norm.args[1]) and _same(moved.args[0], norm.args[4]) and moved.args[1] == norm.args[7]


def _same(a: object, b: object) -> bool:
    return isinstance(a, Node) and isinstance(b, Node) and a.op == b.op == "get_attr" and a.target == b.target


def _reshaped(node: object) -> Node | None:
    """What a reshape reads."""
    source = node.args[0] if isinstance(node, Node) and _calls(node, "aten.reshape.default") else None
    return source if isinstance(source, Node) else None


def _only(node: object) -> Node | None:
    """The node, where it is an operator that one other reads."""
    return node if isinstance(node, Node) and node.op == "call_function" and len(node.users) == 1 else None


def _calls(node: Node, name: str) -> bool:
    return node.op == "call_function" and op_name(node.target) == name


def _counts_batches(node: Node) -> bool:
    """Does it only count the batches of a training?"""
    counter = node.args[0] if _calls(node, "aten.add.Tensor") and not node.users and node.args else None
    return isinstance(counter, Node) and counter.op == "get_attr" and str(counter.target).endswith("num_batches_tracked")


__all__ = ["fold_trained_batch_norms"]
