"""A quantized graph run on samples, node by node, and what its layers read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ethorch.lower.fx.node import DEQUANTIZE, QUANTIZE, attribute, is_in_place, op_name
from ethorch.tuning.compress.weights import Use, Weight
from ethorch.tuning.sample_runs import Inputs
from ethorch.tuning.weight_rounding import patches, shrunk

#: Rows of a layer's input that go into its second moments, over all samples.
ROWS = 4096

Values = dict[Node, list[Any]]


def forward(graph: GraphModule, samples: Sequence[Inputs]) -> Iterator[tuple[Node, Values]]:
    """Compute the graph on all samples at once, a node at a time; the values last as long as somebody reads them.

    Each node is given before it is computed: what changes a weight then is seen by it. Samples start from the same state, so what
    the graph writes back into its buffers is left out.
    """
    last = {arg: node for node in graph.graph.nodes for arg in node.all_input_nodes}
    leaves = [iter(torch.utils._pytree.tree_leaves((sample, {}))) for sample in samples]
    env: Values = {}
    for node in graph.graph.nodes:
        if node.op == "output":
            return
        yield node, env
        with torch.no_grad():
            if node.op == "placeholder":
                env[node] = [next(values) for values in leaves]
            elif not is_in_place(node):
                env[node] = computed(graph, node, env, len(samples))
        for arg in node.all_input_nodes:
            if last.get(arg) is node:
                env.pop(arg, None)


def computed(graph: GraphModule, node: Node, env: Values, count: int) -> list[Any]:
    """The node's value for each of ``count`` samples, from the values in ``env``."""
    if node.op == "get_attr":
        return [attribute(graph, node)] * count
    function: Callable[..., Any] = graph.get_submodule(str(node.target)) if node.op == "call_module" else node.target  # type: ignore[assignment]
    results: list[Any] = []
    if node.all_input_nodes and all(arg.op == "get_attr" for arg in node.all_input_nodes):
        count, copies = 1, count  # a constant, once for all
    else:
        copies = 1
    for index in range(count):

        def value(arg: Node, index: int = index) -> Any:
            return env[arg][index]

        results.append(function(*torch.fx.map_arg(node.args, value), **torch.fx.map_arg(node.kwargs, value)))
    return results * copies


def rows_of(weight: Weight, use: Use, inputs: Sequence[Tensor]) -> Tensor | None:
    """What the layer reads, as float[groups, rows, K]; None for a transposed convolution, whose outputs read parts of a window.

    Args:
        weight: of the layer.
        use: the layer.
        inputs: its input for each sample.
    """
    window = use.layer.window
    if window is None and len(weight.shape) > 2:
        return None
    share = max(1, ROWS // len(inputs))
    taken = []
    for x in inputs:
        rows = patches(x.float(), window) if window else x.float().reshape(-1, x.shape[-1])
        taken.append(rows[:: max(1, -(-len(rows) // share))])
    rows = torch.cat(taken)
    return rows.reshape(rows.shape[0], weight.groups, -1).transpose(0, 1)


def moments_of(weight: Weight, use: Use, inputs: Sequence[Tensor]) -> Tensor | None:
    """float[groups, K, K], the mean of x x^T over what the layer reads; None where that is unknown."""
    rows = rows_of(weight, use, inputs)
    if rows is None:
        return None
    return shrunk(rows.transpose(1, 2) @ rows / rows.shape[1], rows.shape[1])


def unrounded(graph: GraphModule) -> GraphModule:
    """A copy that computes activations in float, with the same weights: small errors show that a rounding to codes would hide."""
    made = copy.deepcopy(graph)
    for node in list(made.graph.nodes):
        source = node.args[0] if node.op == "call_function" and op_name(node.target) in DEQUANTIZE else None
        if isinstance(source, Node) and source.op == "call_function" and op_name(source.target) in QUANTIZE:
            node.replace_all_uses_with(source.all_input_nodes[0])
    made.graph.eliminate_dead_code()
    made.recompile()
    return made
