"""Detect buffers shared by several models (same memory), and observe each of them with one range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ethorch.quantization.activation_observer import ActivationObserver, find_leader
from ethorch.quantization.passes.state_buffers import memory_of, state_buffers

#: Key of ``GraphModule.meta``: initial values of buffers, by name.
INITIAL = "ethorch_initial"


def unify_buffer_names(modules: Mapping[str, GraphModule]) -> dict[str, dict[str, str]]:
    """Return, for each model, a mapping from the names of written buffers to names that all models share."""
    written = {memory_of(buffer) for module in modules.values() for _, buffer in state_buffers(module)}
    common_names: dict[tuple[int, ...], str] = {}
    renames: dict[str, dict[str, str]] = {}
    for method, module in modules.items():
        renames[method] = {}
        for name, buffer in module.named_buffers(remove_duplicate=False):
            memory = memory_of(buffer)
            if memory in written:
                if memory not in common_names:
                    common_names[memory] = f"{method}.{name}" if name in common_names.values() else name
                renames[method][name] = common_names[memory]
    return renames


def copy_written_buffers(modules: Mapping[str, GraphModule]) -> None:
    """Replace written buffers with copies shared among models, because torch.export and ``convert_pt2e`` reuse the user's tensors.

    Store the initial values in ``module.meta[INITIAL]``.
    """
    written = {memory_of(buffer) for module in modules.values() for _, buffer in state_buffers(module)}
    copies: dict[tuple[int, ...], Tensor] = {}
    for module in modules.values():
        for name, buffer in list(module.named_buffers(remove_duplicate=False)):
            if (memory := memory_of(buffer)) in written:
                if memory not in copies:
                    copies[memory] = buffer.detach().clone()
                owner, _, leaf = name.rpartition(".")
                module.get_submodule(owner)._buffers[leaf] = copies[memory]
                module.meta.setdefault(INITIAL, {})[name] = copies[memory].clone()


@contextmanager
def start_from_initial_state(module: nn.Module) -> Iterator[None]:
    """Set the buffers of a quantized model to their initial values. At the end of the context, restore their previous values."""
    with preserve_buffers(module.buffers()):
        for name, contents in getattr(module, "meta", {}).get(INITIAL, {}).items():
            module.get_buffer(name).copy_(contents)
        yield


@contextmanager
def preserve_buffers(buffers: Iterable[Tensor]) -> Iterator[None]:
    """Restore the values of ``buffers`` at the end of the context."""
    before = {memory_of(buffer): (buffer, buffer.clone()) for buffer in buffers}
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, contents in before.values():
                buffer.copy_(contents)


def observe_together(graphs: Sequence[GraphModule], modules: Sequence[nn.Module], alternatives: bool = False) -> None:
    """Share ranges between models: those of written buffers, and of corresponding operators in shared submodules.

    Prefill and decode then compute the same integer values for a token, and have equal biases, scales and encoded weights.

    Args:
        alternatives: Whether the models are the same module with different input shapes, and therefore share all operators.
    """
    written = {memory_of(buffer) for graph in graphs for _, buffer in state_buffers(graph)}
    first: dict[object, ActivationObserver] = {}
    for graph, module in zip(graphs, modules, strict=True):
        keys = _keys(graph, module, written, alternatives)
        for node in graph.graph.nodes:
            source = node.args[0] if node.op == "call_module" and node.args else None
            while isinstance(source, Node) and source.op == "call_module":  # an observer of program inputs or outputs
                source = source.args[0]
            key = None if source is None else keys.get(source)
            observer = graph.get_submodule(str(node.target)) if key is not None else None
            if node.args and isinstance(node.args[0], Node) and node.args[0].op == "get_attr":
                observer = find_leader(observer)  # the buffer may share the observer of a concatenation
            if not isinstance(observer, ActivationObserver) or observer.leader is not None:
                continue
            kind = key, observer.dtype, observer.quant_min, observer.quant_max, observer.qscheme
            chosen = first.setdefault(kind, observer)
            if chosen is not observer:
                observer.follow(chosen, feed=True)


def _keys(graph: GraphModule, module: nn.Module, written: Collection[tuple[int, ...]], alternatives: bool) -> dict[object, object]:
    buffers = dict(graph.named_buffers(remove_duplicate=False))
    submodules = dict(module.named_modules(remove_duplicate=False))
    keys: dict[object, object] = {}
    counts: Counter[tuple[int, object]] = Counter()
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            buffer = buffers.get(str(node.target))
            if buffer is not None and memory_of(buffer) in written:
                keys[node] = memory_of(buffer)
        elif node.op == "placeholder" and alternatives:
            keys[node] = "input", str(node.target)
        elif node.op == "call_function" and (alternatives or node.meta.get("nn_module_stack")):
            stack = node.meta.get("nn_module_stack") or {"": ("", "")}
            path = list(stack.values())[-1][0]
            owner = submodules.get(path, module if alternatives else None)
            if owner is not None and (path or alternatives):
                operator = id(owner), node.target
                keys[node] = (*operator, counts[operator])
                counts[operator] += 1
    return keys
