"""CONCAT, SLICE and PAD of more than four axes, and all that moves many pictures, become ones of fewer axes, neighbours joined."""

from __future__ import annotations

import math

from ethorch.lower.rewrite.rewriter import Rewriter
from ethorch.tosa.ir import Op

#: Of more pictures, moves are folded. Vela makes an operation of each picture: of [4096, 2, 2, 2], eight times, 656 KB of commands
#: in 7 s, and of the same as [1, 4096, 8] 384 bytes at once.
_MOST_PICTURES = 256
#: The most places along an axis of the NPU; of INT32, whose copies are ones of INT16, along the last one.
_LONGEST, _WIDEST_INT32 = 65536, 32768


def fold_wide_moves(r: Rewriter) -> None:
    """Fold each CONCAT, SLICE and PAD of more than four axes, and those and each TILE of many pictures. No bit changes.

    Vela's bugs: ``vela.concat-of-five-axes``, ``vela.slice-of-five-axes``, ``vela.pad-of-five-axes``.
    """
    folds = {"CONCAT": _fold_concat, "SLICE": _fold_slice, "PAD": _fold_pad, "TILE": _fold_tile}
    for op in r.named(*folds):
        if (op.result.rank > 4 and op.name != "TILE") or _has_many_pictures(op):
            folds[op.name](r, op)


def _has_many_pictures(op: Op) -> bool:
    """Has an operand or the result more than ``_MOST_PICTURES``, and would no axis have too many places?"""
    shapes = [value.shape for value in (*op.operands, op.result) if value.rank > 3]
    if max((math.prod(shape[:-3]) for shape in shapes), default=0) <= _MOST_PICTURES:
        return False
    widest = _WIDEST_INT32 if op.result.dtype == "INT32" else _LONGEST
    axes = [axis for axis in range(op.result.rank) if any(shape[axis] != shapes[0][axis] for shape in shapes)]
    longest = math.inf if op.name in ("SLICE", "CONCAT") else _LONGEST  # those Vela cuts by itself
    return all(
        math.prod(shape[:axis]) <= _LONGEST and shape[axis] <= longest and math.prod(shape[axis + 1 :]) <= widest
        for shape in shapes
        for axis in axes
    )


def _fold_concat(r: Rewriter, op: Op) -> None:
    """It joins parts of at most four axes: its own, what is before it, and two for what is behind; of many pictures, one."""
    axis, pictures = op.attrs["axis"], _has_many_pictures(op)

    def folded(shape: tuple[int, ...]) -> tuple[int, ...]:
        if pictures:
            return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        behind = (*shape[axis + 1 :], 1, 1)[:2] if len(shape) <= axis + 3 else (math.prod(shape[axis + 1 : -1]), shape[-1])
        return (math.prod(shape[:axis]), shape[axis], *behind)

    at = r.before(op)
    parts = [at.reshape(part, *folded(part.shape)) for part in op.operands]
    r.replace(op, at.reshape(at.emit("CONCAT", *parts, axis=1), *op.result.shape))


def _fold_slice(r: Rewriter, op: Op) -> None:
    """Several one after the other, each of one axis between all before and all behind it."""
    at, value = r.before(op), op.operands[0]
    for axis, (start, size) in enumerate(zip(op.attrs["start"], op.attrs["size"], strict=True)):
        shape = value.shape
        if size != shape[axis]:
            outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
            whole = at.reshape(value, outer, shape[axis], inner)
            part = at.emit("SLICE", whole, start=(0, start, 0), size=(outer, size, inner))
            value = at.reshape(part, *shape[:axis], size, *shape[axis + 1 :])
    if value is not op.operands[0]:
        r.replace(op, value)


def _fold_pad(r: Rewriter, op: Op) -> None:
    """Several one after the other, each of one axis between all before and all behind it."""
    at, value, padding = r.before(op), op.operands[0], op.attrs["padding"]
    for axis, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        if before or after:
            shape = value.shape
            whole = at.reshape(value, math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
            wider = at.emit("PAD", whole, padding=(0, 0, before, after, 0, 0), pad_const=op.attrs["pad_const"])
            value = at.reshape(wider, *shape[:axis], wider.shape[1], *shape[axis + 1 :])
    if value is not op.operands[0]:
        r.replace(op, value)


def _fold_tile(r: Rewriter, op: Op) -> None:
    """Several one after the other, the last axis first, each of one axis between all before and all behind it."""
    at, value = r.before(op), op.operands[0]
    for axis, copies in reversed(list(enumerate(op.attrs["multiples"]))):
        if copies > 1:
            shape = value.shape
            whole = at.reshape(value, math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
            wider = at.emit("TILE", whole, multiples=(1, copies, 1))
            value = at.reshape(wider, *shape[:axis], wider.shape[1], *shape[axis + 1 :])
    if value is not op.operands[0]:
        r.replace(op, value)
