"""Restrict weights to a few levels, or set some elements to zero, in training and in the quantized model.

``ethorch.tuning.compress.constrain`` inserts the operator ``ethorch::constrained_weight`` before a layer.
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
_MOST = 127  # largest integer value of a weight
_SMALLEST = 2.0**-24  # minimum scale, for channels of zeros


def constrain_weight(weight: Tensor, mask: Tensor, table: Tensor, axis: int) -> Tensor:
    """Return the weight with some elements set to zero and all others rounded to levels. Rounding does not affect the gradient.

    Args:
        mask: Bool tensor with the weight's shape. False sets an element to zero.
        table: int64[255] with the level of each integer value in -127..127, or an empty tensor to disable rounding.
        axis: Output channel axis. The largest magnitude of each channel maps to 127, so quantization preserves the levels.
    """
    masked = torch.where(mask, weight, 0.0)
    if not table.numel():
        return masked
    others = [dim for dim in range(weight.dim()) if dim != axis]
    scale = torch.clamp(masked.abs().amax(others, keepdim=True) / _MOST, min=_SMALLEST)
    codes = torch.clamp(torch.round(masked / scale), -_MOST, _MOST).long()
    return torch.where(mask, table[codes + _MOST] * scale, 0.0).to(weight.dtype)


def _empty_like_weight(weight: Tensor, mask: Tensor, table: Tensor, axis: int) -> Tensor:
    return torch.empty_like(weight)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _straight_through(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    (mask,) = ctx.saved_tensors
    return torch.where(mask, gradient, 0.0), None, None, None


def _define() -> torch.library.Library:
    # torch.library.custom_op would search all modules for its caller, which takes 25 ms.
    library = torch.library.Library("ethorch", "FRAGMENT")
    library.define("constrained_weight(Tensor weight, Tensor kept, Tensor table, SymInt axis) -> Tensor")
    library.impl("constrained_weight", constrain_weight, "CompositeExplicitAutograd")
    library.impl("constrained_weight", _empty_like_weight, "Meta")
    torch.library.register_autograd("ethorch::constrained_weight", _straight_through, setup_context=_save, lib=library)
    return library


_LIBRARY = _define()  # a reference, because deleting the library removes the operator


@dataclass(frozen=True, eq=False)
class Rule:
    """The arguments of ``constrained_weight`` except the weight."""

    mask: Tensor
    table: Tensor
    axis: int

    def of(self, weight: Tensor) -> Tensor:
        constrained: Tensor = torch.ops.ethorch.constrained_weight(weight, self.mask, self.table, self.axis)
        return constrained


def fold(graph: GraphModule) -> GraphModule:
    """Replace constrained weights of a trained model with constant parameters, in place, and return the graph."""
    rules = take_out(graph)
    names: dict[str, str] = {}
    for node in graph.graph.nodes:
        if node.op == "get_attr" and node.target in rules:
            name = names.get(node.target)
            if name is None:
                name = names[node.target] = f"_constrained_weight_{len(names)}"
                weight = attribute(graph, node)
                graph.register_parameter(name, nn.Parameter(rules[node.target].of(weight.detach()), weight.requires_grad))
            node.target = name
    if names:
        graph.recompile()
    return graph


def take_out(graph: GraphModule) -> dict[str, Rule]:
    """Remove ``constrained_weight`` operators from the graph and return their rules by parameter name."""
    rules: dict[str, Rule] = {}
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or op_name(node.target) != _OPERATOR:
            continue
        weight, mask, table, axis = node.args
        if not isinstance(weight, Node) or weight.op != "get_attr":
            continue  # the weight has several parametrizations
        rules[str(weight.target)] = Rule(attribute(graph, mask), attribute(graph, table), axis)
        node.replace_all_uses_with(weight)
        graph.graph.erase_node(node)
    if rules:
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return rules


class ConstrainedFakeQuantize(nn.Module):
    """A fake-quantize module for a constrained weight.

    Args:
        inner: torchao's fake-quantize module, whose observer remains active.
    """

    kept: Tensor
    table: Tensor

    def __init__(self, inner: Any, rule: Rule):
        super().__init__()
        self.inner: Any = inner
        self.axis = rule.axis
        self.register_buffer("kept", rule.mask)
        self.register_buffer("table", rule.table)

    @property
    def rule(self) -> Rule:
        return Rule(self.kept, self.table, self.axis)

    def forward(self, weight: Tensor) -> Tensor:
        rounded: Tensor = self.inner(torch.where(self.kept, weight, 0.0))
        return self.rule.of(weight) if self.table.numel() else rounded


def constrain_prepared(prepared: GraphModule, rules: Mapping[str, Rule]) -> None:
    """Wrap the fake-quantize modules of weights so that they apply ``rules``, the result of ``take_out``."""
    for node in prepared.graph.nodes:
        name = _find_constrained_parameter(node, rules) if node.op == "call_module" else None
        if name is not None:
            prepared.set_submodule(str(node.target), ConstrainedFakeQuantize(prepared.get_submodule(str(node.target)), rules[name]))


def settle(prepared: GraphModule) -> None:
    """Write constrained weights into the parameters of a trained graph, update scales, and unwrap the fake-quantize modules."""
    with torch.no_grad():
        for node in prepared.graph.nodes:
            module = prepared.get_submodule(str(node.target)) if node.op == "call_module" else None
            if isinstance(module, ConstrainedFakeQuantize):
                weight, inner = attribute(prepared, _parameter(node)), module.inner
                weight.copy_(module.rule.of(weight))
                inner.activation_post_process(_evaluate(prepared, node.all_input_nodes[0]))
                prepared.set_submodule(str(node.target), inner)


def _find_constrained_parameter(node: Node, rules: Mapping[str, Rule]) -> str | None:
    ready = [node.all_input_nodes[0]] if node.all_input_nodes else []
    if not ready or ready[0].op == "placeholder":
        return None
    parameter = _parameter(node)
    return str(parameter.target) if parameter is not None and str(parameter.target) in rules else None


def _parameter(node: Node) -> Any:
    while node.op != "get_attr":
        if not node.all_input_nodes:
            return None
        node = node.all_input_nodes[0]
    return node


def _evaluate(graph: GraphModule, node: Node) -> Any:
    if node.op == "get_attr":
        return attribute(graph, node)
    assert node.op == "call_function" and callable(node.target)

    def evaluate(arg: Node) -> Any:
        return _evaluate(graph, arg)

    return node.target(*torch.fx.map_arg(node.args, evaluate), **torch.fx.map_arg(node.kwargs, evaluate))
