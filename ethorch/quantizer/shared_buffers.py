"""Buffers that several models write and read: found by their memory, and observed by one observer in all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ethorch.fx.node import changes_in_place


def state_buffers(module: GraphModule) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of each buffer that the model's graph writes."""
    buffers = dict(module.named_buffers())
    seen: set[str] = set()
    for node in module.graph.nodes:
        if node.op == "call_function" and changes_in_place(node) and isinstance(node.args[0], Node):
            name = str(node.args[0].target)
            if node.args[0].op == "get_attr" and name in buffers and name not in seen:
                seen.add(name)
                yield name, buffers[name]


def names_in_whole(modules: Mapping[str, GraphModule]) -> dict[str, dict[str, str]]:
    """For each model, its names of the buffers that any of them writes -> the buffer's name in all: that of the first model."""
    written = {_place(buffer) for module in modules.values() for _, buffer in state_buffers(module)}
    chosen: dict[tuple[int, ...], str] = {}
    found: dict[str, dict[str, str]] = {}
    for method, module in modules.items():
        found[method] = {}
        for name, buffer in module.named_buffers(remove_duplicate=False):
            place = _place(buffer)
            if place in written:
                if place not in chosen:
                    taken = set(chosen.values())
                    chosen[place] = name if name not in taken else f"{method}.{name}"
                found[method][name] = chosen[place]
    return found


def _place(buffer: Tensor) -> tuple[int, ...]:
    return (buffer.data_ptr(), *buffer.shape)


def one_observer(modules: Sequence[GraphModule]) -> None:
    """Make what observes a shared buffer one object in all models, so that its range is that of all their calls."""
    first: dict[tuple[int, ...], nn.Module] = {}
    written = {_place(buffer) for module in modules for _, buffer in state_buffers(module)}
    for module in modules:
        buffers = dict(module.named_buffers(remove_duplicate=False))
        for node in module.graph.nodes:
            buffer = buffers.get(str(node.target)) if node.op == "get_attr" else None
            if buffer is None or _place(buffer) not in written:
                continue
            for reader in node.users:
                if reader.op == "call_module":
                    own = module.get_submodule(str(reader.target))
                    chosen = first.setdefault(_place(buffer), own)
                    if chosen is not own:
                        _put(module, own, chosen)


def _put(module: GraphModule, old: nn.Module, new: nn.Module) -> None:
    """Let every name of ``old`` in the module be one of ``new``."""
    for name, found in list(module.named_modules(remove_duplicate=False)):
        if found is old:
            module.set_submodule(name, new)
