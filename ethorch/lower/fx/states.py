"""Mutable buffers of a converted graph, and their conversion to quantized storage.

``convert_pt2e`` leaves mutable buffers as float tensors and quantizes them after each read.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ethorch.lower.fx.node import CASTS, attribute, is_in_place, op_name, overload_of, tensor_of
from ethorch.lower.state_buffer import StateBuffer
from ethorch.support.errors import Reason

_PER_TENSOR = ("quantized_decomposed.quantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.default")
#: Reasons why a mutable buffer remains float.
WRITTEN_AS_FLOAT = Reason(
    "state.written_as_float",
    "the value written to the buffer is a float tensor that the NPU does not compute",
    "Quantize the module that computes the written value.",
)
SEVERAL_WRITES = Reason(
    "state.several_writes",
    "expected a single copy_ to the buffer, got several writes or another in-place operator",
    "Compute the next value of the buffer, and write it once with copy_.",
)
READ_AS_FLOAT = Reason(
    "state.read_as_float",
    "the CPU reads the buffer as floats, and the initial value is not a multiple of the buffer's scale",
    "Initialize the buffer with zeros, or quantize the module that reads the buffer.",
)
NOT_BY_ROWS = Reason("state.strided", "the buffer is not contiguous", "Register a contiguous() copy as the buffer.")


def writes_of(graph: Graph) -> dict[str, Node]:
    """Return the ``copy_`` node of each buffer whose only write is a ``copy_``, keyed by buffer name."""
    writes: dict[str, list[Node]] = {}
    for node in graph.nodes:
        target = overload_of(node.target) if node.op == "call_function" else None
        if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable and node.args:
            buffer = node.args[0]
            if isinstance(buffer, Node) and buffer.op == "get_attr":
                writes.setdefault(str(buffer.target), []).append(node)
    return {
        name: nodes[0]
        for name, nodes in writes.items()
        if len(nodes) == 1 and nodes[0].target is torch.ops.aten.copy_.default and isinstance(nodes[0].args[1], Node)
    }


def with_codes(module: GraphModule, wide: Collection[str] = ()) -> tuple[GraphModule, tuple[StateBuffer, ...]]:
    """Quantize mutable float buffers if this does not change results. Convert counters (see ``narrow_counters``) to int32.

    Args:
        wide: Counters that remain int64.

    Returns:
        The graph (``module`` itself if it has no mutable buffers) and the mutable buffers.
    """
    buffers = _mutable_buffers(module)
    if not buffers:
        return module, ()
    graph = copy.deepcopy(module.graph)
    result = GraphModule(module, graph)
    result.meta.update(module.meta)
    writes, states = writes_of(graph), []
    counters = narrow_counters(result)
    for name, tensor in buffers.items():
        if name in counters and name not in wide:
            states.append(_state(name, _narrow(result, name, writes[name])))
            continue
        if not tensor.dtype.is_floating_point:
            states.append(_state(name, tensor))
            continue
        readers = [node for node in graph.nodes if node.op == "get_attr" and str(node.target) == name]
        decided = _codes_of(tensor, writes.get(name), readers)
        if isinstance(decided, Reason):
            states.append(_state(name, tensor, decided))
            continue
        codes = _hold_codes(result, name, decided, readers, writes[name])
        scale, zero = decided.args[1:3]
        states.append(StateBuffer(name, tuple(codes.shape), _dtype_name(codes.dtype), float(scale), int(zero)))  # type: ignore[arg-type]
    _drop_clones(graph, buffers)
    _write_apart(graph)
    graph.eliminate_dead_code(lambda node: node.is_impure() or is_in_place(node))
    result.recompile()
    return result, tuple(states)


def narrow_counters(module: GraphModule) -> set[str]:
    """Return the names of int64 buffers that fit into int32, and that are read and written only with casts to and from int32."""
    counters = set()
    for name, write in writes_of(module.graph).items():
        tensor = tensor_of(module, write.args[0])  # type: ignore[arg-type]
        if tensor is None or tensor.dtype != torch.int64 or not torch.equal(tensor.to(torch.int32).to(torch.int64), tensor):
            continue
        reads = _initial_values(module.graph, name)
        new_value: Any = write.args[1]
        as_read = new_value in reads
        is_widened = op_name(new_value.target) in CASTS and _is_int32(new_value.args[0])
        readers = {user for node in reads for user in node.users} - {*reads, write}
        if (as_read or is_widened) and all(op_name(user.target) in CASTS and _is_int32(user) for user in readers):
            counters.add(name)
    return counters


def _initial_values(graph: Graph, name: str) -> list[Node]:
    reads = [node for node in graph.nodes if node.op == "get_attr" and str(node.target) == name]
    return reads + [user for node in reads for user in node.users if user.target is torch.ops.aten.clone.default]


def _is_int32(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.int32


def _narrow(module: GraphModule, name: str, write: Node) -> torch.Tensor:
    narrow = _hold(module, name, attribute(module, name).detach().to(torch.int32))
    reads = _initial_values(module.graph, name)
    for node in reads:
        node.meta["val"] = torch.empty(narrow.shape, dtype=torch.int32, device="meta")
        for user in list(node.users):
            if op_name(user.target) in CASTS:
                user.replace_all_uses_with(node)
                module.graph.erase_node(user)
    new_value = write.args[1]
    assert isinstance(new_value, Node)
    if new_value not in reads and op_name(new_value.target) in CASTS:
        write.replace_input_with(new_value, new_value.all_input_nodes[0])
    return narrow


def with_reads_first(module: GraphModule) -> GraphModule:
    """Insert a clone of each previous buffer value written to another buffer.

    Otherwise, ExecuTorch can overwrite the previous value before copying it.
    """
    late = _find_copies(module.graph)
    if not late:
        return module
    graph = copy.deepcopy(module.graph)
    for name in late:
        write = writes_of(graph)[name]
        buffer, new_value = write.args
        assert isinstance(buffer, Node) and isinstance(new_value, Node)
        tensor = tensor_of(module, buffer)
        assert tensor is not None
        with graph.inserting_after(new_value):
            clone = graph.call_function(torch.ops.aten.clone.default, (new_value,))
        clone.meta = {**new_value.meta, "val": torch.empty_like(tensor, device="meta")}
        write.replace_input_with(new_value, clone)
    result = GraphModule(module, graph)
    result.meta.update(module.meta)
    return result


def _find_copies(graph: Graph) -> list[str]:
    writes, names = writes_of(graph), []
    for name, write in writes.items():
        node = write.args[1]
        while isinstance(node, Node) and (op_name(node.target) in _PER_TENSOR or node.target is torch.ops.aten.clone.default):
            node = node.args[0]
        if isinstance(node, Node) and node.op == "get_attr" and str(node.target) in writes and str(node.target) != name:
            names.append(name)
    return names


def _drop_clones(graph: Graph, buffers: Mapping[str, torch.Tensor]) -> None:
    for reader in [node for node in graph.nodes if node.op == "get_attr" and str(node.target) in buffers]:
        for node in [reader, *(user for user in reader.users if op_name(user.target) == _PER_TENSOR[1])]:
            for clone in [user for user in node.users if user.target is torch.ops.aten.clone.default and not user.kwargs]:
                if any(_keeps(user) for user in clone.users):
                    continue
                for user in list(clone.users):
                    if node is not reader and _quantizes(user, node) and not any(_keeps(last) for last in user.users):
                        user.replace_all_uses_with(reader)
                        graph.erase_node(user)
                clone.replace_all_uses_with(node)


def _keeps(user: Node) -> bool:
    return user.op == "output" or is_in_place(user)


def _write_apart(graph: Graph) -> None:
    """Write a separate value to each buffer, because ExecuTorch mixes up buffers and outputs that share a value."""
    used = set(graph.output_node().all_input_nodes)
    for write in writes_of(graph).values():
        new_value = write.args[1]
        assert isinstance(new_value, Node)
        if new_value in used:
            codes = op_name(new_value.target) == _PER_TENSOR[0]
            with graph.inserting_after(new_value):
                target, args = (new_value.target, new_value.args) if codes else (torch.ops.aten.clone.default, (new_value,))
                duplicate = graph.call_function(target, args)  # type: ignore[arg-type]
            duplicate.meta = dict(new_value.meta)
            write.replace_input_with(new_value, duplicate)
        used.add(new_value)


def _mutable_buffers(module: GraphModule) -> dict[str, torch.Tensor]:
    buffers = {}
    for node in module.graph.nodes:
        buffer = node.args[0] if node.op == "call_function" and is_in_place(node) and node.args else None
        if isinstance(buffer, Node) and (tensor := tensor_of(module, buffer)) is not None:
            buffers[str(buffer.target)] = tensor
    return buffers


def _state(name: str, tensor: torch.Tensor, reason: Reason | None = None) -> StateBuffer:
    return StateBuffer(name, tuple(tensor.shape), _dtype_name(tensor.dtype), reason=reason)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _codes_of(tensor: torch.Tensor, write: Node | None, readers: Sequence[Node]) -> Node | Reason:
    if write is None:
        return SEVERAL_WRITES
    new_value = write.args[1]
    if not isinstance(new_value, Node) or op_name(new_value.target) != _PER_TENSOR[1]:
        return WRITTEN_AS_FLOAT
    if tensor.dtype != torch.float32 or new_value.kwargs.get("out_dtype") or _shape(new_value) != tensor.shape:
        return WRITTEN_AS_FLOAT
    if not tensor.is_contiguous():
        return NOT_BY_ROWS
    as_floats = any(user is not write and not _quantizes(user, new_value) for reader in readers for user in reader.users)
    if as_floats and not torch.equal(_dequantize(_quantize(tensor, new_value), new_value), tensor):
        return READ_AS_FLOAT
    return new_value


def _shape(node: Node | None) -> torch.Size | None:
    while node is not None and "val" not in node.meta and op_name(node.target).startswith("quantized_decomposed."):
        node = node.args[0] if isinstance(node.args[0], Node) else None
    value = None if node is None else node.meta.get("val")
    return value.shape if isinstance(value, torch.Tensor) else None


def _quantizes(node: Node, like: Node) -> bool:
    return op_name(node.target) == _PER_TENSOR[0] and node.args[1:6] == like.args[1:6]


def _quantize(tensor: torch.Tensor, like: Node) -> torch.Tensor:
    quantize = torch.ops.quantized_decomposed.quantize_per_tensor.default
    with torch.no_grad():
        result: torch.Tensor = quantize(tensor.detach(), *like.args[1:6])
    return result


def _dequantize(codes: torch.Tensor, like: Node) -> torch.Tensor:
    result: torch.Tensor = torch.ops.quantized_decomposed.dequantize_per_tensor.default(codes, *like.args[1:6])
    return result


def _hold_codes(module: GraphModule, name: str, like: Node, readers: Sequence[Node], write: Node) -> torch.Tensor:
    codes = _hold(module, name, _quantize(attribute(module, name), like))
    graph = module.graph
    for reader in readers:
        reader.meta["val"] = torch.empty(codes.shape, dtype=codes.dtype, device="meta")
        floats = [user for user in reader.users if user is not write and not _quantizes(user, like)]
        for user in list(reader.users):
            if user is not write and user not in floats:
                user.replace_all_uses_with(reader)
                graph.erase_node(user)
        if floats:
            with graph.inserting_after(reader):
                dequantize = graph.call_function(like.target, (reader, *like.args[1:]), dict(like.kwargs))  # type: ignore[arg-type]
            dequantize.meta = {**reader.meta, "val": torch.empty(codes.shape, device="meta")}
            for user in floats:
                user.replace_input_with(reader, dequantize)
    write.replace_input_with(like, like.all_input_nodes[0])
    return codes


def _hold(module: GraphModule, name: str, contents: torch.Tensor) -> torch.Tensor:
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    delattr(owner, last)
    owner.register_buffer(last, contents)
    return contents
