"""Bias correction and adaptive rounding: one walk over the calibrated graph, float and quantized side by side.

Each layer sees the inputs that the quantized layers before it give, so errors do not pile up: its weights are rounded so
that the layer's output, not each weight, comes out right (Frantar et al. 2022, GPTQ: column by column, what one rounding
loses the weights to come make up for; Nagel et al. 2020, AdaRound, has the same aim by gradient descent), and what the
output's mean is off by goes into the bias (Nagel et al. 2019, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.observer import ObserverBase

from ethorch.errors import QuantizationError
from ethorch.ops.spec import find, op_name
from ethorch.quantize.observers import PerChannelWeightObserver
from ethorch.quantize.switches import Inputs, Switch
from ethorch.quantize.wiring import constant_of

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
    return _Walk(prepared, samples, bias=True, rounding=False).run()


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
    return _Walk(prepared, samples, bias=bias, rounding=True).run()


class _Walk:
    """Runs the graph on all samples at once: ``exact`` in float, ``rough`` with everything quantized so far."""

    def __init__(self, graph: GraphModule, samples: Sequence[Inputs], bias: bool, rounding: bool):
        if not samples:
            raise QuantizationError("quantize.no_samples", "no samples were given: outputs are compared on them")
        self.graph, self.samples, self.bias, self.rounding = graph, samples, bias, rounding
        self.exact: dict[Node, list[Any]] = {}
        self.rough: dict[Node, list[Any]] = {}

    def run(self) -> GraphModule:
        last = {arg: node for node in self.graph.graph.nodes for arg in node.all_input_nodes}
        leaves = [iter(torch.utils._pytree.tree_leaves((sample, {}))) for sample in self.samples]
        with torch.no_grad():
            for node in list(self.graph.graph.nodes):
                if node.op == "output":
                    break
                if node.op == "placeholder":
                    self.exact[node] = self.rough[node] = [next(x) for x in leaves]
                else:
                    self.step(node)
                for arg in node.all_input_nodes:
                    if last.get(arg) is node:
                        self.exact.pop(arg, None)
                        self.rough.pop(arg, None)
        self.graph.recompile()
        return self.graph

    def step(self, node: Node) -> None:
        spec = find(node.target) if node.op == "call_function" else None
        rule = spec.rule(node) if spec is not None else None
        observer = self.graph.get_submodule(str(node.target)) if node.op == "call_module" else None
        self.exact[node] = self.compute(node, self.exact)
        if isinstance(observer, ObserverBase):
            switch, source = Switch(observer), node.all_input_nodes[0]
            self.rough[node] = [switch(x) for x in self.rough[source]]
            return
        if rule is not None and rule.weight >= 0 and self.quantized(node, rule.weight):
            if self.rounding:
                self.round(node, rule.weight)
            self.rough[node] = self.compute(node, self.rough)
            if self.bias:
                self.correct(node, rule.bias)
        else:
            self.rough[node] = self.compute(node, self.rough)

    def compute(self, node: Node, env: dict[Node, list[Any]]) -> list[Any]:
        if node.op == "get_attr":
            value = _attribute(self.graph, str(node.target))
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

    def quantized(self, node: Node, weight: int) -> bool:
        observer = node.args[weight]
        return isinstance(observer, Node) and observer.op == "call_module" and observer.all_input_nodes[0].op == "get_attr"

    # --- bias ---------------------------------------------------------------------------------------------------------

    def correct(self, node: Node, position: int) -> None:
        """Add to the bias what the mean of each output channel is off by."""
        axis = -1 if op_name(node.target) in ("aten.linear.default", "aten.addmm.default", "aten.mm.default") else 1
        pairs = zip(self.exact[node], self.rough[node], strict=True)
        each = torch.stack([(a - b).transpose(0, axis).flatten(1).mean(1) for a, b in pairs])
        off = significant(each)
        bias = node.args[position] if position < len(node.args) else None
        tensor = constant_of(self.graph, bias) if isinstance(bias, Node) else None
        if isinstance(bias, Node) and (tensor is None or len(bias.users) > 1):
            return
        if tensor is None:
            if not op_name(node.target).startswith(("aten.conv", "aten.linear")):
                return
            tensor = torch.nn.Parameter(torch.zeros_like(off))
            self.new_bias(node, position, tensor)
        tensor.add_(off)
        shape = [1] * self.rough[node][0].dim()
        shape[axis] = -1
        self.rough[node] = [x + off.reshape(shape) for x in self.rough[node]]

    def new_bias(self, node: Node, position: int, tensor: torch.nn.Parameter) -> None:
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

    def round(self, node: Node, position: int) -> None:
        """Replace the weight by codes x scale that keep the layer's output."""
        watch = node.args[position]
        assert isinstance(watch, Node)
        observer = self.graph.get_submodule(str(watch.target))
        source = watch.all_input_nodes[0]
        weight = constant_of(self.graph, source)
        rows = self.rows(node, position)
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

    def rows(self, node: Node, position: int) -> Tensor | None:
        """The layer's quantized inputs as float[groups, rows, weights of one output]; None for layers that are not rounded."""
        name = op_name(node.target)
        source, watch = node.args[0], node.args[position]
        assert isinstance(source, Node) and isinstance(watch, Node)
        inputs = self.rough[source]
        weight = self.rough[watch][0]
        if name == "aten.linear.default":
            rows = torch.cat([x.flatten(0, -2) if x.dim() > 1 else x[None] for x in inputs])[None]
        elif name in ("aten.conv2d.default", "aten.conv1d.default"):
            args: list[Any] = list(node.args) + [None, [1], [0], [1], 1][len(node.args) - 2 :]
            stride, padding, dilation, groups = args[3:7]
            flat = name == "aten.conv1d.default"

            def both(value: Any, outer: int) -> tuple[int, int]:
                values = [value] if isinstance(value, int) else list(value)
                return (outer, values[-1]) if flat else (values[0], values[-1])

            kernel = (1, int(weight.shape[-1])) if flat else (int(weight.shape[2]), int(weight.shape[3]))
            unfolded = [
                F.unfold(x[:, :, None] if flat else x, kernel, both(dilation, 1), both(padding, 0), both(stride, 1)) for x in inputs
            ]
            columns = torch.cat([u.transpose(1, 2).flatten(0, 1) for u in unfolded])
            rows = columns.reshape(columns.shape[0], groups, -1).transpose(0, 1)
        else:
            return None
        return rows[:, :: max(1, rows.shape[1] // _ROWS)].contiguous()


def significant(each: Tensor) -> Tensor:
    """The mean of each column of float[samples, channels], less where the samples do not agree on it: m (1 - s^2 / m^2)."""
    mean = each.mean(0)
    if len(each) < 2:
        return mean
    error = each.var(0) / len(each)
    return mean * torch.clamp(1 - error / mean.square().clamp(min=1e-30), min=0)


def shrunk(moments: Tensor, rows: int) -> Tensor:
    """Second moments float[groups, K, K] nearer to their diagonal the fewer rows they come from: few rows correlate by chance."""
    size = moments.shape[-1]
    share = size / (size + rows)
    return (1 - share) * moments + share * torch.diag_embed(torch.diagonal(moments, dim1=1, dim2=2))


def compensated(weight: Tensor, moments: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    """Codes x scale near ``weight``, each rounding made up for by the weights not rounded yet.

    Args:
        weight: float[groups, outputs, K].
        moments: float[groups, K, K], sum of x x^T over the inputs x that the weights see.
        scale: float[groups, outputs, 1].
        low, high: codes allowed.
    """
    size = weight.shape[-1]
    diagonal = torch.diagonal(moments, dim1=1, dim2=2)
    damping = diagonal.mean(1, keepdim=True) * 0.01 + 1e-8
    moments = moments + torch.diag_embed(damping.expand_as(diagonal))
    order = torch.argsort(diagonal.sum(0), descending=True)  # the weights that matter most first, while others can still help
    moments = moments[:, order][:, :, order]
    upper = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(moments)), upper=True)
    left = weight[:, :, order].clone()
    done = torch.empty_like(left)
    for column in range(size):
        value = left[:, :, column]
        rounded = torch.clamp(torch.round(value / scale[..., 0]), low, high) * scale[..., 0]
        done[:, :, column] = rounded
        error = (value - rounded) / upper[:, column, column, None]
        left[:, :, column + 1 :] -= error[:, :, None] * upper[:, None, column, column + 1 :]
    return done[:, :, torch.argsort(order)]


def _attribute(model: Any, path: str) -> Any:
    for part in path.split("."):
        model = getattr(model, part)
    return model
