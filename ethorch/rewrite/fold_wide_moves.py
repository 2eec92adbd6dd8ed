"""CONCAT, SLICE and PAD of more than four axes become ones of at most four, neighbours joined."""

from __future__ import annotations

import math

from ethorch.rewrite.rewriter import Rewriter
from ethorch.tosa.ir import Op


def fold_wide_moves(r: Rewriter) -> None:
    """Fold each CONCAT, SLICE and PAD of more than four axes. No bit changes.

    Vela's bugs: ``vela.concat-of-five-axes``, ``vela.slice-of-five-axes``, ``vela.pad-of-five-axes``.
    """
    folds = {"CONCAT": _fold_concat, "SLICE": _fold_slice, "PAD": _fold_pad}
    for op in r.named(*folds):
        if op.result.rank > 4:
            folds[op.name](r, op)


def _fold_concat(r: Rewriter, op: Op) -> None:
    """It joins parts of at most four axes: its own, what is before it, and two for what is behind."""
    axis = op.attrs["axis"]

    def folded(shape: tuple[int, ...]) -> tuple[int, ...]:
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
