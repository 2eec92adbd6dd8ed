"""Pickling of graph modules, including the names, metadata and control flow that torch omits."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import cloudpickle
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

#: Node metadata that ethorch reads.
_META = ("val", "tensor_meta", "nn_module_stack", "stack_trace", "custom")
#: Attributes that GraphModule derives from the graph.
_DERIVED = ("_graph", "_code", "_lineno_map", "_prologue_start")


class _Reference(str): ...


def dumps(value: Any) -> bytes:
    """Pickle an object. Classes that cannot be imported are pickled by value."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def loads(content: bytes) -> Any:
    return pickle.loads(content)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # untyped library
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, GraphModule):
            return _empty_module, (), _state(value), None, None, _fill
        if isinstance(value, torch._ops.OpOverload):
            return _overload, (value._schema.name, value._overloadname)
        if isinstance(value, FakeTensor):
            return _on_meta, (tuple(value.shape), value.stride(), value.dtype)
        return super().reducer_override(value)


def _state(module: GraphModule) -> dict[str, Any]:
    graph = module.graph
    nodes = [
        (
            node.op,
            node.name,
            node.target,
            map_aggregate((node.args, node.kwargs), lambda x: _Reference(x.name) if isinstance(x, Node) else x),
            {key: node.meta[key] for key in _META if key in node.meta},
        )
        for node in graph.nodes
    ]
    attributes = {name: value for name, value in module.__dict__.items() if name not in _DERIVED}
    return {"attributes": attributes, "nodes": nodes, "codegen": graph._codegen, "name": type(module).__name__}


def _empty_module() -> GraphModule:
    return GraphModule.__new__(GraphModule)


def _fill(module: GraphModule, state: Mapping[str, Any]) -> None:
    graph, node_by_name = Graph(), dict[str, Node]()
    graph._codegen = state["codegen"]
    for op, name, target, arguments, meta in state["nodes"]:
        args, kwargs = map_aggregate(arguments, lambda x: node_by_name[x] if isinstance(x, _Reference) else x)
        node = node_by_name[name] = graph.create_node(op, target, args, kwargs, name)
        node.meta = dict(meta)
    root = nn.Module()
    root.__dict__ = dict(state["attributes"])
    GraphModule.__init__(module, root, graph, state["name"])
    for name, value in state["attributes"].items():
        module.__dict__.setdefault(name, value)
    for name in ("_parameters", "_buffers", "_modules"):  # including unused entries
        for key, value in state["attributes"][name].items():
            module.__dict__[name].setdefault(key, value)


def _overload(name: str, overload: str) -> Any:
    namespace, _, operator = name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), operator), overload or "default")


def _on_meta(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")
