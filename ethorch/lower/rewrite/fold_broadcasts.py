"""Elementwise operators that broadcast over many axes become ones over fewer, neighbours joined.

Vela makes an operation of each index of the axes before the last three: x[8, 56, 56, 64] + y[64] is eight. Where both operands have
the same shape it joins axes by itself. Where axes that an operand is broadcast along alternate with others, as of y[8, 1, 56, 1],
nothing can be joined. Of very many indices the operand is copied along some of them before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, combinations, pairwise

import numpy as np

from ethorch.lower.rewrite.insert_copies import ELEMENTWISE, LONGEST, copied
from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import Op, Value

#: What follows an elementwise operator as a part of the same operation.
_FOLLOWING = ("RESCALE", "CLAMP", "TABLE")
#: So many operations at least are to be saved. What others read in its own shape, too, is copied by Vela for it.
_SAVED = 8
#: Most axes of an operator whose first operand is one element.
_MOST_AXES = 4
#: Most operations that are not worth a copy of an operand: they are some 30 KB of commands.
_MOST_UNCOPIED = 1024
#: What a copy costs more than an element of it, in elements: it is an operation of its own.
_COPY = 800

Shape = tuple[int, ...]


def fold_broadcasts(r: Rewriter) -> None:
    """Join neighbouring axes of each elementwise operator that broadcasts, where that leaves fewer in front of the last three.

    So are those of one whose first operand is one element and whose axes are more than four: ``vela.one-element-of-five-axes``.
    The RESCALEs of its operands and what follows it are done in the new shape, too. No bit changes.
    """
    for op in r.named(*ELEMENTWISE, "ARITHMETIC_RIGHT_SHIFT", "LOGICAL_LEFT_SHIFT"):
        result, shapes = op.result.shape, [value.shape for value in op.operands[:2]]
        if shapes == [result, result] or any(len(shape) != len(result) for shape in shapes):
            continue
        full = _copied(shapes, result)
        groups = _groups(full, result)
        folded = [math.prod(result[group]) for group in groups]
        wrong = len(result) > _MOST_AXES and math.prod(shapes[0]) == 1
        if full == shapes and not wrong and math.prod(result[:-3]) - math.prod(folded[:-3]) < _SAVED:
            continue
        at = r.before(op)
        value = at.again(op, *(_folded(r, at, *operand, groups) for operand in zip(op.operands[:2], full, strict=True)))
        while r.uses(op.result) == 1 and (readers := r.readers(op.result)) and _follows(readers[0]):
            (op,) = readers
            at = r.before(op)
            value = at.again(op, value)
        r.replace(op, at.reshape(value, *result))


def _copied(shapes: Sequence[Shape], result: Shape) -> list[Shape]:
    """The operands' shapes once they are copied along some axes that they are broadcast along, if that saves enough operations.

    Of all such axes those are taken that leave few operations and cost least; ``shapes`` as they are where none do.
    """

    def operations(full: Sequence[Shape]) -> int:
        return math.prod(math.prod(result[group]) for group in _groups(full, result)[:-3])

    def cost(full: Sequence[Shape]) -> int:
        pairs = [(math.prod(old), math.prod(new)) for old, new in zip(shapes, full, strict=True) if old != new]
        return sum(new + _COPY * (new // old) for old, new in pairs)

    if operations(shapes) <= _MOST_UNCOPIED:
        return list(shapes)
    axes = [axis for axis, extent in enumerate(result) if extent > 1 and any(shape[axis] == 1 for shape in shapes)]
    found = []
    for filled in chain.from_iterable(combinations(axes, count) for count in range(1, len(axes) + 1)):
        full = [tuple(result[k] if k in filled else extent for k, extent in enumerate(shape)) for shape in shapes]
        if operations(full) <= _MOST_UNCOPIED:
            found.append(full)
    return min(found, key=cost, default=list(shapes))


def _groups(shapes: Sequence[Shape], result: Shape) -> list[slice]:
    """Neighbouring axes along which the same operands are broadcast, together at most as long as an axis may be."""
    cuts, extent, broadcast = [len(result)], 1, None
    for axis in reversed(range(len(result))):
        if result[axis] == 1:
            continue
        here = [shape[axis] == 1 for shape in shapes]
        if broadcast is not None and (here != broadcast or extent * result[axis] > LONGEST):
            cuts.append(axis + 1)
            extent = 1
        extent, broadcast = extent * result[axis], here
    return [slice(start, end) for end, start in pairwise([*cuts, 0])][::-1]


def _folded(r: Rewriter, at: Place, value: Value, full: Shape, groups: Sequence[slice]) -> Value:
    """``value``, an operand, copied to be ``full``, the axes of each group joined, in front of its RESCALE if it has one."""
    shape = [math.prod(full[group]) for group in groups]
    if value.data is not None:
        return at.constant(np.broadcast_to(value.data, full).reshape(shape), value.dtype)
    rescale = r.producer(value, "RESCALE")
    if rescale is not None and not rescale.attrs["per_channel"]:
        return at.again(rescale, _folded(r, at, rescale.operands[0], full, groups))
    if value.shape != full:  # a TILE of many axes, even of extent 1, is an operation of each index again
        runs = _groups([value.shape], full)
        multiples = [math.prod(full[run]) // math.prod(value.shape[run]) for run in runs]
        value = at.emit("TILE", at.reshape(value, *(math.prod(value.shape[run]) for run in runs)), multiples=tuple(multiples))
        value = copied(at, value)  # a RESCALE of it would be done copy by copy, and what is broadcast with it goes wrong
    return at.reshape(value, *shape)


def _follows(op: Op) -> bool:
    return op.name in _FOLLOWING and not op.attrs.get("per_channel", False)
