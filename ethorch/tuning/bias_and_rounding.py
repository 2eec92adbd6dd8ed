"""Bias correction and adaptive rounding: one walk over the calibrated graph, float and quantized side by side.

Each layer sees the inputs that the quantized layers before it give, so errors do not pile up. Its weights are rounded so that
the layer's output comes out right, rather than each weight (``weight_rounding``). What the output's mean is off by goes into the
bias (Nagel et al. 2019, Data-Free Quantization Through Weight Equalization and Bias Correction, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.observer import ObserverBase

from ethorch.lower.fx.node import attribute, is_in_place, tensor_of
from ethorch.lower.ops.quant_rules import Layer
from ethorch.lower.ops.spec import find
from ethorch.quantization.weight_observer import PerChannelWeightObserver
from ethorch.support.errors import QuantizationError
from ethorch.tuning.sample_runs import Inputs
from ethorch.tuning.switched_graph import Switch
from ethorch.tuning.weight_rounding import compensated, patches, shrunk

_ROWS = 4096  # of a layer's input that go into its second moments


def correct_bias(prepared: GraphModule, samples: Sequence[Inputs]) -> GraphModule:
    """Let each layer's quantized output have the mean of its float output, channel by channel, over the samples.

    Args:
        prepared: by ``prepare_pt2e``, and calibrated; its biases are changed in place, and added where there are none.
        samples: input tuples, some ten; all are held in memory at once.

    Returns:
        ``prepared``, for ``convert_pt2e``.

    Raises:
        QuantizationError: there are no samples.
    """
    return _SideBySide(prepared, samples, bias=True, rounding=False).run()


def round_weights(prepared: GraphModule, samples: Sequence[Inputs], *, bias: bool = True) -> GraphModule:
    """Round each layer's weights so that its output is right, rather than each weight to its nearest code.

    Takes seconds per layer; worth it for weights of four bits, and for the last decibel with eight.

    Args:
        prepared: by ``prepare_pt2e``, and calibrated; its weights are changed in place.
        samples: input tuples, some ten; all are held in memory at once.
        bias: correct biases on the way, as ``correct_bias`` does.

    Returns:
        ``prepared``, for ``convert_pt2e``.

    Raises:
        QuantizationError: there are no samples.
    """
    return _SideBySide(prepared, samples, bias=bias, rounding=True).run()


class _SideBySide:
    """A calibrated graph on all samples, node by node: ``exact`` in float, ``rough`` with all before the node quantized.

    Args:
        graph: its parameters are changed.
        samples: input tuples.
        bias: correct biases.
        rounding: round weights.
    """

    def __init__(self, graph: GraphModule, samples: Sequence[Inputs], bias: bool, rounding: bool):
        if not samples:
            raise QuantizationError("quantize.no_samples", "no samples were given: outputs are compared on them")
        self.graph, self.samples, self.bias, self.rounding = graph, samples, bias, rounding
        self.exact: dict[Node, list[Any]] = {}
        self.rough: dict[Node, list[Any]] = {}

    def run(self) -> GraphModule:
        """Change the parameters, layer by layer; the graph."""
        last = {arg: node for node in self.graph.graph.nodes for arg in node.all_input_nodes}
        leaves = [iter(torch.utils._pytree.tree_leaves((sample, {}))) for sample in self.samples]
        with torch.no_grad():
            for node in list(self.graph.graph.nodes):
                if node.op == "output":
                    break
                if node.op == "placeholder":
                    self.exact[node] = self.rough[node] = [next(x) for x in leaves]
                elif not is_in_place(node):  # all samples start from the same state
                    self.step(node)
                for arg in node.all_input_nodes:
                    if last.get(arg) is node:
                        self.exact.pop(arg, None)
                        self.rough.pop(arg, None)
        self.graph.recompile()
        return self.graph

    def step(self, node: Node) -> None:
        """Compute one node both ways; of a quantized layer, change the parameters in between."""
        spec = find(node.target) if node.op == "call_function" else None
        rule = spec.rule(node) if spec is not None else None
        observer = self.graph.get_submodule(str(node.target)) if node.op == "call_module" else None
        self.exact[node] = self.compute(node, self.exact)
        if isinstance(observer, ObserverBase):
            switch, source = Switch(observer), node.all_input_nodes[0]
            self.rough[node] = [switch(x) for x in self.rough[source]]
            return
        layer = rule.layer if rule is not None else None
        if layer is not None and self.quantized(node, layer):
            if self.rounding:
                self.round(node, layer)
            self.rough[node] = self.compute(node, self.rough)
            if self.bias:
                self.correct(node, layer)
        else:
            self.rough[node] = self.compute(node, self.rough)

    def compute(self, node: Node, env: dict[Node, list[Any]]) -> list[Any]:
        """The node's value for each sample, from the values in ``env``."""
        if node.op == "get_attr":
            value = attribute(self.graph, node)
            return [value] * len(self.samples)
        function = self.graph.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        if isinstance(function, ObserverBase):
            return env[node.all_input_nodes[0]]
        results = []
        for index in range(len(self.samples)):

            def value(arg: Node, index: int = index) -> Any:
                return env[arg][index]

            results.append(function(*torch.fx.map_arg(node.args, value), **torch.fx.map_arg(node.kwargs, value)))  # type: ignore[operator]
        return results

    def quantized(self, node: Node, layer: Layer) -> bool:
        """Is the layer's weight a constant that has an observer?"""
        observer = node.args[layer.weight]
        return isinstance(observer, Node) and observer.op == "call_module" and observer.all_input_nodes[0].op == "get_attr"

    # --- bias ---------------------------------------------------------------------------------------------------------

    def correct(self, node: Node, layer: Layer) -> None:
        """Add to the bias what the mean of each output channel is off by."""
        axis, position = layer.output_axis, layer.bias
        pairs = zip(self.exact[node], self.rough[node], strict=True)
        each = torch.stack([(a - b).transpose(0, axis).reshape(a.shape[axis], -1).mean(1) for a, b in pairs])
        off = significant(each)
        bias = node.args[position] if position < len(node.args) else None
        if isinstance(bias, Node) and bias.op == "call_module":  # its observer
            (bias,) = bias.all_input_nodes
        tensor = tensor_of(self.graph, bias) if isinstance(bias, Node) else None
        if isinstance(bias, Node) and (tensor is None or len(bias.users) > 1):
            return
        if tensor is None:
            tensor = torch.nn.Parameter(torch.zeros_like(off))
            self.new_bias(node, position, tensor)
        tensor.add_(off)
        shape = [1] * self.rough[node][0].dim()
        shape[axis] = -1
        self.rough[node] = [x + off.reshape(shape) for x in self.rough[node]]

    def new_bias(self, node: Node, position: int, tensor: torch.nn.Parameter) -> None:
        """Give the node ``tensor`` as its argument ``position``."""
        name = f"_bias_of_{node.name}"
        self.graph.register_parameter(name, tensor)
        with self.graph.graph.inserting_before(node):
            made = self.graph.graph.get_attr(name)
        made.meta = {key: node.meta[key] for key in ("nn_module_stack", "stack_trace") if key in node.meta}
        made.meta["val"] = node.meta["val"].new_empty(tuple(tensor.shape))
        args = list(node.args) + [None] * (position + 1 - len(node.args))
        args[position] = made
        node.args = tuple(args)

    # --- rounding -----------------------------------------------------------------------------------------------------

    def round(self, node: Node, layer: Layer) -> None:
        """Replace the weight by codes x scale that keep the layer's output."""
        watch = node.args[layer.weight]
        assert isinstance(watch, Node)
        observer = self.graph.get_submodule(str(watch.target))
        source = watch.all_input_nodes[0]
        weight = tensor_of(self.graph, source)
        rows = self.rows(node, layer)
        if rows is None or weight is None or not isinstance(observer, PerChannelWeightObserver) or len(source.users) > 1:
            return
        scale, zero = observer.calculate_qparams()
        observer.fixed = (scale, zero)  # the weights are about to be what these make of them
        groups = rows.shape[0]
        moments = shrunk(rows.transpose(1, 2) @ rows, rows.shape[1])
        shaped = weight.detach().reshape(groups, weight.shape[0] // groups, -1)
        steps = scale.expand(weight.shape[0]).reshape(groups, -1, 1)
        weight.copy_(compensated(shaped, moments, steps, observer.quant_min, observer.quant_max).reshape(weight.shape))
        self.rough[watch] = [weight] * len(self.samples)

    def rows(self, node: Node, layer: Layer) -> Tensor | None:
        """The layer's quantized inputs as float[groups, rows, weights of one output]; None for a transposed convolution."""
        source, watch = node.args[0], node.args[layer.weight]
        assert isinstance(source, Node) and isinstance(watch, Node)
        inputs, window = self.rough[source], layer.window
        if window is None and self.rough[watch][0].dim() > 2:
            return None
        rows = torch.cat([patches(x, window) if window else x.reshape(-1, x.shape[-1]) for x in inputs])
        rows = rows.reshape(rows.shape[0], layer.groups, -1).transpose(0, 1)
        return rows[:, :: max(1, rows.shape[1] // _ROWS)].contiguous()


def significant(each: Tensor) -> Tensor:
    """The mean of each column of float[samples, channels], less where the samples do not agree on it: m (1 - s^2 / m^2)."""
    mean = each.mean(0)
    if len(each) < 2:
        return mean
    error = each.var(0) / len(each)
    return mean * torch.clamp(1 - error / mean.square().clamp(min=1e-30), min=0)
