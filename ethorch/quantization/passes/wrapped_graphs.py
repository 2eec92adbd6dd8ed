"""Inline the graphs that torch.export creates for ``torch.no_grad()`` and ``torch.autocast()``.

The quantizer chooses the precision, so operators under autocast run in float32. Program outputs keep their autocast dtype.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import value_of
from ethorch.lower.fx.node import ASSERTIONS, attribute, map_leaves, op_name
from ethorch.quantization.passes.context import PassContext

aten = torch.ops.aten
_GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast

#: Position of the graph argument of each operator, which is followed by the operands of the graph.
_GRAPH = {_GRADIENTS: 1, _AUTOCAST: 4}
#: Functions that torch.export calls instead of these operators if the model has control flow.
_MARKS = {_enter_autocast, _exit_autocast, torch._C._set_grad_enabled}


def inline_wrapped_graphs(graph_module: GraphModule, context: PassContext) -> None:
    """Inline wrapped graphs in place, recursively. If parameters are trained, detach the results of ``no_grad`` graphs."""
    for child in graph_module.children():
        if isinstance(child, GraphModule):
            inline_wrapped_graphs(child, context)
    if any(node.target in _GRAPH or node.target in _MARKS for node in graph_module.graph.nodes):
        _Inliner(graph_module, context.trainable).run()
        graph_module.graph.eliminate_dead_code()
        graph_module.recompile()


class _Inliner:
    """An inliner that processes the nodes in graph order."""

    def __init__(self, model: GraphModule, trains: bool):
        self.model, self.graph, self.trains = model, model.graph, trains
        self.lower: list[torch.dtype | None] = [None]  # of enclosing autocasts, innermost last; None if disabled
        self.changed = False  # the dtype of a value
        self.marks: list[Node] = []

    def run(self) -> None:
        output = self.graph.output_node()
        before = [value_of(node) for node in output.all_input_nodes]
        for node in list(self.graph.nodes):
            if node.target in _GRAPH:
                self.inline(node)
                self.drop(node)
            elif node.target in _MARKS:
                self.mark(node)
            elif node.op == "call_function":
                self.adapt(node)
        for node in reversed(self.marks):
            self.graph.erase_node(node)
        for node, value in zip(output.all_input_nodes, before, strict=True):
            if isinstance(value, torch.Tensor) and value.dtype != node.meta["val"].dtype:
                with self.graph.inserting_before(output):
                    output.replace_input_with(node, _cast(node, value.dtype))

    def inline(self, node: Node) -> None:
        index = _GRAPH[node.target]  # type: ignore[index]
        inner = attribute(self.model, node.args[index])  # type: ignore[arg-type]
        assert isinstance(inner, GraphModule), node.format_node()
        self.lower.append(self.lower[-1] if node.target is _GRADIENTS else _dtype_of(node))
        operands = iter(node.args[index + 1 :])
        env: dict[Node, Any] = {}
        results: Any = ()
        for each in inner.graph.nodes:
            if each.op == "placeholder":
                env[each] = next(operands)
            elif each.op == "output":
                results = torch.fx.map_arg(each.args[0], env.get)
            elif each.op != "call_function" or each.users or each.is_impure():
                with self.graph.inserting_before(node):
                    env[each] = self.graph.node_copy(each, env.__getitem__)
                self.adapt(env[each])
        self.lower.pop()
        detached = self.trains and node.target is _GRADIENTS and not node.args[0]
        for item in list(node.users):
            assert item.target is operator.getitem, item.format_node()
            result = results[item.args[1]]
            if detached:
                with self.graph.inserting_before(node):
                    result = _emit(aten.detach.default, result)
            item.replace_all_uses_with(result)
            self.graph.erase_node(item)

    def drop(self, node: Node) -> None:
        graph = node.args[_GRAPH[node.target]]  # type: ignore[index]
        assert isinstance(graph, Node)
        self.graph.erase_node(node)
        if not graph.users:
            self.graph.erase_node(graph)
            if all(reference.target != graph.target for reference in self.graph.find_nodes(op="get_attr")):
                self.model.delete_submodule(str(graph.target))

    def mark(self, node: Node) -> None:
        if node.target is _enter_autocast:
            self.lower.append(_dtype_of(node))
        elif node.target is _exit_autocast:
            self.lower.pop()
        self.marks.append(node)

    # --- autocast -----------------------------------------------------------------------------------------------------

    def adapt(self, node: Node) -> None:
        lower = self.lower[-1]
        if lower is None and not self.changed:
            return
        if op_name(node.target) in ASSERTIONS:
            self.graph.erase_node(node)
            return
        if lower is not None:

            def wide(argument: Any) -> Any:
                return torch.float32 if argument is lower else argument

            self.changed = True
            node.args, node.kwargs = map_leaves(node.args, wide), map_leaves(node.kwargs, wide)
            for operand in node.all_input_nodes:
                value = value_of(operand)
                if isinstance(value, torch.Tensor) and value.dtype == lower:
                    with self.graph.inserting_before(node):
                        node.replace_input_with(operand, _cast(operand, torch.float32))
        if isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem:
            node.meta["val"] = _run(node)


def _dtype_of(node: Node) -> torch.dtype | None:
    _, dtype, enabled, *_ = node.args
    return dtype if enabled else None  # type: ignore[return-value]


def _cast(node: Node, dtype: torch.dtype) -> Node:
    return _emit(aten.to.dtype, node, dtype)


def _emit(target: Any, node: Node, *args: Any) -> Node:
    emitted: Node = node.graph.call_function(target, (node, *args))
    emitted.meta = dict(node.meta)
    emitted.meta["val"] = _run(emitted)
    return emitted


def _run(node: Node) -> Any:
    mode = detect_fake_mode([value_of(arg) for arg in node.all_input_nodes])
    if mode is None:
        return node.meta.get("val")
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value_of)
    with mode, torch.no_grad():
        return node.target(*args, **kwargs)  # type: ignore[operator]
