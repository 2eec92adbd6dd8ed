"""Replace each ``scatter`` at the index of an argmax or argmin with a comparison and a selection, which run on the NPU."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from ethorch.lower.fx.aten_builder import AtenBuilder, shape_of
from ethorch.lower.fx.node import arguments, is_float, op_name
from ethorch.lower.ops.extremes import argmax, argmin, max_dim, min_dim
from ethorch.lower.ops.shape import identity, view
from ethorch.lower.ops.spec import find
from ethorch.quantization.passes.context import PassContext

aten = torch.ops.aten

_SCATTERS = frozenset({"aten.scatter.value", "aten.scatter.src"})
_PLACES = (argmax, argmin)
_BOTH = (max_dim, min_dim)  #: operators with outputs (extreme, position)


def lower_hard_choices(graph_module: GraphModule, context: PassContext) -> None:
    """Replace each scatter of floats at the index of an argmax or argmin, unless the scatter is excluded."""
    for node in list(graph_module.graph.nodes):
        if op_name(node.target) in _SCATTERS and not context.is_excluded(node) and _is_choice(node):
            node.replace_all_uses_with(_select(AtenBuilder(graph_module, node), node))


def _is_choice(scatter: Node) -> bool:
    (x, dim, places, written, *_), _ = arguments(scatter)
    if not is_float(x) or not _is_place(places):
        return False
    shape = list(shape_of(x))
    if not shape:
        return False
    shape[dim] = 1
    return list(shape_of(places)) == shape and (not isinstance(written, Node) or list(shape_of(written)) == shape)


def _is_place(places: Node) -> bool:
    while find(places.target) in (view, identity):
        places = places.all_input_nodes[0]
    if places.target is operator.getitem:
        return find(places.all_input_nodes[0].target) in _BOTH and bool(places.args[1] == 1)
    return find(places.target) in _PLACES


def _select(s: AtenBuilder, scatter: Node) -> Node:
    (x, dim, places, written, *_), _ = arguments(scatter)
    shape = shape_of(x)
    numbers = torch.arange(shape[dim]).reshape([-1 if d == dim % len(shape) else 1 for d in range(len(shape))])
    mark = s(aten.eq.Tensor, s.constant(numbers), places)
    return s(aten.where.self, mark, written if isinstance(written, Node) else s.constant(torch.tensor(float(written))), x)
