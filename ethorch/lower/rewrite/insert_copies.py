"""Copies: an operator that Vela leaves where it is, between one that makes a value and one that reads it."""

from __future__ import annotations

import copy
import math

import numpy as np

from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import Graph, Value

#: Operators of two operands, element by element.
ELEMENTWISE = ("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM")
#: The most places along an axis of the NPU. Of a longer axis of a pool or a convolution Vela 5.2 makes an operation of each few
#: places, four on U55: 16,385 and 320 KB of commands for a copy of [65537, 4].
LONGEST = 65536


def copied(at: Place, value: Value) -> Value:
    """``value`` once more: INT32 plus 0, BOOL or false, anything else the maximum of windows of one."""
    one = (1,) * value.rank
    if value.dtype == "INT32":
        return at.emit("ADD", value, at.constant(np.zeros(one, np.int32), "INT32"))
    if value.dtype == "BOOL":
        return at.emit("LOGICAL_OR", value, at.constant(np.zeros(one, np.bool_), "BOOL"))
    pooled = at.emit("MAX_POOL2D", at.reshape(value, *_as_map(value.shape)), kernel=(1, 1), stride=(1, 1), pad=(0, 0, 0, 0))
    return at.reshape(pooled, *value.shape)


def copy_broadcast_constants(r: Rewriter) -> None:
    """A constant that an elementwise operator reads again and again is copied first, so that flash is read once."""
    for op in r.named(*ELEMENTWISE):
        for value in op.operands:
            rescale = r.producer(value, "RESCALE", sole=True)
            if rescale is None or not (source := rescale.operands[0]).is_const:
                continue
            if 1 < math.prod(source.shape) <= math.prod(op.result.shape) // 2:
                r.insert_before(rescale, 0, copied)


def copy_outputs(graph: Graph) -> Graph:
    """Return a copy of the graph in which each output that is also read inside, or is a RESHAPE of such a value, is a copy of it.

    Vela puts layouts together over such a value, and may leave none that is the output: ``vela.undone-transpose-output``.
    """
    r = Rewriter(copy.deepcopy(graph))
    for op in r:
        for number, result in enumerate(op.results):
            readers = set(r.readers(result))
            if r.is_output(result) and readers:
                r.insert_after(op, copied, number)
                for reader in readers:
                    for place, operand in enumerate(reader.operands):
                        if operand is result:
                            r.read(reader, place, op.results[number])
            elif r.is_output(result) and op.name == "RESHAPE" and _is_read_elsewhere(r, op.operands[0]):
                r.insert_before(op, 0, copied)
    return r.finish()


def _is_read_elsewhere(r: Rewriter, value: Value) -> bool:
    """Return True if ``value``, or what it is a RESHAPE of, has several readers."""
    while r.uses(value) == 1 and (reshape := r.producer(value, "RESHAPE")):
        value = reshape.operands[0]
    return r.uses(value) > 1


def _as_map(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """A shape of one picture for as many elements; no axis is longer than ``LONGEST``, where they divide so."""
    height, width, channels = math.prod(shape[:-2]), *(1, 1, *shape)[-2:]
    if max(height, width, channels) > LONGEST:
        channels = _divisor(math.prod(shape))
        width = _divisor(math.prod(shape) // channels)
        height = math.prod(shape) // channels // width
    return 1, height, width, channels


def _divisor(count: int) -> int:
    """The largest divisor of ``count`` that is at most ``LONGEST``."""
    return next(k for k in range(min(count, LONGEST), 0, -1) if count % k == 0)
