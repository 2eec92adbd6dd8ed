"""Write only the changed rows of a buffer.

The delegate writes contiguous rows at a constant offset directly into the buffer. The CPU writes rows at variable indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.fx import Graph, GraphModule, Node

from ethorch.lower.frame import Constants
from ethorch.lower.fx.node import CASTS, DEQUANTIZE, QUANTIZE, arguments, op_name
from ethorch.lower.fx.states import writes_of

aten = torch.ops.aten

#: Operators that keep the order of the elements.
_RESHAPES = frozenset(
    f"aten.{name}"
    for name in ("reshape.default", "view.default", "_unsafe_view.default", "unsqueeze.default", "squeeze.dim", "squeeze.dims",
                 "clone.default", "alias.default", "flatten.using_ints", "expand.default")
)  # fmt: skip
#: Bytes that memcpy copies in the time of one indexed write: 12 cycles, compared with 0.5 per byte (``figures/cpu_rates.py``).
_BYTES_PER_ELEMENT = 24


@dataclass(frozen=True)
class Part:
    """A region of a buffer that a program overwrites: a slice or a set of rows.

    Attributes:
        rows: Node that computes the new integer values, which the delegate returns.
        shape: Shape of the written buffer view.
        dim: Axis along which rows are replaced.
        start: Constant flat index of the first replaced element of the buffer, or None if ``index`` is set.
        index: Node that returns the row indices, int32 or int64 [rows], or None if ``start`` is set.
    """

    rows: Node
    shape: tuple[int, ...]
    dim: int
    start: int | None
    index: Node | None


def find_parts(constants: Constants, graph: Graph, read: Node, written: Node) -> tuple[Part, ...] | None:
    """Return, in execution order, the partial writes that turn the buffer into ``written``.

    A quantize node for each write is inserted into ``graph``, before the operator that replaces the write's rows.

    Args:
        read: The get_attr node of the buffer.
        written: The quantize node written to the buffer.

    Returns:
        The partial writes, or None if they are impossible or not cheaper than copying the whole buffer.
    """
    if op_name(written.target) not in QUANTIZE:
        return None
    like, replaced, node = written.args[1:6], list[tuple[Node, _Rows]](), written
    while (node := _same_elements(node, like)) is not read:
        base, pieces = _pieces(constants, node, like)
        if base is None:
            return None
        replaced += [(node, piece) for piece in reversed(pieces)]
        node = base
    buffer = read.meta["val"]
    count = sum(piece.rows.meta["val"].numel() for _, piece in replaced if piece.at is not None)
    kinds = {piece.at is None for _, piece in replaced}  # a mix of both kinds would change the order of the writes
    if len(kinds) != 1 or count * _BYTES_PER_ELEMENT >= buffer.numel() * buffer.element_size():
        return None
    parts = []
    for place, (rows, dim, start, index) in reversed(replaced):
        with graph.inserting_before(place):
            codes = graph.call_function(written.target, (rows, *like))  # type: ignore[arg-type]
        codes.meta = {**rows.meta, "val": torch.empty(rows.meta["val"].shape, dtype=buffer.dtype, device="meta")}
        if index is not None and index.op != "placeholder":
            with graph.inserting_before(place):
                clone = graph.call_function(torch.ops.aten.clone.default, (index,))
            clone.meta = dict(index.meta)
            index = clone
        parts.append(Part(codes, tuple(place.meta["val"].shape), dim, start, index))
    return tuple(parts)


def write_parts(module: GraphModule, constants: Constants) -> list[tuple[Node, Part]]:
    """Replace each ``copy_`` to a whole buffer with the writes that ``find_parts`` returns.

    Return the ``index_put_`` or ``copy_`` node and the region of each write, for ``write_to_views``.
    """
    graph, writes = module.graph, list[tuple[Node, Part]]()
    for name, write in writes_of(graph).items():
        written = write.args[1]
        first, *repeated = [node for node in graph.nodes if node.op == "get_attr" and str(node.target) == name]
        if not isinstance(written, Node) or first.meta["val"].dtype != written.meta["val"].dtype:
            continue
        for node in repeated:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
        parts = find_parts(constants, graph, first, written)
        if parts is None:
            continue
        with graph.inserting_before(write):
            for part in parts:
                if part.index is None:
                    node = graph.call_function(aten.copy_.default, (first, part.rows))
                else:
                    node = graph.call_function(aten.index_put_.default, (first, [*[None] * part.dim, part.index], part.rows))
                node.meta = dict(first.meta)
                writes.append((node, part))
        graph.erase_node(write)
    return writes


def write_to_views(graph: Graph, writes: Sequence[tuple[Node, Part]]) -> None:
    """Replace the target of each partial write with a view of the buffer."""
    for write, part in writes:
        buffer: Node = write.args[0]  # type: ignore[assignment]
        with graph.inserting_before(write):
            place = _call(graph, aten.view.default, buffer, list(part.shape))
            if part.start is not None:
                first = part.start // math.prod(part.shape[part.dim + 1 :])
                rows = part.rows.meta["val"].shape[part.dim]
                place = _call(graph, aten.slice.Tensor, place, part.dim, first, first + rows)
        write.update_arg(0, place)


def _call(graph: Graph, target: Any, x: Node, *args: Any) -> Node:
    node = graph.call_function(target, (x, *args))
    node.meta = {**x.meta, "val": target(x.meta["val"], *args)}
    return node


class _Rows(NamedTuple):
    rows: Node
    dim: int
    start: int | None
    at: Node | None


def _same_elements(node: Node, like: tuple[Any, ...]) -> Node:
    while node.op == "call_function":
        name, source = op_name(node.target), node.args[0] if node.args else None
        if not isinstance(source, Node):
            return node
        if name in QUANTIZE | DEQUANTIZE:
            if node.args[1:6] != like:
                return node
        elif name not in _RESHAPES or source.meta["val"].numel() != node.meta["val"].numel():
            return node
        node = source
    return node


def _pieces(constants: Constants, node: Node, like: tuple[Any, ...]) -> tuple[Node | None, list[_Rows]]:
    name = op_name(node.target) if node.op == "call_function" else ""
    if name == "aten.cat.default":
        return _split_concatenation(node, like)
    if name not in ("aten.index_put.default", "aten.index_copy.default", "aten.slice_scatter.default"):
        return None, []
    args, _ = arguments(node)
    shape = tuple(node.meta["val"].shape)
    index: Any = None
    places: list[int] = []
    if name == "aten.slice_scatter.default":
        rows, dim, first, end, step = args[1:6]
        places = list(range(shape[dim]))[slice(first, end, step)]
    elif name == "aten.index_copy.default":
        dim, index, rows = args[1:4]
    else:
        indices, rows, accumulate = args[1:4]
        dims = [k for k, tensor in enumerate(indices) if tensor is not None]
        if accumulate or len(dims) != 1:
            return None, []
        dim, index = dims[0], indices[dims[0]]
    dim %= len(shape)
    constant = None if index is None else constants(index)
    if constant is not None:
        if constant.dtype == np.bool_ or constant.ndim != 1:
            return None, []
        places = [int(k) % shape[dim] for k in constant]
    is_constant = index is None or constant is not None
    count = len(places) if is_constant else index.meta["val"].numel()
    if tuple(rows.meta["val"].shape) != (*shape[:dim], count, *shape[dim + 1 :]) or op_name(rows.target) not in DEQUANTIZE:
        return None, []
    if is_constant:
        piece = _at(rows, dim, places, shape)
        return (node.all_input_nodes[0], [piece]) if piece else (None, [])
    source = index
    while source.op == "call_function" and op_name(source.target) in _RESHAPES | CASTS and isinstance(source.args[0], Node):
        source = source.args[0]
    if source.op != "placeholder" or tuple(source.meta["val"].shape) != (count,):
        source = index
    if source.meta["val"].dtype != torch.int32 and (source.op != "placeholder" or source.meta["val"].dtype != torch.int64):
        return None, []
    return (node.all_input_nodes[0], [_Rows(rows, dim, None, source)]) if source.meta["val"].dim() == 1 else (None, [])


def _at(rows: Node, dim: int, places: Sequence[int], shape: Sequence[int]) -> _Rows | None:
    if not places or list(places) != list(range(places[0], places[0] + len(places))) or math.prod(shape[:dim]) != 1:
        return None
    return _Rows(rows, dim, places[0] * math.prod(shape[dim + 1 :]), None)


def _split_concatenation(node: Node, like: tuple[Any, ...]) -> tuple[Node | None, list[_Rows]]:
    shape = tuple(node.meta["val"].shape)
    (parts, *rest), _ = arguments(node)
    dim, at = int(rest[0]) % len(shape), 0
    base, pieces = None, list[_Rows]()
    for part in parts:
        size = part.meta["val"].shape[dim]
        source = _source_of_slice(part, dim, at, like)
        if source is not None and base in (None, source):
            base = source
        else:
            piece = _at(part, dim, range(at, at + size), shape) if op_name(part.target) in DEQUANTIZE else None
            if piece is None:
                return None, []
            pieces.append(piece)
        at += size
    return (base, pieces) if base is not None and base.meta["val"].shape == shape and pieces else (None, [])


def _source_of_slice(part: Node, dim: int, start: int, like: tuple[Any, ...]) -> Node | None:
    source = _same_elements(part, like)
    if source.op != "call_function" or op_name(source.target) not in ("aten.slice.Tensor", "aten.slice_copy.Tensor"):
        return None
    (operand, along, first, end, step), _ = arguments(source)
    extents = operand.meta["val"].shape
    if step != 1 or along % len(extents) != dim or slice(first, end).indices(extents[dim])[0] != start:
        return None
    return _same_elements(operand, like)
