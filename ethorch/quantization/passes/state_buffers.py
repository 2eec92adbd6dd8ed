"""Detect the buffers that a graph writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ethorch.lower.fx.node import is_in_place
from ethorch.quantization.passes.context import PassContext


def state_buffers(module: GraphModule) -> Iterator[tuple[str, Tensor]]:
    buffers = dict(module.named_buffers())
    seen: set[str] = set()
    for node in module.graph.nodes:
        if node.op == "call_function" and is_in_place(node) and isinstance(node.args[0], Node):
            name = str(node.args[0].target)
            if node.args[0].op == "get_attr" and name in buffers and name not in seen:
                seen.add(name)
                yield name, buffers[name]


def memory_of(buffer: Tensor) -> tuple[int, ...]:
    return (buffer.data_ptr(), *buffer.shape)


def find_foreign_buffers(modules: Mapping[str, GraphModule]) -> dict[str, list[str]]:
    """Return, for each model, the names of buffers that the model reads but only other models write."""
    written = {name: {memory_of(buffer) for _, buffer in state_buffers(module)} for name, module in modules.items()}
    every = set().union(*written.values())
    names_by_model = {}
    for method, module in modules.items():
        read = {str(node.target) for node in module.graph.nodes if node.op == "get_attr" and node.users}
        buffers = module.named_buffers(remove_duplicate=False)
        names = [name for name, buffer in buffers if name in read and memory_of(buffer) in every - written[method]]
        if names:
            names_by_model[method] = names
    return names_by_model


def register_written_parameters(graph_module: GraphModule, context: PassContext) -> None:
    """Convert written parameters to buffers, because only buffers can be mutable."""
    parameters = dict(graph_module.named_parameters())
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and is_in_place(node) and isinstance(node.args[0], Node):
            name = str(node.args[0].target)
            if node.args[0].op == "get_attr" and (parameter := parameters.pop(name, None)) is not None:
                owner, _, leaf = name.rpartition(".")
                module = graph_module.get_submodule(owner)
                del module._parameters[leaf]
                module.register_buffer(leaf, parameter.data)


def read_through_clone(buffer: Node) -> Node:
    """Replace a buffer with the returned ``clone`` in its readers, because get_attr operands are treated as constants."""
    reader = next(iter(buffer.users))
    with buffer.graph.inserting_after(buffer):
        clone = buffer.graph.call_function(torch.ops.aten.clone.default, (buffer,))
    clone.meta = dict(buffer.meta)
    if "nn_module_stack" in reader.meta:  # selects the config of the clone
        clone.meta["nn_module_stack"] = reader.meta["nn_module_stack"]
    buffer.replace_all_uses_with(clone, delete_user_cb=lambda user: user is not clone)
    return clone


def write_back(graph: GraphModule, names: Sequence[str]) -> None:
    """Add writes that leave the buffers ``names`` unchanged, so that these buffers are not treated as constants."""
    for name in names:
        first, *others = [node for node in graph.graph.nodes if node.op == "get_attr" and str(node.target) == name]
        for node in others:
            node.replace_all_uses_with(first)
        clone = read_through_clone(first)
        with graph.graph.inserting_before(graph.graph.output_node()):
            write = graph.graph.call_function(torch.ops.aten.copy_.default, (first, clone))
        write.meta = dict(first.meta)
    graph.recompile()
