"""Peephole rules that merge a few adjacent operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ethorch.lower.rewrite.rescale_to_depthwise import CHANNELS_OF_TABLE
from ethorch.lower.rewrite.rewriter import Rewriter
from ethorch.tosa.ir import Op, Value
from ethorch.tosa.opset import FROM_UNSIGNED, TO_UNSIGNED

Rule = Callable[[Rewriter, Op], None]


def merge_reshapes(r: Rewriter, op: Op) -> None:
    """Merge consecutive RESHAPEs, and remove a RESHAPE to the same shape."""
    source = op.operands[0]
    if source.shape == op.result.shape:
        if not r.is_output(op.result):
            r.bypass(op, source)
    elif inner := r.producer(source, "RESHAPE"):
        r.read(op, 0, inner.operands[0])


def merge_transposes(r: Rewriter, op: Op) -> None:
    """Merge or cancel consecutive TRANSPOSEs, ignoring RESHAPEs in between."""
    perms, moves = op.attrs["perms"], [op]
    while move := r.producer(moves[0].operands[0], "TRANSPOSE", "RESHAPE"):
        moves.insert(0, move)
        if move.name == "TRANSPOSE" and len(moves) > 2 and not _move_anything(move.operands[0], moves):
            r.replace(op, r.before(op).reshape(move.operands[0], *op.result.shape))
            return
    if inner := r.producer(op.operands[0], "TRANSPOSE"):
        joined = tuple(inner.attrs["perms"][axis] for axis in perms)
        r.replace(op, r.before(op).again(op, inner.operands[0], perms=joined))
    elif list(perms) == sorted(perms) and not r.is_output(op.result):
        r.bypass(op, op.operands[0])


def merge_slices(r: Rewriter, op: Op) -> None:
    """Merge consecutive SLICEs along different axes."""
    inner = r.producer(op.operands[0], "SLICE", sole=True)
    if inner is not None and not set(_cut_axes(inner)) & set(_cut_axes(op)):
        start = tuple(a + b for a, b in zip(inner.attrs["start"], op.attrs["start"], strict=True))
        r.replace(op, r.before(op).again(op, inner.operands[0], start=start))


def _cut_axes(op: Op) -> list[int]:
    return [axis for axis, size in enumerate(op.attrs["size"]) if size != op.operands[0].shape[axis]]


def merge_clamps(r: Rewriter, op: Op) -> None:
    """Merge consecutive CLAMPs if their ranges overlap."""
    inner = r.producer(op.operands[0], "CLAMP", sole=True)
    if inner is None:
        return
    low, high = max(inner.attrs["min_val"], op.attrs["min_val"]), min(inner.attrs["max_val"], op.attrs["max_val"])
    if low <= high:
        r.replace(op, r.before(op).again(op, inner.operands[0], min_val=low, max_val=high))


def compose_tables(r: Rewriter, op: Op) -> None:
    """Merge consecutive INT8 TABLEs."""
    inner = r.producer(op.operands[0], "TABLE", sole=True)
    if inner is None or op.operands[0].dtype != "INT8":
        return
    first, second = inner.operands[1].data, op.operands[1].data
    assert first is not None and second is not None
    at = r.before(op)
    r.replace(op, at.again(op, inner.operands[0], at.constant(second[first.astype(np.int32) + 128], "INT8")))


def pad_into_convolution(r: Rewriter, op: Op) -> None:
    """Merge a PAD into the convolution that reads it, if the padding value is the zero point."""
    pad = r.producer(op.operands[0], "PAD", sole=True)
    if pad is None or pad.attrs["pad_const"] != op.attrs["input_zp"]:
        return
    n0, n1, top, bottom, left, right, c0, c1 = pad.attrs["padding"]
    if n0 or n1 or c0 or c1:
        return
    total = tuple(a + b for a, b in zip(op.attrs["pad"], (top, bottom, left, right), strict=True))
    kernel_axes = (1, 2) if op.name == "CONV2D" else (0, 1)
    spans = [(op.operands[1].shape[axis] - 1) * d + 1 for axis, d in zip(kernel_axes, op.attrs["dilation"], strict=True)]
    if max(total[:2]) < spans[0] and max(total[2:]) < spans[1]:  # Vela can refuse windows that contain only padding
        r.replace(op, r.before(op).again(op, pad.operands[0], pad=total))


def merge_unsigned(r: Rewriter, op: Op) -> None:
    """Merge an int8 RESCALE with an adjacent conversion from or to uint8."""
    inner = r.producer(op.operands[0], "RESCALE")
    if inner is None or not inner.operands[0].dtype == inner.result.dtype == op.result.dtype == "INT8":
        return
    if inner.attrs == FROM_UNSIGNED and not op.attrs["output_unsigned"]:
        attrs = {"input_unsigned": True, "input_zp": op.attrs["input_zp"] + 128}
        r.replace(op, r.before(op).again(op, inner.operands[0], **attrs))
    elif op.attrs == TO_UNSIGNED and not inner.attrs["input_unsigned"] and r.uses(inner.result) == 1:
        attrs = {"output_unsigned": True, "output_zp": inner.attrs["output_zp"] + 128}
        r.replace(op, r.before(op).again(inner, inner.operands[0], **attrs))


RULES: Mapping[str, Rule] = {
    "RESHAPE": merge_reshapes,
    "TRANSPOSE": merge_transposes,
    "SLICE": merge_slices,
    "CLAMP": merge_clamps,
    "TABLE": compose_tables,
    "RESCALE": merge_unsigned,
    "CONV2D": pad_into_convolution,
    "DEPTHWISE_CONV2D": pad_into_convolution,
}


def merge_neighbours(r: Rewriter) -> None:
    """Apply the peephole rule of each operator once."""
    for op in r.select(*RULES):
        RULES[op.name](r, op)


def move_reshapes_before_pads(r: Rewriter) -> None:
    """If a RESHAPE of a PAD changes only axes of extent 1, move it before the PAD, as ``pad_into_convolution`` requires.

    See ``vela.pad-of-five-axes``.
    """
    for op in r.select("RESHAPE"):
        pad = r.producer(op.operands[0], "PAD", sole=True)
        if pad is None or op.result.rank > 4:
            continue
        padded, shape = pad.result.shape, op.result.shape
        axes = [axis for axis, extent in enumerate(padded) if extent != 1]
        if [padded[axis] for axis in axes] != [extent for extent in shape if extent != 1]:
            continue
        source, padding, following = pad.operands[0], pad.attrs["padding"], iter(axes)
        source_axes = [next(following) if extent != 1 else None for extent in shape]
        at = r.before(op)
        moved = at.reshape(source, *(1 if axis is None else source.shape[axis] for axis in source_axes))
        around = tuple(n for axis in source_axes for n in ((0, 0) if axis is None else padding[2 * axis : 2 * axis + 2]))
        r.replace(op, at.again(pad, moved, padding=around))
        r.erase(pad)


def moves_before(r: Rewriter, op: Op) -> list[Op]:
    """Return the TRANSPOSEs and RESHAPEs directly before ``op`` with one reader each, in reverse order."""
    moves: list[Op] = []
    while move := r.producer((moves or [op])[-1].operands[0], "TRANSPOSE", "RESHAPE", sole=True):
        moves.append(move)
    return moves


def run_before_moves(r: Rewriter, op: Op) -> None:
    """Move the operator before the TRANSPOSEs and RESHAPEs that compute its operand."""
    moves, at = moves_before(r, op), r.before(op)
    value = at.again(op, moves[-1].operands[0])
    for move in reversed(moves):
        value = at.again(move, value)
    r.replace(op, value)


def move_tables_before_moves(r: Rewriter) -> None:
    """Move INT8 TABLEs before TRANSPOSEs and RESHAPEs, so that both can be merged with other operators.

    See ``vela.table-between-transposes``.
    """
    for op in r.select("TABLE"):
        moves = moves_before(r, op)
        source = (moves or [op])[-1].operands[0]
        joins = bool(moves) and r.producer(source) is not None and source.rank <= 4
        if op.operands[0].dtype == "INT8" and (joins or any(move.name == "TRANSPOSE" for move in moves)):
            run_before_moves(r, op)


def move_tables_after_transposes(r: Rewriter) -> None:
    """Move the INT8 TABLE of a convolution with few channels after the TRANSPOSEs that read it, so that Vela fuses the TABLE.

    Cases in which Vela 5.2 drops the TABLE are excluded: a TRANSPOSE of a CLAMP (U85) or of five axes (U65), and TRANSPOSEs that
    cancel each other.
    """
    for op in r.select("TABLE"):
        rescale = r.producer(op.operands[0], "RESCALE")
        conv = r.producer(rescale.operands[0], "CONV2D", "DEPTHWISE_CONV2D") if rescale else None
        if conv is None or conv.result.shape[-1] >= CHANNELS_OF_TABLE or op.result.dtype != "INT8":
            continue
        moves: list[Op] = []
        value = op.result
        while r.uses(value) == 1 and (readers := r.readers(value)) and readers[0].name in ("TRANSPOSE", "RESHAPE"):
            moves.append(readers[0])
            value = readers[0].result
        while moves and moves[-1].name == "RESHAPE":
            moves.pop()
        if moves and moves[-1].result.rank <= 4 and _move_anything(op.result, moves):
            at = r.before(moves[-1])
            value = op.operands[0]
            for move in moves:
                value = at.again(move, value)
            r.replace(moves[-1], at.again(op, value))


def _move_anything(value: Value, moves: list[Op]) -> bool:
    places = np.arange(math.prod(value.shape)).reshape(value.shape)
    for move in moves:
        places = places.transpose(move.attrs["perms"]) if move.name == "TRANSPOSE" else places.reshape(move.result.shape)
    return bool((np.diff(places.ravel()) != 1).any())
