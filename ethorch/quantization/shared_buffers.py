"""Buffers that several models write and read: found by their memory, and observed with one range in all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ethorch.quantization.activation_observer import ActivationObserver, leading
from ethorch.quantization.passes.state_buffers import memory_of, state_buffers

#: Key of ``GraphModule.meta``: name -> what a buffer of its own held when the model was quantized.
INITIAL = "ethorch_initial"


def names_in_whole(modules: Mapping[str, GraphModule]) -> dict[str, dict[str, str]]:
    """For each model, its names of the buffers that any of them writes -> the buffer's name in all: that of the first model."""
    written = {memory_of(buffer) for module in modules.values() for _, buffer in state_buffers(module)}
    chosen: dict[tuple[int, ...], str] = {}
    found: dict[str, dict[str, str]] = {}
    for method, module in modules.items():
        found[method] = {}
        for name, buffer in module.named_buffers(remove_duplicate=False):
            place = memory_of(buffer)
            if place in written:
                if place not in chosen:
                    taken = set(chosen.values())
                    chosen[place] = name if name not in taken else f"{method}.{name}"
                found[method][name] = chosen[place]
    return found


def with_own_buffers(modules: Mapping[str, GraphModule]) -> None:
    """Let the buffers that any of these models writes be their own: torch.export and ``convert_pt2e`` leave them the user's.

    What the models share, they go on sharing: a buffer that two of them have is one tensor in both.
    """
    written = {memory_of(buffer) for module in modules.values() for _, buffer in state_buffers(module)}
    copies: dict[tuple[int, ...], Tensor] = {}
    for module in modules.values():
        for name, buffer in list(module.named_buffers(remove_duplicate=False)):
            if (place := memory_of(buffer)) in written:
                if place not in copies:
                    copies[place] = buffer.detach().clone()
                owner, _, leaf = name.rpartition(".")
                module.get_submodule(owner)._buffers[leaf] = copies[place]
                module.meta.setdefault(INITIAL, {})[name] = copies[place].clone()


@contextmanager
def at_the_beginning(module: nn.Module) -> Iterator[None]:
    """Inside, a quantized model's state is what a program begins with; afterwards it is what it was."""
    with kept(module.buffers()):
        for name, contents in getattr(module, "meta", {}).get(INITIAL, {}).items():
            module.get_buffer(name).copy_(contents)
        yield


@contextmanager
def kept(buffers: Iterable[Tensor]) -> Iterator[None]:
    """What these buffers hold afterwards is what they held before. Buffers of one memory are kept once."""
    before = {memory_of(buffer): (buffer, buffer.clone()) for buffer in buffers}
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, contents in before.values():
                buffer.copy_(contents)


def observe_together(graphs: Sequence[GraphModule], modules: Sequence[nn.Module], alternatives: bool = False) -> None:
    """Let observers of one thing in several models have one range: that of all their calls.

    One thing is a buffer that one of the models writes; and what an operator of a shared submodule computes: the first ``linear``
    of one model's layer and the first of another's, if the layer is the same object. So a token has the same codes in prefill and
    in decode, and the encoded weights, biases and scales are the same bytes.

    Args:
        graphs: the models with observers.
        modules: the users' modules that they were exported from.
        alternatives: they are one module at several shapes: its inputs, and operators outside of submodules, are shared too.
    """
    written = {memory_of(buffer) for graph in graphs for _, buffer in state_buffers(graph)}
    first: dict[object, ActivationObserver] = {}
    for graph, module in zip(graphs, modules, strict=True):
        keys = _keys(graph, module, written, alternatives)
        for node in graph.graph.nodes:
            key = keys.get(node.args[0]) if node.op == "call_module" and node.args else None
            own = graph.get_submodule(str(node.target)) if key is not None else None
            if node.args and isinstance(node.args[0], Node) and node.args[0].op == "get_attr":
                own = leading(own)  # a concatenation may observe for the buffer
            if not isinstance(own, ActivationObserver) or own.leader is not None:
                continue
            chosen = first.setdefault((key, own.dtype, own.quant_min, own.quant_max, own.qscheme), own)
            if chosen is not own:
                own.follow(chosen, feed=True)


def _keys(graph: GraphModule, module: nn.Module, written: Collection[tuple[int, ...]], alternatives: bool) -> dict[object, object]:
    """What a node's value is, in words that are the same for another model."""
    buffers = dict(graph.named_buffers(remove_duplicate=False))
    submodules = dict(module.named_modules(remove_duplicate=False))
    found: dict[object, object] = {}
    counts: Counter[tuple[int, object]] = Counter()
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            buffer = buffers.get(str(node.target))
            if buffer is not None and memory_of(buffer) in written:
                found[node] = memory_of(buffer)
        elif node.op == "placeholder" and alternatives:
            found[node] = "input", str(node.target)
        elif node.op == "call_function" and (alternatives or node.meta.get("nn_module_stack")):
            stack = node.meta.get("nn_module_stack") or {"": ("", "")}
            path = list(stack.values())[-1][0]
            owner = submodules.get(path, module if alternatives else None)
            if owner is not None and (path or alternatives):
                place = id(owner), node.target
                found[node] = (*place, counts[place])
                counts[place] += 1
    return found
