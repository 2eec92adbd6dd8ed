"""After torchao made the observers: names for their messages, biases for weight scales, and no observing of moved data."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import FakeQuantizeBase

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
            watcher = leading(observers.get((node.all_input_nodes[0], node)))
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
    """The observer whose qparams this one has, through those that follow others; itself where it follows none."""
    while isinstance(observer, (ActivationObserver, Follower)) and observer.leader is not None:
        observer = observer.leader
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
