"""After torchao made the observers: names for their messages, biases for weight scales, and no observing of moved data."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import FakeQuantizeBase

from ethorch.branches import held, is_control_flow
from ethorch.masks import HUGE, is_mask_fill
from ethorch.ops.spec import find
from ethorch.quantize.observers import ROOM_INT8, ActivationObserver, Follower, PerChannelWeightObserver

#: Key of ``GraphModule.meta``: a graph that control flow holds, whose inputs and outputs are not the program's.
INNER = "ethorch_inner"
#: Functions of -1..1 alone: room beyond would hold codes that mean nothing.
_UNIT_DOMAIN = {"aten.asin.default", "aten.acos.default", "aten.atanh.default"}
Edge = Node | tuple[Node, Node]


def wire(model: GraphModule, observers: dict[Edge, Any]) -> None:
    """Tell our observers what they watch.

    Args:
        model: the annotated graph.
        observers: (argument, node) or node -> its observer, as torchao's ``prepare`` holds them; changed in place.
    """
    for key, observer in observers.items():
        if isinstance(observer, (ActivationObserver, PerChannelWeightObserver)) and not observer.name:
            watched = key if isinstance(key, Node) else key[0]
            observer.name = watched.name
            if isinstance(observer, ActivationObserver):
                observer.is_input = watched.op == "placeholder" and not model.meta.get(INNER)
    for node in model.graph.nodes:
        spec = find(node.target) if node.op == "call_function" else None
        if spec is None:
            continue
        if spec.name in _UNIT_DOMAIN:
            watcher = observers.get((node.all_input_nodes[0], node))
            if isinstance(watcher, ActivationObserver):
                watcher.domain = (-1.0, 1.0)
        if is_mask_fill(node):
            watcher = observers.get((node.all_input_nodes[0], node))
            watcher = leading(watcher)
            trained = observers.get(node)
            if isinstance(watcher, ActivationObserver):
                watcher.masked = True
            elif isinstance(trained, FakeQuantizeBase):
                trained.register_forward_pre_hook(lift_masked)
        rule = spec.rule(node)
        if rule.weight >= 0:
            _tell_bias(model, node, rule.weight, rule.bias, observers)
        elif rule.output == "same":
            _follow(node, observers)


def lift_masked(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Scores as a fake-quantize in training is to see them: masked ones just below the others, which keeps the range small."""
    x = inputs[0]
    seen = x.detach()[x.detach() > HUGE]
    return (torch.where(x <= HUGE, seen.min() - ROOM_INT8, x), *inputs[1:]) if seen.numel() else inputs


def _tell_bias(model: GraphModule, node: Node, weight: int, bias: int, observers: dict[Edge, Any]) -> None:
    """Let the weight's observer know the bias and the input's observer: their scales have to fit together."""
    args: list[Any] = [*node.args, *[None] * 3]
    if not all(isinstance(arg, Node) for arg in (args[0], args[weight], args[bias])):
        return
    watcher, source = observers.get((args[weight], node)), observers.get((args[0], node))
    value = constant_of(model, args[bias])
    if isinstance(watcher, PerChannelWeightObserver) and isinstance(source, (ActivationObserver, Follower)) and value is not None:
        watcher.uses.append((value, [source]))


def constant_of(model: GraphModule, node: Any) -> torch.Tensor | None:
    """The tensor behind a get_attr node."""
    if node.op != "get_attr":
        return None
    value: Any = model
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, torch.Tensor) else None


def leading(observer: Any) -> Any:
    """The observer that a follower stands for, through followers of followers; another one itself."""
    while isinstance(observer, Follower):
        observer = observer.__dict__["leader"]
    return observer


def _follow(node: Node, observers: dict[Edge, Any]) -> None:
    """The result of moved data, and all its readers that share its observer, get a follower instead.

    Observing it would tell nothing new: a pad adds its value, a slice or pooling leaves some out, and the range of what
    they read holds for them as well.
    """
    leader = observers.get(node)
    source = next((arg for arg in node.all_input_nodes if leading(observers.get((arg, node))) is leader), None)
    if not isinstance(leader, ActivationObserver) or source is None:
        return
    follower = Follower(leader)
    observers[node] = follower
    for user in node.users:
        if observers.get((node, user)) is leader:
            observers[(node, user)] = follower


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


def _root(observer: Any) -> ActivationObserver | None:
    """The observer whose qparams this one has."""
    while isinstance(observer, (ActivationObserver, Follower)):
        leader = observer.__dict__["leader"]
        if leader is None:
            return observer  # type: ignore[return-value]
        observer = leader
    return None


def _lead(leader: Any, observers: list[Any], feed: bool = False) -> None:
    """Have the observers follow the leader: those of the same kind that follow nobody and watch nothing special."""
    kind = ("dtype", "qscheme", "quant_min", "quant_max")
    if not isinstance(leader, (ActivationObserver, Follower)):
        return
    for observer in observers:
        plain = isinstance(observer, ActivationObserver) and observer.leader is None and not observer.masked
        if not plain or observer is _root(leader) or observer.domain != (-math.inf, math.inf):
            continue
        if all(getattr(observer, name) == getattr(leader, name) for name in kind):
            observer.follow(leader, feed)
