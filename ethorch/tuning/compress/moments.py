"""The second moments of layer inputs."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, op_name
from ethorch.tuning.compress.weights import Use, Weight
from ethorch.tuning.node_runner import NodeRunner
from ethorch.tuning.sample_runs import Inputs
from ethorch.tuning.weight_rounding import extract_patches, shrink_moments

#: Maximum number of input rows, over all samples, from which the second moments of a layer are computed.
ROWS = 4096


def collect_rows(weight: Weight, use: Use, inputs: Sequence[Tensor]) -> Tensor | None:
    """Return the layer's inputs as float[groups, rows, K], or None if the layer is a transposed convolution."""
    window = use.layer.window
    if window is None and len(weight.shape) > 2:
        return None
    share = max(1, ROWS // len(inputs))
    rows_taken = []
    for x in inputs:
        rows = extract_patches(x.float(), window) if window else x.float().reshape(-1, x.shape[-1])
        rows_taken.append(rows[:: max(1, -(-len(rows) // share))])
    rows = torch.cat(rows_taken)
    return rows.reshape(rows.shape[0], weight.groups, -1).transpose(0, 1)


def compute_moments(weight: Weight, use: Use, inputs: Sequence[Tensor]) -> Tensor | None:
    """Return float[groups, K, K], the mean of x x^T over the input rows, or None if the layer is a transposed convolution."""
    rows = collect_rows(weight, use, inputs)
    if rows is None:
        return None
    return shrink_moments(rows.transpose(1, 2) @ rows / rows.shape[1], rows.shape[1])


def sum_moments(graph: GraphModule, weights: Sequence[Weight], samples: Sequence[Inputs]) -> list[Tensor | None]:
    """Return, for each weight, the summed second moments of its layers' inputs, or None if a layer is a transposed convolution."""
    owners = {use.node: (number, use) for number, weight in enumerate(weights) for use in weight.uses}
    by_weight: list[list[Tensor | None]] = [[] for _ in weights]
    runner = NodeRunner(graph, samples)
    for node in runner:
        if node in owners:
            number, use = owners[node]
            by_weight[number].append(compute_moments(weights[number], use, runner.values[use.source]))
    return [_sum(moments) for moments in by_weight]


def _sum(moments: Sequence[Tensor | None]) -> Tensor | None:
    total: Tensor | None = None
    for each in moments:
        if each is None:
            return None
        total = each if total is None else total + each
    return total


def remove_rounding(graph: GraphModule) -> GraphModule:
    """Return a copy of the graph that computes activations in float, so that rounding does not hide small errors."""
    unrounded = copy.deepcopy(graph)
    for node in list(unrounded.graph.nodes):
        source = node.args[0] if node.op == "call_function" and op_name(node.target) in DEQUANTIZE else None
        if isinstance(source, Node) and source.op == "call_function" and op_name(source.target) in QUANTIZE:
            node.replace_all_uses_with(source.all_input_nodes[0])
    unrounded.graph.eliminate_dead_code()
    unrounded.recompile()
    return unrounded
