"""Weights that obey a rule while they train: few values, zeros, or both; and that are still quantized to just those codes.

The rule is one operator, ``ethorch::constrained_weight``, which ``ethorch.tuning.compress.constrain`` puts before a layer. Each
output channel keeps its largest magnitude at code 127, and the levels are symmetric. So whoever takes the largest weight for 127
finds the same codes again, and a batch normalization that is folded into the weight only changes the channel's scale or sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ethorch.lower.fx.node import attribute, op_name

_OPERATOR = "ethorch.constrained_weight.default"
_MOST = 127  # largest code of a weight
_SMALLEST = 2.0**-24  # a channel of zeros has a scale all the same


def constrained_weight(weight: Tensor, kept: Tensor, table: Tensor, axis: int) -> Tensor:
    """The weight with zeros and few values: float, as ``weight``; its gradient goes to ``weight`` where that is kept.

    Args:
        weight: float.
        kept: bool, as ``weight``: False makes a zero.
        table: int64[255], the code that each of -127 to 127 becomes; empty: no rounding.
        axis: of the output channels; each has its largest kept magnitude at 127.
    """
    masked = torch.where(kept, weight, 0.0)
    if not table.numel():
        return masked
    others = [dim for dim in range(weight.dim()) if dim != axis]
    scale = torch.clamp(masked.abs().amax(others, keepdim=True) / _MOST, min=_SMALLEST)
    codes = torch.clamp(torch.round(masked / scale), -_MOST, _MOST).long()
    return torch.where(kept, table[codes + _MOST] * scale, 0.0).to(weight.dtype)


def _like_the_weight(weight: Tensor, kept: Tensor, table: Tensor, axis: int) -> Tensor:
    return torch.empty_like(weight)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _straight_through(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    (kept,) = ctx.saved_tensors
    return torch.where(kept, gradient, 0.0), None, None, None


def _define() -> torch.library.Library:
    """Define the operator. ``torch.library.custom_op`` would search all modules for its caller, which takes 25 ms."""
    library = torch.library.Library("ethorch", "FRAGMENT")
    library.define("constrained_weight(Tensor weight, Tensor kept, Tensor table, SymInt axis) -> Tensor")
    library.impl("constrained_weight", constrained_weight, "CompositeExplicitAutograd")
    library.impl("constrained_weight", _like_the_weight, "Meta")
    torch.library.register_autograd("ethorch::constrained_weight", _straight_through, setup_context=_save, lib=library)
    return library


_LIBRARY = _define()  # the operator goes with it


@dataclass(frozen=True, eq=False)
class Rule:
    """What ``constrained_weight`` is told besides the weight."""

    kept: Tensor
    table: Tensor
    axis: int

    def of(self, weight: Tensor) -> Tensor:
        """The weight by the rule."""
        made: Tensor = torch.ops.ethorch.constrained_weight(weight, self.kept, self.table, self.axis)
        return made


def fold(graph: GraphModule) -> GraphModule:
    """Make parameters of constrained weights: for a model that is not trained any more. The graph itself, changed."""
    rules = take_out(graph)
    made: dict[str, str] = {}
    for node in graph.graph.nodes:
        if node.op == "get_attr" and node.target in rules:
            name = made.get(node.target)
            if name is None:
                name = made[node.target] = f"_constrained_weight_{len(made)}"
                weight = attribute(graph, node)
                graph.register_parameter(name, nn.Parameter(rules[node.target].of(weight.detach()), weight.requires_grad))
            node.target = name
    if made:
        graph.recompile()
    return graph


def take_out(graph: GraphModule) -> dict[str, Rule]:
    """Let layers read the plain weights; which of them have a rule, by the name of the parameter. The graph is changed."""
    rules: dict[str, Rule] = {}
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or op_name(node.target) != _OPERATOR:
            continue
        weight, kept, table, axis = node.args
        if not isinstance(weight, Node) or weight.op != "get_attr":
            continue  # behind another parametrization: it stays as it is
        rules[str(weight.target)] = Rule(attribute(graph, kept), attribute(graph, table), axis)
        node.replace_all_uses_with(weight)
        graph.graph.erase_node(node)
    if rules:
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return rules


class ConstrainedFakeQuantize(nn.Module):
    """In the place of a weight's fake-quantize module: the codes are those that the rule allows.

    Args:
        inner: torchao's module, whose observer goes on watching.
        rule: of the weight.
    """

    kept: Tensor
    table: Tensor

    def __init__(self, inner: Any, rule: Rule):
        super().__init__()
        self.inner: Any = inner
        self.axis = rule.axis
        self.register_buffer("kept", rule.kept)
        self.register_buffer("table", rule.table)

    @property
    def rule(self) -> Rule:
        """As it is now."""
        return Rule(self.kept, self.table, self.axis)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight as the NPU will have it."""
        rounded: Tensor = self.inner(torch.where(self.kept, weight, 0.0))
        return self.rule.of(weight) if self.table.numel() else rounded


def constrain_prepared(prepared: GraphModule, rules: Mapping[str, Rule]) -> None:
    """Let the fake-quantize modules of these parameters obey their rules.

    Args:
        prepared: by ``prepare_qat_pt2e``.
        rules: from ``take_out``, of the graph that was prepared.
    """
    for node in prepared.graph.nodes:
        name = _parameter_behind(node, rules) if node.op == "call_module" else None
        if name is not None:
            prepared.set_submodule(str(node.target), ConstrainedFakeQuantize(prepared.get_submodule(str(node.target)), rules[name]))


def settle(prepared: GraphModule) -> None:
    """Write what the rules make of the weights into the parameters, with their scales, and give torchao its modules back.

    Args:
        prepared: trained; ``convert_pt2e`` is next.
    """
    with torch.no_grad():
        for node in prepared.graph.nodes:
            module = prepared.get_submodule(str(node.target)) if node.op == "call_module" else None
            if isinstance(module, ConstrainedFakeQuantize):
                weight, inner = attribute(prepared, _parameter(node)), module.inner
                weight.copy_(module.rule.of(weight))
                inner.activation_post_process(_value(prepared, node.all_input_nodes[0]))
                prepared.set_submodule(str(node.target), inner)


def _parameter_behind(node: Node, rules: Mapping[str, Rule]) -> str | None:
    """The parameter with a rule that a fake-quantize node watches, alone or times the factors of a batch normalization."""
    ready = [node.all_input_nodes[0]] if node.all_input_nodes else []
    if not ready or ready[0].op == "placeholder":
        return None
    found = _parameter(node)
    return str(found.target) if found is not None and str(found.target) in rules else None


def _parameter(node: Node) -> Any:
    """The first get_attr node on the way of first arguments before ``node``; None where there is none."""
    while node.op != "get_attr":
        if not node.all_input_nodes:
            return None
        node = node.all_input_nodes[0]
    return node


def _value(graph: GraphModule, node: Node) -> Any:
    """What a node computes from parameters and buffers alone."""
    if node.op == "get_attr":
        return attribute(graph, node)
    assert node.op == "call_function" and callable(node.target)

    def value(arg: Node) -> Any:
        return _value(graph, arg)

    return node.target(*torch.fx.map_arg(node.args, value), **torch.fx.map_arg(node.kwargs, value))
