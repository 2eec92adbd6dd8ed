"""The few peephole rules, each of which preserves every bit, and the driver that runs them to a fixed point.

What Vela would get wrong is then led around it: see ``detours``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ethorch.tosa.channels import pick_channels
from ethorch.tosa.copies import rescales_as_convolutions
from ethorch.tosa.detours import ELEMENTWISE, copied, fold_wide_moves, tables_before_transposes, take_detours
from ethorch.tosa.ir import Graph, Op, Value
from ethorch.tosa.opset import OPSET
from ethorch.tosa.ranks import keep_shapes
from ethorch.tosa.splits import split_convolutions
from ethorch.tosa.strides import fold_strides
from ethorch.tosa.tiles import tiles_in_steps
from ethorch.tosa.transposes import transposes_in_steps
from ethorch.tosa.uses import Context, drop_dead

#: A rule looks at one operator and its producers and returns its replacement, or None.
Rule = Callable[[Op, Context], "Op | Value | None"]


def merge_reshapes(op: Op, context: Context) -> Op | Value | None:
    """RESHAPE of RESHAPE is the outer one; RESHAPE to the same shape is nothing."""
    if op.name != "RESHAPE":
        return None
    if op.operands[0].shape == op.result.shape:
        return op.operands[0]
    inner = context.before(op.operands[0], "RESHAPE", sole=False)
    return Op("RESHAPE", inner.operands, op.attrs, op.results) if inner else None


def merge_transposes(op: Op, context: Context) -> Op | Value | None:
    """TRANSPOSE of TRANSPOSE is one, or nothing where they cancel."""
    if op.name != "TRANSPOSE":
        return None
    inner = context.before(op.operands[0], "TRANSPOSE", sole=False)
    if not inner:
        return op.operands[0] if list(op.attrs["perms"]) == sorted(op.attrs["perms"]) else None
    perms = tuple(inner.attrs["perms"][axis] for axis in op.attrs["perms"])
    return Op("TRANSPOSE", inner.operands, {"perms": perms}, op.results)


def merge_clamps(op: Op, context: Context) -> Op | Value | None:
    """CLAMP of CLAMP is one with the tighter bounds, where the ranges overlap."""
    if op.name != "CLAMP":
        return None
    inner = context.before(op.operands[0], "CLAMP")
    if not inner:
        return None
    low, high = (max(inner.attrs["min_val"], op.attrs["min_val"]), min(inner.attrs["max_val"], op.attrs["max_val"]))
    if low > high:
        return None
    return Op("CLAMP", inner.operands, {"min_val": low, "max_val": high}, op.results)


def compose_tables(op: Op, context: Context) -> Op | Value | None:
    """TABLE of TABLE, int8, is one table."""
    if op.name != "TABLE" or op.operands[0].dtype != "INT8":
        return None
    inner = context.before(op.operands[0], "TABLE")
    if not inner:
        return None
    first, second = inner.operands[1].data, op.operands[1].data
    assert first is not None and second is not None
    composed = second[first.astype(np.int32) + 128]
    table = Value(f"{op.operands[1].name}_of_{inner.operands[1].name}", composed.shape, "INT8", op.result.origin, composed)
    return Op("TABLE", (inner.operands[0], table), {}, op.results)


def pad_into_convolution(op: Op, context: Context) -> Op | Value | None:
    """PAD of height and width with the zero point, before a convolution, is the convolution's own padding."""
    if op.name not in ("CONV2D", "DEPTHWISE_CONV2D"):
        return None
    pad = context.before(op.operands[0], "PAD")
    if not pad or pad.attrs["pad_const"] != op.attrs["input_zp"]:
        return None
    n0, n1, top, bottom, left, right, c0, c1 = pad.attrs["padding"]
    if n0 or n1 or c0 or c1:
        return None
    total = tuple(a + b for a, b in zip(op.attrs["pad"], (top, bottom, left, right), strict=True))
    kernel_axes = (1, 2) if op.name == "CONV2D" else (0, 1)
    spans = [(op.operands[1].shape[axis] - 1) * d + 1 for axis, d in zip(kernel_axes, op.attrs["dilation"], strict=True)]
    if max(total[:2]) >= spans[0] or max(total[2:]) >= spans[1]:  # a window of padding only: Vela may refuse it
        return None
    return Op(op.name, (pad.operands[0], *op.operands[1:]), {**op.attrs, "pad": total}, op.results)


RULES: tuple[Rule, ...] = (merge_reshapes, merge_transposes, merge_clamps, compose_tables, pad_into_convolution)


def rewrite(graph: Graph, rules: tuple[Rule, ...] = RULES, forms: Mapping[str, str] | None = None) -> Graph:
    """Apply ``rules`` until none applies, and drop what nobody reads. The graph's outputs keep every bit.

    Args:
        forms: the target's row of ``limits.FORMS``.
    """
    for region in list(graph.regions())[:0:-1]:
        _rewrite(region, rules, forms or {}, is_region=True)
    return _rewrite(graph, rules, forms or {}, is_region=False)


def _rewrite(graph: Graph, rules: tuple[Rule, ...], forms: Mapping[str, str], is_region: bool) -> Graph:
    """``rewrite`` of one graph without its regions."""
    fold_wide_moves(graph)
    tables_before_transposes(graph)
    reshapes_before_pads(graph)
    while _once(graph, rules) or split_convolutions(graph) or fold_strides(graph, forms.get("stride")) or keep_shapes(graph):
        pass
    drop_dead(graph)
    pick_channels(graph, forms.get("channels"))
    transposes_in_steps(graph, forms.get("permute"))
    tiles_in_steps(graph, forms.get("tile"))
    if forms.get("broadcast") == "copied":
        copy_broadcast_constants(graph)
    rescales_as_convolutions(graph, forms.get("rescale"))
    take_detours(graph, forms, is_region)
    return graph


def reshapes_before_pads(graph: Graph) -> None:
    """PAD, then a RESHAPE that only moves axes of extent 1: the other way round a convolution can take the padding over."""
    context = Context(graph)
    swapped: dict[int, list[Op]] = {}
    for op in graph.ops:
        pad = context.before(op.operands[0], "PAD") if op.name == "RESHAPE" else None
        if pad is None:
            continue
        padded, shape = pad.result.shape, op.result.shape
        axes = [axis for axis, extent in enumerate(padded) if extent != 1]
        if [padded[axis] for axis in axes] != [extent for extent in shape if extent != 1]:
            continue
        source, following = pad.operands[0], iter(axes)
        kept = [next(following) if extent != 1 else None for extent in shape]
        before = tuple(1 if axis is None else source.shape[axis] for axis in kept)
        padding = tuple(n for axis in kept for n in ((0, 0) if axis is None else pad.attrs["padding"][2 * axis : 2 * axis + 2]))
        moved = Value(f"{op.result.name}_moved", before, source.dtype, op.result.origin)
        swapped[id(op)] = [
            Op("RESHAPE", (source,), {"shape": before}, (moved,)),
            Op("PAD", (moved,), {**pad.attrs, "padding": padding}, op.results),
        ]
        swapped[id(pad)] = []
    graph.ops = [new for op in graph.ops for new in swapped.get(id(op), [op])]


def copy_broadcast_constants(graph: Graph) -> None:
    """A constant that an elementwise operator reads again and again is copied first, so that flash is read once."""
    context = Context(graph)
    near: dict[int, list[Op]] = {}
    for op in graph.ops:
        wide = [context.before(value, "RESCALE") for value in op.operands] if op.name in ELEMENTWISE else []
        for rescale in wide:
            if rescale is None or not (source := rescale.operands[0]).is_const:
                continue
            if 1 < math.prod(source.shape) <= math.prod(op.result.shape) // 2:
                made, value = copied(source, f"{rescale.result.name}_near")
                near[id(rescale)] = [*made, Op("RESCALE", (value,), rescale.attrs, rescale.results)]
    graph.ops = [new for op in graph.ops for new in near.get(id(op), [op])]


def _once(graph: Graph, rules: tuple[Rule, ...]) -> bool:
    context = Context(graph)
    replaced: dict[int, Value] = {}
    changed = False
    ops: list[Op] = []
    outputs = {id(value) for value in graph.outputs}
    for op in graph.ops:
        op.operands = tuple(replaced.get(id(value), value) for value in op.operands)
        for rule in rules:
            found = rule(op, context)
            if found is None:
                continue
            if isinstance(found, Value):
                if id(op.result) in outputs:  # an output needs an operator of its own
                    continue
                replaced[id(op.result)] = found
                context.uses[id(found)] = context.uses.get(id(found), 0) + context.uses.get(id(op.result), 0)
            else:
                assert OPSET[found.name].infer(found.operands, found.attrs) == [(v.shape, v.dtype) for v in found.results], (
                    rule.__name__
                )
                for value in found.operands:
                    context.uses[id(value)] = context.uses.get(id(value), 0) + 1
                op = found
                context.producer[id(op.result)] = op
            changed = True
            if isinstance(found, Value):
                break
        else:
            ops.append(op)
    graph.ops = ops
    return changed
