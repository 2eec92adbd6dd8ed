"""Propagate the shape of a convolution to the elementwise operators that read its result.

If the operand of a RESHAPE, e.g. the sum of a residual connection, is also read in its original shape, Vela copies it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import Op, Value

_ELEMENTWISE = ("RESCALE", "CLAMP", "TABLE", "ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM")


def keep_shapes(r: Rewriter) -> None:
    """Run elementwise operators on four axes if a RESHAPE removed axes of extent 1 from an operand and the batch size is 1."""
    for op in r.select(*_ELEMENTWISE):
        if shape := _wider_shape(r, op):
            at = r.before(op)
            elements = op.operands[:1] if op.name == "TABLE" else op.operands
            wide = at.again(op, *(_expand(at, value, op.result.shape, shape) for value in elements))
            r.replace(op, at.reshape(wide, *op.result.shape))


def _wider_shape(r: Rewriter, op: Op) -> tuple[int, ...] | None:
    result = op.result.shape
    if len(result) >= 4 or any(value.rank != len(result) for value in op.operands if value.rank > 1):
        return None
    for value in op.operands:
        reshape = r.producer(value, "RESHAPE")
        if reshape is None or value.shape != result:
            continue
        shape = reshape.operands[0].shape
        is_map = len(shape) == 4 and shape[0] == 1 and shape[-1:] == result[-1:]
        if is_map and [n for n in shape if n != 1] == [n for n in result if n != 1]:
            return shape
    return None


def _expand(at: Place, value: Value, result: Sequence[int], shape: Sequence[int]) -> Value:
    axes = iter([axis for axis, extent in enumerate(result) if extent != 1])
    target = tuple(1 if extent == 1 else value.shape[next(axes)] for extent in shape)
    return at.reshape(value, *target) if value.data is None else at.constant(value.data.reshape(target), value.dtype)
