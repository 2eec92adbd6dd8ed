"""Elementwise operators take over the shape that a convolution has given what they read.

A RESHAPE is free unless what it reads is read in its first shape, too: then Vela copies. A residual connection is such: the
sum of [64, 128] goes to a convolution as [1, 1, 64, 128] and to the next sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import Op, Value

_ELEMENTWISE = ("RESCALE", "CLAMP", "TABLE", "ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM")


def keep_shapes(r: Rewriter) -> None:
    """Run each elementwise operator of fewer than four axes in the shape of a four-axis operand that a RESHAPE removed
    axes of extent 1 from, and reshape its result instead. No bit changes.

    Not in the shape of several pictures: Vela makes an operation of each if an operand is broadcast."""
    for op in r.named(*_ELEMENTWISE):
        if shape := _kept(r, op):
            at = r.before(op)
            elements = op.operands[:1] if op.name == "TABLE" else op.operands
            wide = at.again(op, *(_expanded(at, value, op.result.shape, shape) for value in elements))
            r.replace(op, at.reshape(wide, *op.result.shape))


def _kept(r: Rewriter, op: Op) -> tuple[int, ...] | None:
    """The shape that the result of ``op`` takes over, if one of its operands was reshaped from it."""
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


def _expanded(at: Place, value: Value, result: Sequence[int], shape: Sequence[int]) -> Value:
    """``value``, an operand where the result has the shape ``result``, as one where that has ``shape``."""
    axes = iter([axis for axis, extent in enumerate(result) if extent != 1])
    expanded = tuple(1 if extent == 1 else value.shape[next(axes)] for extent in shape)
    return at.reshape(value, *expanded) if value.data is None else at.constant(value.data.reshape(expanded), value.dtype)
