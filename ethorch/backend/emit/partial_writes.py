"""Writes of a part of a buffer: rows at an index, a slice. Only what is written leaves the NPU.

The delegate computes with the whole new value, which is the old one with some rows replaced; the program's buffer needs no more
than these rows. Where their place is known they are an output of the delegate that lies inside the buffer; else the CPU puts them
there.
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

#: Operators whose result holds the elements of their operand in the same order.
_RESHAPES = frozenset(
    f"aten.{name}"
    for name in ("reshape.default", "view.default", "_unsafe_view.default", "unsqueeze.default", "squeeze.dim", "squeeze.dims",
                 "clone.default", "alias.default", "flatten.using_ints", "expand.default")
)  # fmt: skip
#: Bytes that memcpy moves while an operator puts one element at an index: 12 cycles to 0.5 (``figures/cpu_rates.py``).
_BYTES_PER_ELEMENT = 24


@dataclass(frozen=True)
class Part:
    """A part of a buffer that a program writes.

    Attributes:
        rows: the codes, which the delegate gives.
        shape: of the whole buffer as the write sees it.
        dim: along which rows are replaced.
        start: the first element of the buffer that they replace; all of them lie behind it. None where an index says it.
        index: which rows, int32 or int64 [rows]: an input of the program, or a clone of what the NPU computes; None where ``start``
            says it.
    """

    rows: Node
    shape: tuple[int, ...]
    dim: int
    start: int | None
    index: Node | None

    @property
    def given(self) -> tuple[Node, ...]:
        """What the delegate gives for it."""
        computed = self.index is not None and self.index.op != "placeholder"
        return (self.rows, self.index) if computed and self.index is not None else (self.rows,)


def parts_of(constants: Constants, graph: Graph, read: Node, written: Node) -> tuple[Part, ...] | None:
    """The writes that make ``written`` of what ``read`` reads, in order.

    None where it is more than that, or where copying all of it is cheaper.

    Each gets a quantize node of its own in ``graph``, in front of the operator.

    Args:
        constants: of the graph.
        read: the get_attr node of the buffer.
        written: the codes that are written to it.
    """
    if op_name(written.target) not in QUANTIZE:
        return None
    like, found, node = written.args[1:6], list[tuple[Node, _Rows]](), written
    while (node := _same_elements(node, like)) is not read:
        base, pieces = _pieces(constants, node, like)
        if base is None:
            return None
        found += [(node, piece) for piece in reversed(pieces)]
        node = base
    whole = read.meta["val"]  # rows at known places and those at an index would be written in another order than the model's
    put = sum(piece.rows.meta["val"].numel() for _, piece in found if piece.at is not None)
    kinds = {piece.at is None for _, piece in found}
    if len(kinds) != 1 or put * _BYTES_PER_ELEMENT >= whole.numel() * whole.element_size():
        return None
    parts = []
    for place, (rows, dim, start, index) in reversed(found):
        with graph.inserting_before(place):
            codes = graph.call_function(written.target, (rows, *like))  # type: ignore[arg-type]
        codes.meta = {**rows.meta, "val": torch.empty(rows.meta["val"].shape, dtype=whole.dtype, device="meta")}
        if index is not None and index.op != "placeholder":
            with graph.inserting_before(place):
                clone = graph.call_function(torch.ops.aten.clone.default, (index,))
            clone.meta = dict(index.meta)
            index = clone
        parts.append(Part(codes, tuple(place.meta["val"].shape), dim, start, index))
    return tuple(parts)


def write_parts(module: GraphModule, constants: Constants) -> list[tuple[Node, Part]]:
    """Let a graph write the rows of a buffer alone, where ``parts_of`` says which, in place of a ``copy_`` of all of it; in place.

    Returns:
        each such write, an ``index_put_`` or a ``copy_``, for ``at_their_places`` to say where in the buffer it goes.
    """
    graph, writes = module.graph, list[tuple[Node, Part]]()
    for name, write in writes_of(graph).items():
        written = write.args[1]
        first, *others = [node for node in graph.nodes if node.op == "get_attr" and str(node.target) == name]
        if not isinstance(written, Node) or first.meta["val"].dtype != written.meta["val"].dtype:
            continue
        for other in others:
            other.replace_all_uses_with(first)
            graph.erase_node(other)
        parts = parts_of(constants, graph, first, written)
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


def at_their_places(graph: Graph, writes: Sequence[tuple[Node, Part]]) -> None:
    """Let writes of parts write to views of the buffer; in place."""
    for write, part in writes:
        buffer: Node = write.args[0]  # type: ignore[assignment]
        with graph.inserting_before(write):
            place = _drawn(graph, aten.view.default, buffer, list(part.shape))
            if part.start is not None:
                first = part.start // math.prod(part.shape[part.dim + 1 :])
                rows = part.rows.meta["val"].shape[part.dim]
                place = _drawn(graph, aten.slice.Tensor, place, part.dim, first, first + rows)
        write.update_arg(0, place)


def _drawn(graph: Graph, target: Any, x: Node, *args: Any) -> Node:
    """A view, with its value."""
    node = graph.call_function(target, (x, *args))
    node.meta = {**x.meta, "val": target(x.meta["val"], *args)}
    return node


class _Rows(NamedTuple):
    """Rows that an operator puts into its first operand: the first three attributes of Part that differ, in floats."""

    rows: Node
    dim: int
    start: int | None
    at: Node | None


def _same_elements(node: Node, like: tuple[Any, ...]) -> Node:
    """The node that the codes or numbers of this one come from, through what neither changes nor moves them."""
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
    """What an operator replaces rows of, and these; None where it does something else."""
    name = op_name(node.target) if node.op == "call_function" else ""
    if name == "aten.cat.default":
        return _concatenated(node, like)
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
        given = [k for k, one in enumerate(indices) if one is not None]
        if accumulate or len(given) != 1:
            return None, []
        dim, index = given[0], indices[given[0]]
    dim %= len(shape)
    constant = None if index is None else constants(index)
    if constant is not None:
        if constant.dtype == np.bool_ or constant.ndim != 1:
            return None, []
        places = [int(k) % shape[dim] for k in constant]
    known = index is None or constant is not None
    count = len(places) if known else index.meta["val"].numel()
    if tuple(rows.meta["val"].shape) != (*shape[:dim], count, *shape[dim + 1 :]) or op_name(rows.target) not in DEQUANTIZE:
        return None, []
    if known:
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
    """Rows at known places, if they lie in the buffer one behind the other."""
    if not places or list(places) != list(range(places[0], places[0] + len(places))) or math.prod(shape[:dim]) != 1:
        return None
    return _Rows(rows, dim, places[0] * math.prod(shape[dim + 1 :]), None)


def _concatenated(node: Node, like: tuple[Any, ...]) -> tuple[Node | None, list[_Rows]]:
    """As ``_pieces``, of slices of one tensor, each where it was, and others between them."""
    shape = tuple(node.meta["val"].shape)
    (parts, *rest), _ = arguments(node)
    dim, at = int(rest[0]) % len(shape), 0
    base, pieces = None, list[_Rows]()
    for part in parts:
        size = part.meta["val"].shape[dim]
        whole = _sliced(part, dim, at, like)
        if whole is not None and base in (None, whole):
            base = whole
        else:
            piece = _at(part, dim, range(at, at + size), shape) if op_name(part.target) in DEQUANTIZE else None
            if piece is None:
                return None, []
            pieces.append(piece)
        at += size
    return (base, pieces) if base is not None and base.meta["val"].shape == shape and pieces else (None, [])


def _sliced(part: Node, dim: int, start: int, like: tuple[Any, ...]) -> Node | None:
    """What ``part`` is a slice of along ``dim`` from ``start`` on; None where it is none."""
    source = _same_elements(part, like)
    if source.op != "call_function" or op_name(source.target) not in ("aten.slice.Tensor", "aten.slice_copy.Tensor"):
        return None
    (whole, along, first, end, step), _ = arguments(source)
    extents = whole.meta["val"].shape
    if step != 1 or along % len(extents) != dim or slice(first, end).indices(extents[dim])[0] != start:
        return None
    return _same_elements(whole, like)
