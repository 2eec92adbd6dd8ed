"""State of a converted graph: buffers that it changes, as floats and as codes.

``convert_pt2e`` leaves such a buffer in float, with a quantize node behind it and a dequantize node before the ``copy_`` that
writes it. Where what is written are codes of one scale, the buffer can hold these codes. A counter of int64 that is read as int32,
and written as a cast of an int32, can hold that.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ethorch.lower.fx.node import CASTS, attribute, changes_in_place, op_name, overload_of, tensor_of
from ethorch.lower.state_buffer import StateBuffer
from ethorch.support.errors import Reason

_PER_TENSOR = ("quantized_decomposed.quantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.default")
#: Why a buffer that a program changes stays in float.
WRITTEN_AS_FLOAT = Reason(
    "state.written_as_float",
    "what is written to it is a float that no operator on the NPU computes",
    "Quantize the module that computes it.",
)
SEVERAL_WRITES = Reason(
    "state.several_writes", "several operators change it in place", "Compute its next value, and write that to it once, by copy_."
)
READ_AS_FLOAT = Reason(
    "state.read_as_float",
    "the CPU reads it as floats, and what it begins with is no multiple of its scale",
    "Let it begin with zeros, or quantize the module that reads it.",
)
NOT_BY_ROWS = Reason("state.strided", "it does not lie in memory row by row", "Register its contiguous() copy as the buffer.")


def writes_of(graph: Graph) -> dict[str, Node]:
    """Name of a buffer -> the ``copy_`` node that writes it, of those that one ``copy_`` writes and nothing else changes."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        target = overload_of(node.target) if node.op == "call_function" else None
        if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable and node.args:
            written = node.args[0]
            if isinstance(written, Node) and written.op == "get_attr":
                found.setdefault(str(written.target), []).append(node)
    return {
        name: nodes[0]
        for name, nodes in found.items()
        if len(nodes) == 1 and nodes[0].target is torch.ops.aten.copy_.default and isinstance(nodes[0].args[1], Node)
    }


def with_codes(module: GraphModule, wide: Collection[str] = ()) -> tuple[GraphModule, tuple[StateBuffer, ...]]:
    """A converted graph whose buffers hold codes where that is no difference to any result; the given one stays as it is.

    A buffer of codes is written without a dequantize node, and read without a quantize node of its own scale. It begins with what
    the float buffer begins with, quantized as PyTorch does it. A counter of ``narrow_counters`` is of int32.

    Args:
        wide: counters that stay of int64.

    Returns:
        the graph, the given one itself where it changes no buffer; and the buffers that it changes, by name.
    """
    changed = _changed(module)
    if not changed:
        return module, ()
    graph = copy.deepcopy(module.graph)
    result = GraphModule(module, graph)
    result.meta.update(module.meta)
    writes, found = writes_of(graph), []
    counters = narrow_counters(result)
    for name, tensor in changed.items():
        if name in counters and name not in wide:
            found.append(_kept(name, _narrow(result, name, writes[name])))
            continue
        if not tensor.dtype.is_floating_point:
            found.append(_kept(name, tensor))
            continue
        readers = [node for node in graph.nodes if node.op == "get_attr" and str(node.target) == name]
        decided = _codes_of(tensor, writes.get(name), readers)
        if isinstance(decided, Reason):
            found.append(_kept(name, tensor, decided))
            continue
        codes = _hold_codes(result, name, decided, readers, writes[name])
        scale, zero = decided.args[1:3]
        found.append(StateBuffer(name, tuple(codes.shape), _named(codes.dtype), float(scale), int(zero)))  # type: ignore[arg-type]
    _drop_clones(graph, changed)
    _write_apart(graph)
    graph.eliminate_dead_code(lambda node: node.is_impure() or changes_in_place(node))
    result.recompile()
    return result, tuple(found)


def narrow_counters(module: GraphModule) -> set[str]:
    """The buffers of int64 that a converted graph reads as int32 alone, and writes as casts of int32: they can be of int32."""
    found = set()
    for name, write in writes_of(module.graph).items():
        tensor = tensor_of(module, write.args[0])  # type: ignore[arg-type]
        if tensor is None or tensor.dtype != torch.int64 or not torch.equal(tensor.to(torch.int32).to(torch.int64), tensor):
            continue
        held = _held(module.graph, name)
        written: Any = write.args[1]
        as_read = written in held
        widened = op_name(written.target) in CASTS and _is_int32(written.args[0])
        readers = {user for node in held for user in node.users} - {*held, write}
        if (as_read or widened) and all(op_name(user.target) in CASTS and _is_int32(user) for user in readers):
            found.add(name)
    return found


def _held(graph: Graph, name: str) -> list[Node]:
    """The nodes that are a buffer's contents before the program changes them: it, and clones of it."""
    held = [node for node in graph.nodes if node.op == "get_attr" and str(node.target) == name]
    return held + [user for node in held for user in node.users if user.target is torch.ops.aten.clone.default]


def _is_int32(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.int32


def _narrow(module: GraphModule, name: str, write: Node) -> torch.Tensor:
    """Let a counter hold int32, which its readers take as it is. Returns what it begins with."""
    narrow = _hold(module, name, attribute(module, name).detach().to(torch.int32))
    held = _held(module.graph, name)
    for node in held:
        node.meta["val"] = torch.empty(narrow.shape, dtype=torch.int32, device="meta")
        for user in list(node.users):
            if op_name(user.target) in CASTS:
                user.replace_all_uses_with(node)
                module.graph.erase_node(user)
    written = write.args[1]
    assert isinstance(written, Node)
    if written not in held and op_name(written.target) in CASTS:
        write.replace_input_with(written, written.all_input_nodes[0])
    return narrow


def with_reads_first(module: GraphModule) -> GraphModule:
    """The graph where a buffer takes a clone of what another one held; the given one where none does.

    ExecuTorch takes quantize and dequantize nodes of one scale out, is left with one buffer that is copied into another, and
    makes these copies in an order of its own, when that one may have its next contents already.
    """
    late = _taken_from_buffers(module.graph)
    if not late:
        return module
    graph = copy.deepcopy(module.graph)
    for name in late:
        write = writes_of(graph)[name]
        buffer, written = write.args
        assert isinstance(buffer, Node) and isinstance(written, Node)
        tensor = tensor_of(module, buffer)
        assert tensor is not None
        with graph.inserting_after(written):
            clone = graph.call_function(torch.ops.aten.clone.default, (written,))
        clone.meta = {**written.meta, "val": torch.empty_like(tensor, device="meta")}
        write.replace_input_with(written, clone)
    result = GraphModule(module, graph)
    result.meta.update(module.meta)
    return result


def _taken_from_buffers(graph: Graph) -> list[str]:
    """The buffers that are given what another buffer held that is written too, as it is or through quantize and dequantize."""
    writes, found = writes_of(graph), []
    for name, write in writes.items():
        node = write.args[1]
        while isinstance(node, Node) and (op_name(node.target) in _PER_TENSOR or node.target is torch.ops.aten.clone.default):
            node = node.args[0]
        if isinstance(node, Node) and node.op == "get_attr" and str(node.target) in writes and str(node.target) != name:
            found.append(name)
    return found


def _drop_clones(graph: Graph, buffers: Mapping[str, torch.Tensor]) -> None:
    """What reads the clone of a buffer reads the buffer. What is returned, or written somewhere, stays a value of its own.

    Another write may come before it: of a line of buffers, each takes what the one before it held.
    """
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
    """Does it keep its operand beyond the graph's operators: the output, and what writes to a buffer?"""
    return user.op == "output" or changes_in_place(user)


def _write_apart(graph: Graph) -> None:
    """What is written to a buffer is written to no other one, and not returned: ExecuTorch's export takes it for one of the two."""
    taken = set(graph.output_node().all_input_nodes)
    for write in writes_of(graph).values():
        written = write.args[1]
        assert isinstance(written, Node)
        if written in taken:
            codes = op_name(written.target) == _PER_TENSOR[0]
            with graph.inserting_after(written):
                target, args = (written.target, written.args) if codes else (torch.ops.aten.clone.default, (written,))
                again = graph.call_function(target, args)  # type: ignore[arg-type]
            again.meta = dict(written.meta)
            write.replace_input_with(written, again)
        taken.add(written)


def _changed(module: GraphModule) -> dict[str, torch.Tensor]:
    """The buffers that a graph writes, by name, in the order of the writes."""
    found = {}
    for node in module.graph.nodes:
        written = node.args[0] if node.op == "call_function" and changes_in_place(node) and node.args else None
        if isinstance(written, Node) and (tensor := tensor_of(module, written)) is not None:
            found[str(written.target)] = tensor
    return found


def _kept(name: str, tensor: torch.Tensor, reason: Reason | None = None) -> StateBuffer:
    return StateBuffer(name, tuple(tensor.shape), _named(tensor.dtype), reason=reason)


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _codes_of(tensor: torch.Tensor, write: Node | None, readers: Sequence[Node]) -> Node | Reason:
    """The dequantize node of what is written, whose codes the buffer can hold; or why it cannot hold them."""
    if write is None:
        return SEVERAL_WRITES
    written = write.args[1]
    if not isinstance(written, Node) or op_name(written.target) != _PER_TENSOR[1]:
        return WRITTEN_AS_FLOAT
    if tensor.dtype != torch.float32 or written.kwargs.get("out_dtype") or _shape(written) != tensor.shape:
        return WRITTEN_AS_FLOAT
    if not tensor.is_contiguous():
        return NOT_BY_ROWS
    as_floats = any(user is not write and not _quantizes(user, written) for reader in readers for user in reader.users)
    if as_floats and not torch.equal(_dequantized(_quantized(tensor, written), written), tensor):
        return READ_AS_FLOAT
    return written


def _shape(node: Node | None) -> torch.Size | None:
    """The shape of its result; ``convert_pt2e`` leaves its own nodes without metadata, which have that of what they read."""
    while node is not None and "val" not in node.meta and op_name(node.target).startswith("quantized_decomposed."):
        node = node.args[0] if isinstance(node.args[0], Node) else None
    value = None if node is None else node.meta.get("val")
    return value.shape if isinstance(value, torch.Tensor) else None


def _quantizes(node: Node, like: Node) -> bool:
    """Is it a quantize node with the parameters of the dequantize node ``like``?"""
    return op_name(node.target) == _PER_TENSOR[0] and node.args[1:6] == like.args[1:6]


def _quantized(tensor: torch.Tensor, like: Node) -> torch.Tensor:
    quantize = torch.ops.quantized_decomposed.quantize_per_tensor.default
    with torch.no_grad():
        result: torch.Tensor = quantize(tensor.detach(), *like.args[1:6])
    return result


def _dequantized(codes: torch.Tensor, like: Node) -> torch.Tensor:
    result: torch.Tensor = torch.ops.quantized_decomposed.dequantize_per_tensor.default(codes, *like.args[1:6])
    return result


def _hold_codes(module: GraphModule, name: str, like: Node, readers: Sequence[Node], write: Node) -> torch.Tensor:
    """Let the buffer hold codes, its readers read them, and ``write`` write them. Returns what it begins with."""
    codes = _hold(module, name, _quantized(attribute(module, name), like))
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
                back = graph.call_function(like.target, (reader, *like.args[1:]), dict(like.kwargs))  # type: ignore[arg-type]
            back.meta = {**reader.meta, "val": torch.empty(codes.shape, device="meta")}
            for user in floats:
                user.replace_input_with(reader, back)
    write.replace_input_with(like, like.all_input_nodes[0])
    return codes


def _hold(module: GraphModule, name: str, contents: torch.Tensor) -> torch.Tensor:
    """Let a buffer begin with other contents. Returns these."""
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    delattr(owner, last)
    owner.register_buffer(last, contents)
    return contents
