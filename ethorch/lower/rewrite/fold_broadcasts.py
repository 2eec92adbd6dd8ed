"""Merge axes of broadcasting elementwise operators, and of operators of high rank.

Vela emits an operation for each index of the axes before the last three, e.g. eight for x[8, 56, 56, 64] + y[64].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, combinations, pairwise

import numpy as np

from ethorch.lower.rewrite.insert_copies import ELEMENTWISE, LONGEST, copy_value
from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.lower.rewrite.vela_patterns import POINTWISE
from ethorch.tosa.ir import Op, Value
from ethorch.tosa.layout import MAX_RANK, around

#: Operators that Vela fuses with the elementwise operator before them.
_FOLLOWING = ("RESCALE", "CLAMP", "TABLE")
_REDUCTIONS = ("REDUCE_SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ALL", "REDUCE_ANY")
#: Minimum number of operations that a merge must save.
_SAVED = 8
#: Maximum number of axes if the first operand has one element.
_MOST_AXES = 4
#: Maximum number of operations (about 30 KB of commands) without copying an operand.
_MOST_UNCOPIED = 1024
#: Fixed cost of a copy, in elements.
_COPY = 800

Shape = tuple[int, ...]


def fold_broadcasts(r: Rewriter) -> None:
    """Merge adjacent axes if that saves operations or avoids ``vela.one-element-of-five-axes``.

    If too many operations would remain, expand operands along their broadcast axes, so that more axes can be merged.

    RESCALEs of the operands, and operators that Vela fuses with the elementwise operator, also use the new shape.
    """
    for op in r.select(*ELEMENTWISE, "ARITHMETIC_RIGHT_SHIFT", "LOGICAL_LEFT_SHIFT"):
        result, shapes = op.result.shape, [value.shape for value in op.operands[:2]]
        if shapes == [result, result] or any(len(shape) != len(result) for shape in shapes):
            continue
        full = _expand_shapes(shapes, result)
        groups = _groups(full, result)
        folded = [math.prod(result[group]) for group in groups]
        has_bug = len(result) > _MOST_AXES and math.prod(shapes[0]) == 1
        if full == shapes and not has_bug and math.prod(result[:-3]) - math.prod(folded[:-3]) < _SAVED:
            continue
        at = r.before(op)
        value = at.again(op, *(_fold_operand(r, at, *operand, groups) for operand in zip(op.operands[:2], full, strict=True)))
        while r.uses(op.result) == 1 and (readers := r.readers(op.result)) and _follows(readers[0]):
            (op,) = readers
            at = r.before(op)
            value = at.again(op, value)
        r.replace(op, at.reshape(value, *result))


def fold_high_ranks(r: Rewriter) -> None:
    """Merge axes of elementwise operators and reductions with more than ``MAX_RANK`` axes."""
    for op in r.select(*POINTWISE, "TABLE", "INTDIV", *_REDUCTIONS):
        source, axis, at = op.operands[0], op.attrs.get("axis"), r.before(op)
        rank, shape = source.rank, op.result.shape
        if rank <= MAX_RANK or op.attrs.get("per_channel"):
            continue
        if axis is not None:
            folded = at.again(op, at.reshape(source, *around(source.shape, axis)), axis=1)
        else:
            shapes = [operand.shape for operand in op.operands if operand.rank == rank]
            groups = [slice(0, 1 - MAX_RANK), *(slice(k, k + 1) for k in range(rank - MAX_RANK + 1, rank))]
            if len(set(shapes)) > 1 and len(groups := _groups(shapes, shape)) > MAX_RANK:
                continue
            folded = at.again(op, *(_merge(at, operand, groups) if operand.rank == rank else operand for operand in op.operands))
        r.replace(op, at.reshape(folded, *shape))


def _merge(at: Place, operand: Value, groups: Sequence[slice]) -> Value:
    shape = [math.prod(operand.shape[group]) for group in groups]
    return at.reshape(operand, *shape) if operand.data is None else at.constant(operand.data.reshape(shape), operand.dtype)


def _expand_shapes(shapes: Sequence[Shape], result: Shape) -> list[Shape]:

    def operations(full: Sequence[Shape]) -> int:
        return math.prod(math.prod(result[group]) for group in _groups(full, result)[:-3])

    def cost(full: Sequence[Shape]) -> int:
        pairs = [(math.prod(old), math.prod(new)) for old, new in zip(shapes, full, strict=True) if old != new]
        return sum(new + _COPY * (new // old) for old, new in pairs)

    if operations(shapes) <= _MOST_UNCOPIED:
        return list(shapes)
    axes = [axis for axis, extent in enumerate(result) if extent > 1 and any(shape[axis] == 1 for shape in shapes)]
    candidates = []
    for filled in chain.from_iterable(combinations(axes, count) for count in range(1, len(axes) + 1)):
        full = [tuple(result[k] if k in filled else extent for k, extent in enumerate(shape)) for shape in shapes]
        if operations(full) <= _MOST_UNCOPIED:
            candidates.append(full)
    return min(candidates, key=cost, default=list(shapes))


def _groups(shapes: Sequence[Shape], result: Shape) -> list[slice]:
    cuts, extent, broadcast = [len(result)], 1, None
    for axis in reversed(range(len(result))):
        if result[axis] == 1:
            continue
        is_broadcast = [shape[axis] == 1 for shape in shapes]
        if broadcast is not None and (is_broadcast != broadcast or extent * result[axis] > LONGEST):
            cuts.append(axis + 1)
            extent = 1
        extent, broadcast = extent * result[axis], is_broadcast
    return [slice(start, end) for end, start in pairwise([*cuts, 0])][::-1]


def _fold_operand(r: Rewriter, at: Place, value: Value, full: Shape, groups: Sequence[slice]) -> Value:
    shape = [math.prod(full[group]) for group in groups]
    if value.data is not None:
        return at.constant(np.broadcast_to(value.data, full).reshape(shape), value.dtype)
    rescale = r.producer(value, "RESCALE")
    if rescale is not None and not rescale.attrs["per_channel"]:
        return at.again(rescale, _fold_operand(r, at, rescale.operands[0], full, groups))
    if value.shape != full:  # Vela splits a TILE of many axes, even if they have extent 1
        runs = _groups([value.shape], full)
        multiples = [math.prod(full[run]) // math.prod(value.shape[run]) for run in runs]
        value = at.emit("TILE", at.reshape(value, *(math.prod(value.shape[run]) for run in runs)), multiples=tuple(multiples))
        value = copy_value(at, value)  # otherwise, Vela splits a RESCALE of the TILE
    return at.reshape(value, *shape)


def _follows(op: Op) -> bool:
    return op.name in _FOLLOWING and not op.attrs.get("per_channel", False)
