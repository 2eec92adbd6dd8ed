"""The weights of a quantized graph and the layers that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ethorch.lower.fx.node import DEQUANTIZE, attribute, op_name, origin_of
from ethorch.lower.ops.quant_rules import Layer
from ethorch.lower.ops.spec import find
from ethorch.support.errors import QuantizationError
from ethorch.tuning.sample_runs import State, copy_state


@dataclass(frozen=True)
class Use:
    """A layer that reads a weight.

    Attributes:
        layer: The layer's argument positions, channel axes, groups and window.
        dequantize: Dequantize node of the weight.
    """

    node: Node
    layer: Layer
    dequantize: Node

    @property
    def source(self) -> Node:
        node = self.node.args[0]
        assert isinstance(node, Node)
        return node


@dataclass(frozen=True, eq=False)
class Weight:
    """A quantized weight of one or more layers.

    Attributes:
        name: Path of the first module that reads the weight, followed by #2, #3, ... for further weights of the module.
    """

    name: str
    graph: GraphModule
    uses: tuple[Use, ...]

    @property
    def layer(self) -> Layer:
        return self.uses[0].layer

    @property
    def codes(self) -> Tensor:
        """The int8 values in the layer's layout."""
        return _find_codes(self.graph, self.uses[0].dequantize)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.codes.shape)

    @property
    def groups(self) -> int:
        """The number of groups of the convolution, or 1 if the layer is a transposed convolution with groups."""
        return self.layer.groups if self.layer.weight_axis is not None else 1

    def rows(self) -> Tensor:
        """Return the integer values as int64[groups, outputs, K]."""
        return self._in_rows(self.codes).long()

    def scale(self) -> Tensor:
        """Return the scale of each output as float[groups, outputs, 1]."""
        outputs = self.rows().shape[0] * self.rows().shape[1]
        node = self.uses[0].dequantize
        value = attribute(self.graph, node.args[1]) if isinstance(node.args[1], Node) else torch.tensor(node.args[1])
        return value.detach().float().reshape(-1).expand(outputs).reshape(self.groups, -1, 1).clone()

    @property
    def channels(self) -> int:
        axis = self.layer.weight_axis
        shape = self.codes.shape
        return int(self.codes.numel()) if axis is None else int(shape[1 - axis])

    @property
    def per_channel(self) -> bool:
        return "per_channel" in op_name(self.uses[0].dequantize.target)

    def write(self, rows: Tensor, scale: Tensor | None = None) -> None:
        """Write the integer values for all layers, and a given ``scale`` if the weight is quantized per channel."""
        axis = self.layer.weight_axis
        for use in self.uses:
            codes = _find_codes(self.graph, use.dequantize)
            shaped = rows if axis is None else rows.reshape(codes.transpose(0, axis).shape).transpose(0, axis)
            with torch.no_grad():
                codes.copy_(shaped.reshape(codes.shape).to(codes.dtype))
                if scale is not None and self.per_channel:
                    weight_codes = attribute(self.graph, use.dequantize.args[1])  # type: ignore[arg-type]
                    weight_codes.copy_(scale.reshape(weight_codes.shape))

    def _in_rows(self, codes: Tensor) -> Tensor:
        axis = self.layer.weight_axis
        if axis is None:  # output channels span two axes, so there is one scale
            return codes.reshape(1, 1, -1)
        rows = codes.transpose(0, axis).flatten(1)
        return rows.reshape(self.groups, rows.shape[0] // self.groups, -1)


def state_beside(graph: GraphModule, weights: Sequence[Weight]) -> State:
    """Return a copy of the graph's buffers, except the values and scales of weights."""
    weight_buffers = {str(node.target) for weight in weights for use in weight.uses for node in use.dequantize.all_input_nodes}
    return {name: value for name, value in copy_state(graph).items() if name not in weight_buffers}


def _find_codes(graph: GraphModule, dequantize: Node) -> Tensor:
    source = dequantize.args[0]
    assert isinstance(source, Node)
    codes = attribute(graph, source)
    assert isinstance(codes, Tensor)
    return codes


def find_weights(graph: GraphModule) -> list[Weight]:
    """Return the weights of a graph from ``convert_pt2e``, in execution order.

    Layers whose weights have equal values and scales share one ``Weight``.

    Raises:
        QuantizationError: The graph has no quantized weights.
    """
    uses: dict[tuple[bytes, bytes, tuple[int, ...]], list[Use]] = {}
    for node in graph.graph.nodes:
        spec = find(node.target) if node.op == "call_function" else None
        rule = spec.rule(node) if spec is not None else None
        layer = rule.layer if rule is not None else None
        if layer is None:
            continue
        dequantize = node.args[layer.weight]
        if not isinstance(dequantize, Node) or op_name(dequantize.target) not in DEQUANTIZE:
            continue
        source = dequantize.args[0]
        if not isinstance(source, Node) or source.op != "get_attr":
            continue
        codes = _find_codes(graph, dequantize)
        if codes.dtype != torch.int8:
            continue
        codes_node = dequantize.args[1]
        scale = (
            attribute(graph, codes_node).detach().numpy().tobytes() if isinstance(codes_node, Node) else repr(codes_node).encode()
        )
        key = (codes.contiguous().numpy().tobytes(), scale, tuple(codes.shape))
        uses.setdefault(key, []).append(Use(node, layer, dequantize))
    if not uses:
        raise QuantizationError(
            "compress.no_weights", "expected quantized weights of convolutions or linear layers, got a model without them."
        )
    names: dict[str, int] = {}
    weights = []
    for each in uses.values():
        module = origin_of(each[0].node).module or each[0].node.name
        names[module] = names.get(module, 0) + 1
        number = names[module]
        weights.append(Weight(module if number == 1 else f"{module}#{number}", graph, tuple(each)))
    return weights
