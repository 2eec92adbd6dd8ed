"""Fold axes and large batches of data movement operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import Op, Value

#: Largest batch whose moves are not folded. Vela emits an operation per image, e.g. 656 KB of commands in 7 s for eight copies of
#: [4096, 2, 2, 2], but 384 bytes for [1, 4096, 8].
_MOST_PICTURES = 256
#: Longest axis that the NPU supports, and longest last axis of INT32, which is copied as INT16.
_LONGEST, _WIDEST_INT32 = 65536, 32768


def fold_wide_moves(r: Rewriter) -> None:
    """Fold axes of CONCATs, SLICEs and PADs of rank above 4, and of these operators and TILEs if the batch is large.

    See ``vela.concat-of-five-axes``, ``vela.slice-of-five-axes`` and ``vela.pad-of-five-axes``.
    """
    folds = {"CONCAT": _fold_concat, "SLICE": _fold_slice, "PAD": _fold_pad, "TILE": _fold_tile}
    for op in r.select(*folds):
        if (op.result.rank > 4 and op.name != "TILE") or _is_large_batch(op):
            folds[op.name](r, op)


def _is_large_batch(op: Op) -> bool:
    shapes = [value.shape for value in (*op.operands, op.result) if value.rank > 3]
    if max((math.prod(shape[:-3]) for shape in shapes), default=0) <= _MOST_PICTURES:
        return False
    widest = _WIDEST_INT32 if op.result.dtype == "INT32" else _LONGEST
    axes = [axis for axis in range(op.result.rank) if any(shape[axis] != shapes[0][axis] for shape in shapes)]
    longest = math.inf if op.name in ("SLICE", "CONCAT") else _LONGEST  # Vela splits these
    return all(shape[axis] <= longest and math.prod(shape[axis + 1 :]) <= widest for shape in shapes for axis in axes)


def _by_rows(at: Place, values: Sequence[Value], move: Callable[[Sequence[Value], int], Value]) -> Value:
    rows = values[0].shape[0]
    if rows <= _LONGEST:
        return move(values, 1)
    high = next(size for size in range(_LONGEST, 0, -1) if rows % size == 0)
    if rows // high <= _MOST_PICTURES:
        moved = move([at.reshape(value, rows // high, high, *value.shape[1:]) for value in values], 2)
        return at.reshape(moved, rows, *moved.shape[2:])
    parts = []
    for first in range(0, rows, _LONGEST):
        count = min(_LONGEST, rows - first)
        slices = [at.emit("SLICE", value, start=(first, 0, 0), size=(count, *value.shape[1:])) for value in values]
        parts.append(move(slices, 1))
    return at.emit("CONCAT", *parts, axis=0)


def _fold_concat(r: Rewriter, op: Op) -> None:
    axis, at = op.attrs["axis"], r.before(op)
    if _is_large_batch(op):
        operands = [_flatten(at, part, axis) for part in op.operands]
        joined = _by_rows(at, operands, lambda values, place: at.emit("CONCAT", *values, axis=place))
        r.replace(op, at.reshape(joined, *op.result.shape))
        return

    def fold_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
        after = (*shape[axis + 1 :], 1, 1)[:2] if len(shape) <= axis + 3 else (math.prod(shape[axis + 1 : -1]), shape[-1])
        return (math.prod(shape[:axis]), shape[axis], *after)

    parts = [at.reshape(part, *fold_shape(part.shape)) for part in op.operands]
    r.replace(op, at.reshape(at.emit("CONCAT", *parts, axis=1), *op.result.shape))


def _flatten(at: Place, value: Value, axis: int) -> Value:
    shape = value.shape
    return at.reshape(value, math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def _fold_slice(r: Rewriter, op: Op) -> None:
    at, value = r.before(op), op.operands[0]
    for axis, (start, size) in enumerate(zip(op.attrs["start"], op.attrs["size"], strict=True)):
        shape = value.shape
        if size != shape[axis]:

            def cut(values: Sequence[Value], place: int, start: int = start, size: int = size) -> Value:
                (tensor,) = values
                begin, extent = [0] * tensor.rank, list(tensor.shape)
                begin[place], extent[place] = start, size
                return at.emit("SLICE", tensor, start=tuple(begin), size=tuple(extent))

            part = _by_rows(at, [_flatten(at, value, axis)], cut)
            value = at.reshape(part, *shape[:axis], size, *shape[axis + 1 :])
    if value is not op.operands[0]:
        r.replace(op, value)


def _fold_pad(r: Rewriter, op: Op) -> None:
    at, value, padding = r.before(op), op.operands[0], op.attrs["padding"]
    for axis, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        if before or after:
            shape = value.shape

            def pad(values: Sequence[Value], place: int, ends: tuple[int, int] = (before, after)) -> Value:
                padding = (*(0, 0) * place, *ends, 0, 0)
                return at.emit("PAD", *values, padding=padding, pad_const=op.attrs["pad_const"])

            wider = _by_rows(at, [_flatten(at, value, axis)], pad)
            value = at.reshape(wider, *shape[:axis], wider.shape[1], *shape[axis + 1 :])
    if value is not op.operands[0]:
        r.replace(op, value)


def _fold_tile(r: Rewriter, op: Op) -> None:
    at, value = r.before(op), op.operands[0]
    for axis, copies in reversed(list(enumerate(op.attrs["multiples"]))):
        if copies > 1:
            shape = value.shape

            def tile(values: Sequence[Value], place: int, copies: int = copies) -> Value:
                return at.emit("TILE", *values, multiples=(*(1,) * place, copies, 1))

            wider = _by_rows(at, [_flatten(at, value, axis)], tile)
            value = at.reshape(wider, *shape[:axis], wider.shape[1], *shape[axis + 1 :])
    if value is not op.operands[0]:
        r.replace(op, value)
