from __future__ import annotations

import copy
import math

import numpy as np

from ethorch.lower.rewrite.rewriter import Place, Rewriter
from ethorch.tosa.ir import Graph, Value

#: Binary elementwise operators.
ELEMENTWISE = ("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM")
#: Longest axis of an NPU operation. Vela 5.2 splits a longer axis into small operations, e.g. 16,385 operations with 320 KB
#: of commands for a copy of [65537, 4] on the U55.
LONGEST = 65536


def copy_value(at: Place, value: Value) -> Value:
    """Copy a value with an operator that Vela does not remove."""
    ones = (1,) * value.rank
    if value.dtype == "INT32":
        return at.emit("ADD", value, at.constant(np.zeros(ones, np.int32), "INT32"))
    if value.dtype == "BOOL":
        return at.emit("LOGICAL_OR", value, at.constant(np.zeros(ones, np.bool_), "BOOL"))
    pooled = at.emit("MAX_POOL2D", at.reshape(value, *_as_map(value.shape)), kernel=(1, 1), stride=(1, 1), pad=(0, 0, 0, 0))
    return at.reshape(pooled, *value.shape)


def copy_broadcast_constants(r: Rewriter) -> None:
    """Copy rescaled broadcast constants, so that each is read from flash only once."""
    for op in r.select(*ELEMENTWISE):
        for value in op.operands:
            rescale = r.producer(value, "RESCALE", sole=True)
            if rescale is None or not (source := rescale.operands[0]).is_const:
                continue
            if 1 < math.prod(source.shape) <= math.prod(op.result.shape) // 2:
                r.insert_before(rescale, 0, copy_value)


def copy_outputs(graph: Graph) -> Graph:
    """Return a copy of the graph in which the outputs that operators also read are copied.

    Without a copy, Vela can lose such an output. See ``vela.undone-transpose-output``.
    """
    r = Rewriter(copy.deepcopy(graph))
    for op in r:
        for number, result in enumerate(op.results):
            readers = set(r.readers(result))
            if r.is_output(result) and readers:
                r.insert_after(op, copy_value, number)
                for reader in readers:
                    for place, operand in enumerate(reader.operands):
                        if operand is result:
                            r.read(reader, place, op.results[number])
            elif r.is_output(result) and op.name == "RESHAPE" and _is_read_elsewhere(r, op.operands[0]):
                r.insert_before(op, 0, copy_value)
    return r.finish()


def _is_read_elsewhere(r: Rewriter, value: Value) -> bool:
    while r.uses(value) == 1 and (reshape := r.producer(value, "RESHAPE")):
        value = reshape.operands[0]
    return r.uses(value) > 1


def _as_map(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    height, width, channels = math.prod(shape[:-2]), *(1, 1, *shape)[-2:]
    if max(height, width, channels) > LONGEST:
        channels = _divisor(math.prod(shape))
        width = _divisor(math.prod(shape) // channels)
        height = math.prod(shape) // channels // width
    return 1, height, width, channels


def _divisor(count: int) -> int:
    return next(k for k in range(min(count, LONGEST), 0, -1) if count % k == 0)
