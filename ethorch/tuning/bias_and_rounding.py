"""Bias correction and adaptive rounding.

The inputs of each layer are computed by the corrected layers before it, so errors do not accumulate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.observer import ObserverBase

from ethorch.lower.fx.node import tensor_of
from ethorch.lower.ops.quant_rules import Layer
from ethorch.lower.ops.spec import find
from ethorch.quantization.weight_observer import PerChannelWeightObserver
from ethorch.support.errors import QuantizationError
from ethorch.tuning.node_runner import NodeRunner, Values
from ethorch.tuning.sample_runs import Inputs
from ethorch.tuning.switched_graph import Switch
from ethorch.tuning.weight_rounding import compensate, extract_patches, shrink_moments

_ROWS = 4096  # approximate number of input rows from which the second moments of a layer are computed


def correct_bias(prepared: GraphModule, samples: Sequence[Inputs]) -> GraphModule:
    """Correct biases so that each output channel of a quantized layer has about the same mean as in the float model.

    The mean difference (float - quantized) is added to the bias (Nagel et al. 2019, section 4.2, cited in ``equalization``).

    Args:
        prepared: Calibrated graph module from ``prepare_pt2e``. Biases are changed in place, or added.
        samples: About ten input tuples, all held in memory.

    Returns:
        ``prepared``, for ``convert_pt2e``.

    Raises:
        QuantizationError: ``samples`` is empty.
    """
    return _SideBySide(prepared, samples, bias=True, rounding=False).run()


def round_weights(prepared: GraphModule, samples: Sequence[Inputs], *, bias: bool = True) -> GraphModule:
    """Round weights to minimize the output error of each layer.

    Rounding takes several seconds per layer, and helps most with four-bit weights.

    Args:
        bias: Whether to correct biases as well. See :func:`correct_bias` for the other arguments.

    Returns:
        ``prepared``, changed in place.

    Raises:
        QuantizationError: ``samples`` is empty.
    """
    return _SideBySide(prepared, samples, bias=bias, rounding=True).run()


class _SideBySide:
    """Two runs of a calibrated graph on all samples, node by node: ``exact`` in float, and ``rough`` with quantization."""

    def __init__(self, graph: GraphModule, samples: Sequence[Inputs], bias: bool, rounding: bool):
        if not samples:
            raise QuantizationError("quantize.no_samples", "expected samples, got none. Pass about ten representative inputs.")
        self.graph, self.bias, self.rounding = graph, bias, rounding
        self.exact = NodeRunner(graph, samples, replace=self.skip_observer)
        self.rough = NodeRunner(graph, samples, replace=self.quantize)

    def run(self) -> GraphModule:
        with torch.no_grad():
            for node, _ in zip(self.exact, self.rough, strict=True):
                layer = self.find_quantized_layer(node)
                if layer is None:
                    continue
                self.exact.run_node(node)
                if self.rounding:
                    self.round(node, layer)
                self.rough.run_node(node)
                if self.bias:
                    self.correct(node, layer)
        self.graph.recompile()
        return self.graph

    def observer(self, node: Node) -> ObserverBase | None:
        module = self.graph.get_submodule(str(node.target)) if node.op == "call_module" else None
        return module if isinstance(module, ObserverBase) else None

    def skip_observer(self, node: Node, values: Values) -> list[Any] | None:
        return None if self.observer(node) is None else values[node.all_input_nodes[0]]

    def quantize(self, node: Node, values: Values) -> list[Any] | None:
        observer = self.observer(node)
        if observer is None:
            return None
        switch = Switch(observer)
        return [switch(x) for x in values[node.all_input_nodes[0]]]

    def find_quantized_layer(self, node: Node) -> Layer | None:
        spec = find(node.target) if node.op == "call_function" else None
        rule = spec.rule(node) if spec is not None else None
        layer = rule.layer if rule is not None else None
        if layer is None:
            return None
        observer = node.args[layer.weight]
        has_observer = isinstance(observer, Node) and observer.op == "call_module" and observer.all_input_nodes[0].op == "get_attr"
        return layer if has_observer else None

    # --- bias ---------------------------------------------------------------------------------------------------------

    def correct(self, node: Node, layer: Layer) -> None:
        axis, position = layer.output_axis, layer.bias
        off = mean_error(self.exact.values[node], self.rough.values[node], axis)
        bias = node.args[position] if position < len(node.args) else None
        if isinstance(bias, Node) and bias.op == "call_module":  # the bias has an observer
            (bias,) = bias.all_input_nodes
        tensor = tensor_of(self.graph, bias) if isinstance(bias, Node) else None
        if isinstance(bias, Node) and (tensor is None or len(bias.users) > 1):
            return
        if tensor is None:
            tensor = torch.nn.Parameter(torch.zeros_like(off))
            self.new_bias(node, position, tensor)
        tensor.add_(off)
        outputs = self.rough.values[node]
        shape = [1] * outputs[0].dim()
        shape[axis] = -1
        self.rough.values[node] = [x + off.reshape(shape) for x in outputs]

    def new_bias(self, node: Node, position: int, tensor: torch.nn.Parameter) -> None:
        name = f"_bias_of_{node.name}"
        self.graph.register_parameter(name, tensor)
        with self.graph.graph.inserting_before(node):
            bias_node = self.graph.graph.get_attr(name)
        bias_node.meta = {key: node.meta[key] for key in ("nn_module_stack", "stack_trace") if key in node.meta}
        bias_node.meta["val"] = node.meta["val"].new_empty(tuple(tensor.shape))
        args = list(node.args) + [None] * (position + 1 - len(node.args))
        args[position] = bias_node
        node.args = tuple(args)

    # --- rounding -----------------------------------------------------------------------------------------------------

    def round(self, node: Node, layer: Layer) -> None:
        watch = node.args[layer.weight]
        assert isinstance(watch, Node)
        observer = self.graph.get_submodule(str(watch.target))
        source = watch.all_input_nodes[0]
        weight = tensor_of(self.graph, source)
        rows = self.rows(node, layer)
        if rows is None or weight is None or not isinstance(observer, PerChannelWeightObserver) or len(source.users) > 1:
            return
        scale, zero = observer.calculate_qparams()
        observer.fixed = (scale, zero)  # the parameters with which the weights are rounded below
        groups = rows.shape[0]
        moments = shrink_moments(rows.transpose(1, 2) @ rows, rows.shape[1])
        shaped = weight.detach().reshape(groups, weight.shape[0] // groups, -1)
        steps = scale.expand(weight.shape[0]).reshape(groups, -1, 1)
        weight.copy_(compensate(shaped, moments, steps, observer.quant_min, observer.quant_max).reshape(weight.shape))
        self.rough.values[watch] = [weight] * self.rough.count

    def rows(self, node: Node, layer: Layer) -> Tensor | None:
        source, watch = node.args[0], node.args[layer.weight]
        assert isinstance(source, Node) and isinstance(watch, Node)
        inputs, window = self.rough.values[source], layer.window
        if window is None and self.rough.values[watch][0].dim() > 2:
            return None
        rows = torch.cat([extract_patches(x, window) if window else x.reshape(-1, x.shape[-1]) for x in inputs])
        rows = rows.reshape(rows.shape[0], layer.groups, -1).transpose(0, 1)
        return rows[:, :: max(1, rows.shape[1] // _ROWS)].contiguous()


def mean_error(exact: Sequence[Tensor], rough: Sequence[Tensor], axis: int) -> Tensor:
    """Return each channel's mean of ``exact - rough``, shrunk toward 0 if the mean varies between samples."""
    pairs = zip(exact, rough, strict=True)
    return average_significant(torch.stack([(a - b).transpose(0, axis).reshape(a.shape[axis], -1).mean(1) for a, b in pairs]))


def average_significant(each: Tensor) -> Tensor:
    """Return the mean m of each column of float[samples, channels], times max(0, 1 - s^2 / m^2). s is the standard error of m."""
    mean = each.mean(0)
    if len(each) < 2:
        return mean
    error = each.var(0) / len(each)
    return mean * torch.clamp(1 - error / mean.square().clamp(min=1e-30), min=0)
