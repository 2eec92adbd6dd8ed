from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ethorch.lower.fx.node import attribute, is_in_place
from ethorch.tuning.sample_runs import Inputs

#: Mapping from nodes to their values, one for each sample.
Values = dict[Node, list[Any]]
#: Function of a node and the current values that returns the node's values, or None to compute the node.
Replace = Callable[[Node, Values], list[Any] | None]


class NodeRunner:
    """A runner that computes a graph one node at a time, for all samples.

    Iterating yields each node before it is computed. The caller can then change the node's parameters, read the node's arguments in
    ``values``, or compute the node early with ``run_node`` and change the result. To advance two runners together, use ``zip``. All
    samples start from the same state, so nodes that write to buffers are skipped by default.

    Args:
        graph: Graph module from torch.export, possibly prepared or converted.
        replace: Function called before each node is computed. It returns the node's values, or None if the runner should
            compute them.
        write_back: Whether to run nodes that write to buffers. Requires a single sample.

    Attributes:
        values: Values of computed nodes for all samples, discarded after their last use.
    """

    def __init__(
        self, graph: GraphModule, samples: Sequence[Inputs], *, replace: Replace | None = None, write_back: bool = False
    ) -> None:
        assert len(samples) == 1 or not write_back
        self.graph, self.count = graph, len(samples)
        self.values: Values = {}
        self._replace, self._write_back = replace, write_back
        leaves = [torch.utils._pytree.tree_leaves((sample, {})) for sample in samples]
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._inputs = {node: [flat[number] for flat in leaves] for number, node in enumerate(placeholders)}

    def __iter__(self) -> Iterator[Node]:
        nodes = list(self.graph.graph.nodes)
        last = {arg: node for node in nodes for arg in node.all_input_nodes}
        for node in nodes:
            if node.op == "output":
                return
            yield node
            if self._write_back or not is_in_place(node):
                self.run_node(node)
            for arg in node.all_input_nodes:
                if last.get(arg) is node:
                    self.values.pop(arg, None)

    def run_node(self, node: Node) -> list[Any]:
        """Return the node's value for each sample. Values are computed on the first call and cached in ``values``."""
        if node not in self.values:
            self.values[node] = self._compute(node)
        return self.values[node]

    @torch.no_grad()
    def _compute(self, node: Node) -> list[Any]:
        replacement = None if self._replace is None else self._replace(node, self.values)
        if replacement is not None:
            return replacement
        if node.op == "placeholder":
            return self._inputs[node]
        if node.op == "get_attr":
            return [attribute(self.graph, node)] * self.count
        function: Callable[..., Any] = (
            self.graph.get_submodule(str(node.target)) if node.op == "call_module" else node.target  # type: ignore[assignment]
        )
        is_constant = bool(node.all_input_nodes) and all(arg.op == "get_attr" for arg in node.all_input_nodes)
        results = []
        for index in range(1 if is_constant else self.count):

            def value(arg: Node, index: int = index) -> Any:
                return self.values[arg][index]

            results.append(function(*torch.fx.map_arg(node.args, value), **torch.fx.map_arg(node.kwargs, value)))
        return results * self.count if is_constant else results
