"""Elementwise operators take over the shape that a convolution has given what they read.

A RESHAPE is free unless what it reads is read in its first shape, too: then Vela copies. A residual connection is such: the
sum of [64, 128] goes to a convolution as [1, 1, 64, 128] and to the next sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from ethorch.tosa.ir import Graph, Op, Value

_ELEMENTWISE = {"RESCALE", "CLAMP", "TABLE", "ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM"}


def keep_shapes(graph: Graph) -> bool:
    """Run each elementwise operator of fewer than four axes in the shape of a four-axis operand that a RESHAPE removed
    axes of extent 1 from, and reshape its result instead. True if there was one; no bit changes."""
    ops: list[Op] = []
    made_by: dict[int, Op] = {}
    for op in graph.ops:
        shape = _kept(op, made_by)
        new = _widened(op, shape) if shape else [op]
        ops += new
        made_by.update((id(value), one) for one in new for value in one.results)
    changed = len(ops) != len(graph.ops)
    graph.ops = ops
    return changed


def _kept(op: Op, made_by: dict[int, Op]) -> tuple[int, ...] | None:
    """The shape that the result of ``op`` takes over, if one of its operands was reshaped from it."""
    result = op.result.shape
    if op.name not in _ELEMENTWISE or len(result) >= 4 or any(v.rank != len(result) for v in op.operands if v.rank > 1):
        return None
    for value in op.operands:
        reshape = made_by.get(id(value))
        if reshape is None or reshape.name != "RESHAPE" or value.shape != result:
            continue
        shape = reshape.operands[0].shape
        if len(shape) == 4 and [n for n in shape if n != 1] == [n for n in result if n != 1] and shape[-1] == result[-1]:
            return shape
    return None


def _expanded(value: Sequence[int], result: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of an operand that has the shape ``value`` where the result has ``result``, once that has ``shape``."""
    axes = iter([axis for axis, extent in enumerate(result) if extent != 1])
    return tuple(1 if extent == 1 else value[next(axes)] for extent in shape)


def _widened(op: Op, shape: tuple[int, ...]) -> list[Op]:
    ops: list[Op] = []
    operands: list[Value] = []
    for index, value in enumerate(op.operands):
        if op.name == "TABLE" and index == 1:
            operands.append(value)
            continue
        expanded = _expanded(value.shape, op.result.shape, shape)
        data = None if value.data is None else value.data.reshape(expanded)
        operands.append(Value(f"{op.result.name}_wide_{index}", expanded, value.dtype, value.origin, data))
        if data is None:
            ops.append(Op("RESHAPE", (value,), {"shape": expanded}, (operands[-1],)))
    wide = Value(f"{op.result.name}_wide", shape, op.result.dtype, op.result.origin)
    ops.append(Op(op.name, tuple(operands), op.attrs, (wide,)))
    return [*ops, Op("RESHAPE", (wide,), {"shape": op.result.shape}, op.results)]
