"""Control flow whose graphs are quantized: one scale for a tensor on its way in, and one on its way out."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ethorch.branches import held, is_control_flow
from ethorch.quantize.observers import ActivationObserver, Follower
from ethorch.quantize.wiring import leading


def join_control_flow(model: GraphModule) -> None:
    """Let a tensor have one scale on its way into the graphs that control flow holds, and one on its way out.

    It would be rescaled at the border otherwise. What a loop carries has one scale in all rounds.
    """
    for node in model.graph.nodes:
        if not is_control_flow(node):
            continue
        graphs = [part.of(model) for part in held(node)]
        results: dict[int, list[ActivationObserver]] = {}
        for user in node.users:
            if user.target is operator.getitem:
                results[user.args[1]] = list(_readers(model, user))
        loops = node.target is torch.ops.higher_order.while_loop
        operands: Any = [*node.args[2], *node.args[3]] if loops else node.args[3]
        returned: Any = graphs[-1].graph.output_node().args[0]
        for index, operand in enumerate(operands):
            outside = _observer(model, operand)
            inside = [reader for graph in graphs for reader in _readers(graph, _placeholder(graph, index))]
            if loops and index < len(node.args[2]):  # type: ignore[arg-type]
                leader = next(iter(_readers(graphs[1], _placeholder(graphs[1], index))), outside)
                _lead(leader, [outside, *inside, _observer(graphs[1], returned[index])])
                _lead(leader, results.get(index, []), feed=True)  # what the last round returns
            else:
                _lead(outside, inside)
        if not loops:
            for index, readers in results.items():
                ends: list[Any] = [graph.graph.output_node().args[0] for graph in graphs]
                _lead(next(iter(readers), None), [_observer(graph, end[index]) for graph, end in zip(graphs, ends, strict=True)])
        for graph in graphs:
            join_control_flow(graph)


def _placeholder(graph: GraphModule, index: int) -> Node:
    return [node for node in graph.graph.nodes if node.op == "placeholder"][index]


def _observer(model: GraphModule, node: Any) -> Any:
    """The module that ``node`` calls."""
    return model.get_submodule(str(node.target)) if isinstance(node, Node) and node.op == "call_module" else None


def _readers(model: GraphModule, node: Node) -> Iterator[ActivationObserver]:
    """Observers of a value."""
    for user in node.users:
        observer = _observer(model, user)
        if isinstance(observer, ActivationObserver):
            yield observer


def _lead(leader: Any, observers: list[Any], feed: bool = False) -> None:
    """Have the observers follow the leader: those of the same kind that follow nobody and watch nothing special."""
    kind = ("dtype", "qscheme", "quant_min", "quant_max")
    if not isinstance(leader, (ActivationObserver, Follower)):
        return
    for observer in observers:
        plain = isinstance(observer, ActivationObserver) and observer.leader is None and not observer.masked
        if not plain or observer is leading(leader) or observer.domain != (-math.inf, math.inf):
            continue
        if all(getattr(observer, name) == getattr(leader, name) for name in kind):
            observer.follow(leader, feed)
