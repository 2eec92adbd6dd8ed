"""The subgraphs of torch.cond and while_loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

#: Control flow operator -> index of each subgraph argument -> (role, description).
GRAPHS = {
    torch.ops.higher_order.cond: {1: ("then", "the true branch"), 2: ("else", "the false branch")},
    torch.ops.higher_order.while_loop: {0: ("condition", "the loop condition"), 1: ("body", "the loop body")},
}


@dataclass(frozen=True)
class Subgraph:
    """A subgraph of a control-flow node.

    Attributes:
        role: Identifier, e.g. ``then``.
        description: Text for messages, e.g. ``the true branch``.
    """

    node: Node
    index: int
    role: str
    description: str
    attribute: Node

    @property
    def name(self) -> str:
        """Name of the subgraph in the module of ``node``."""
        return str(self.attribute.target)

    def of(self, model: GraphModule) -> GraphModule:
        """Return the subgraph's module in ``model``."""
        graph = model.get_submodule(self.name)
        assert isinstance(graph, GraphModule)
        return graph


def is_control_flow(node: Node) -> bool:
    return node.op == "call_function" and node.target in GRAPHS


def subgraphs_of(node: Node) -> list[Subgraph]:
    """Return the subgraphs of a control-flow node, in the order of its arguments."""
    subgraphs = []
    for index, (role, description) in GRAPHS[node.target].items():  # type: ignore[index]
        attribute = node.args[index]
        if isinstance(attribute, Node) and attribute.op == "get_attr":
            subgraphs.append(Subgraph(node, index, role, description, attribute))
    return subgraphs


def nodes_everywhere(graph: Graph) -> Iterator[Node]:
    """Iterate over the nodes of ``graph`` and of its nested subgraphs."""
    for node in graph.nodes:
        yield node
        if is_control_flow(node) and graph.owning_module is not None:
            for subgraph in subgraphs_of(node):
                yield from nodes_everywhere(subgraph.of(graph.owning_module).graph)
