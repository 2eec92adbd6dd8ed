"""Which graphs a node of control flow holds: the branches of torch.cond, the condition and the body of while_loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

#: Control flow -> which of its arguments are graphs: (a word for names, the same for messages).
GRAPHS = {
    torch.ops.higher_order.cond: {1: ("then", "the branch for true"), 2: ("else", "the branch for false")},
    torch.ops.higher_order.while_loop: {0: ("condition", "the condition"), 1: ("body", "the body")},
}


@dataclass(frozen=True)
class Subgraph:
    """One graph of a control flow node.

    Attributes:
        node: the control flow.
        index: which of its arguments the graph is.
        role: "then", for names.
        what: "the branch for true", for messages.
        attribute: the get_attr node that names it.
    """

    node: Node
    index: int
    role: str
    what: str
    attribute: Node

    @property
    def name(self) -> str:
        """What the module that ``node`` is in calls the graph."""
        return str(self.attribute.target)

    def of(self, model: GraphModule) -> GraphModule:
        """The graph itself, in the module that ``node`` is in."""
        graph = model.get_submodule(self.name)
        assert isinstance(graph, GraphModule)
        return graph


def is_control_flow(node: Node) -> bool:
    """Is it a torch.cond or while_loop?"""
    return node.op == "call_function" and node.target in GRAPHS


def held(node: Node) -> list[Subgraph]:
    """The graphs of one control flow node, in the order of its arguments."""
    found = []
    for index, (role, what) in GRAPHS[node.target].items():  # type: ignore[index]
        attribute = node.args[index]
        if isinstance(attribute, Node) and attribute.op == "get_attr":
            found.append(Subgraph(node, index, role, what, attribute))
    return found


def nodes_everywhere(graph: Graph) -> Iterator[Node]:
    """The nodes of ``graph`` and of the graphs its control flow holds, at any depth."""
    for node in graph.nodes:
        yield node
        if is_control_flow(node) and graph.owning_module is not None:
            for part in held(node):
                yield from nodes_everywhere(part.of(graph.owning_module).graph)
