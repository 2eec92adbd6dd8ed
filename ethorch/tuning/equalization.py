"""Cross-layer equalization: rescale channels of adjacent layers without changing the model's outputs.

See Nagel et al. 2019, Data-Free Quantization Through Weight Equalization and Bias Correction, section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.utils import _fuse_conv_bn_, _fuse_linear_bn_

from ethorch.lower.fx.node import arguments, tensor_of
from ethorch.lower.ops.spec import find
from ethorch.support.errors import QuantizationError


@dataclass(frozen=True)
class _Layer:
    weight: Tensor
    bias: Tensor | None
    groups: int
    axis: int

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.weight.shape[0] and self.weight.shape[1] == 1

    def output_ranges(self) -> Tensor:
        return self.weight.detach().abs().flatten(1).amax(1)

    def input_ranges(self) -> Tensor:
        if self.depthwise:
            return self.output_ranges()
        return self.weight.detach().abs().transpose(0, 1).flatten(1).amax(1)


def equalize(model: GraphModule, rounds: int = 20) -> GraphModule:
    """Rescale pairs of layers so that each channel has the same weight range in the first and the second layer.

    A pair is two convolutions or linear layers with only ReLU, leaky ReLU or pooling between them. Batch norms are folded first.
    Parameters are changed in place, and outputs are preserved up to float rounding. Equalization helps if weights are quantized per
    tensor, or if an activation's channels have very different ranges.

    Args:
        model: Graph module from ``torch.export.export(...).module()``, in evaluation mode, before ``prepare_pt2e``.
        rounds: Maximum number of passes over all pairs; about ten suffice.

    Returns:
        ``model``.

    Raises:
        QuantizationError: ``model`` is not a graph module.
    """
    if not isinstance(model, GraphModule):
        raise QuantizationError(
            "equalize.graph_module",
            f"expected a graph module from torch.export.export(...).module(), got {type(model).__name__}",
        )
    _fuse_conv_bn_(model)
    _fuse_linear_bn_(model)
    pairs = list(_pairs(model))
    with torch.no_grad():
        for _ in range(rounds):
            largest = max((_balance(first, second) for first, second in pairs), default=0.0)
            if largest < 1e-3:
                break
    model.recompile()
    return model


def _layer(model: GraphModule, node: Node) -> _Layer | None:
    spec = find(node.target) if node.op == "call_function" else None
    layer = spec.rule(node).layer if spec is not None else None
    if layer is None or layer.weight_axis != 0:
        return None
    args, _ = arguments(node)
    weight_node, bias_node = args[layer.weight], args[layer.bias]
    if not isinstance(weight_node, Node) or len(weight_node.users) != 1:
        return None
    weight = tensor_of(model, weight_node)
    bias = tensor_of(model, bias_node) if isinstance(bias_node, Node) and len(bias_node.users) == 1 else None
    if weight is None or (bias_node is not None and bias is None):
        return None
    return _Layer(weight, bias, layer.groups, layer.output_axis)


def _pairs(model: GraphModule) -> Iterator[tuple[_Layer, _Layer]]:
    for node in model.graph.nodes:
        first = _layer(model, node)
        if first is None:
            continue
        after = node
        while len(after.users) == 1:
            after = next(iter(after.users))
            spec = find(after.target) if after.op == "call_function" else None
            if spec is None or spec.homogeneous is None or spec.homogeneous >= -first.axis:
                break
        second = _layer(model, after) if after is not node else None
        if second is None or second.axis != first.axis:
            continue
        if second.groups > 1 and not second.depthwise:
            continue
        if second.input_ranges().numel() == first.output_ranges().numel():
            yield first, second


def _balance(first: _Layer, second: _Layer) -> float:
    out, into = first.output_ranges(), second.input_ranges()
    usable = (out > 0) & (into > 0)
    scale = torch.where(usable, torch.sqrt(out / into.clamp(min=1e-30)), torch.ones_like(out)).clamp(1e-4, 1e4)
    first.weight.div_(scale.reshape(-1, *[1] * (first.weight.dim() - 1)))
    if first.bias is not None:
        first.bias.div_(scale)
    if second.depthwise:
        second.weight.mul_(scale.reshape(-1, *[1] * (second.weight.dim() - 1)))
    else:
        second.weight.mul_(scale.reshape(1, -1, *[1] * (second.weight.dim() - 2)))
    return float(scale.log().abs().max())
