"""Elementwise operators that broadcast over many axes become ones over fewer, neighbours joined.

Vela makes an operation of each index of the axes before the last three: x[8, 56, 56, 64] + y[64] is eight. Where both operands have
the same shape it joins axes by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ethorch.rewrite.insert_copies import ELEMENTWISE
from ethorch.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import Op, Value

#: What follows an elementwise operator as a part of the same operation.
_FOLLOWING = ("RESCALE", "CLAMP", "TABLE")
#: The most places along an axis of the NPU.
_LONGEST = 65536
#: So many operations at least are to be saved. What others read in its own shape, too, is copied by Vela for it.
_SAVED = 8


def fold_broadcasts(r: Rewriter) -> None:
    """Join neighbouring axes of each elementwise operator that broadcasts, where that leaves fewer in front of the last three.

    The RESCALEs of its operands and what follows it are done in the new shape, too. No bit changes.
    """
    for op in r.named(*ELEMENTWISE):
        result, shapes = op.result.shape, [value.shape for value in op.operands[:2]]
        if shapes == [result, result] or any(len(shape) != len(result) for shape in shapes):
            continue
        groups = _groups(shapes, result)
        folded = [math.prod(result[group]) for group in groups]
        if math.prod(result[:-3]) - math.prod(folded[:-3]) < _SAVED:
            continue
        at = r.before(op)
        value = at.again(op, *(_folded(r, at, operand, groups) for operand in op.operands[:2]))
        while r.uses(op.result) == 1 and (readers := r.readers(op.result)) and _follows(readers[0]):
            (op,) = readers
            at = r.before(op)
            value = at.again(op, value)
        r.replace(op, at.reshape(value, *result))


def _groups(shapes: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> list[slice]:
    """Neighbouring axes along which the same operands are broadcast, together at most as long as an axis may be."""
    cuts, extent, broadcast = [len(result)], 1, None
    for axis in reversed(range(len(result))):
        if result[axis] == 1:
            continue
        here = [shape[axis] == 1 for shape in shapes]
        if broadcast is not None and (here != broadcast or extent * result[axis] > _LONGEST):
            cuts.append(axis + 1)
            extent = 1
        extent, broadcast = extent * result[axis], here
    return [slice(start, end) for end, start in pairwise([*cuts, 0])][::-1]


def _folded(r: Rewriter, at: Place, value: Value, groups: Sequence[slice]) -> Value:
    """``value``, an operand, with the axes of each group joined, in front of its RESCALE if it has one."""
    shape = [math.prod(value.shape[group]) for group in groups]
    if value.data is not None:
        return at.constant(value.data.reshape(shape), value.dtype)
    rescale = r.producer(value, "RESCALE")
    if rescale is None or rescale.attrs["per_channel"]:
        return at.reshape(value, *shape)
    return at.again(rescale, _folded(r, at, rescale.operands[0], groups))


def _follows(op: Op) -> bool:
    return op.name in _FOLLOWING and not op.attrs.get("per_channel", False)
