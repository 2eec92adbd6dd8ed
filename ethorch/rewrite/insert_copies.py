"""A copy of INT8, rescaled or not, is a depthwise convolution with a kernel of one: half the cycles of a pool on U55."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ethorch.tosa.ir import Graph, Op, Value

#: What ``forms["rescale"]`` names: from how many elements on the convolution is faster, its weights and scales included. Of
#: [32,32,16] u55-128 rescales in 16,640 cycles and convolves in 9,520, u85-256 in 10,648 and 6,612; of 64 u85-256 in 156 and 1,562.
LEAST: Mapping[str, int] = {"u55": 1024, "u85": 2048}


def rescales_as_convolutions(graph: Graph, form: str | None) -> None:
    """Each RESCALE from INT8 to INT8 that is no part of another operator becomes a DEPTHWISE_CONV2D and the rest of it.

    The convolution takes the zero point off and multiplies by 1; what is rounded, and how, stays.

    Args:
        form: the target's ``forms["rescale"]``; None leaves the graph as it is.
    """
    if form is None:
        return
    ops: list[Op] = []
    for op in graph.ops:
        plain = op.name == "RESCALE" and op.operands[0].dtype == op.result.dtype == "INT8" and not op.attrs["per_channel"]
        plain = plain and math.prod(op.result.shape) >= LEAST[form]
        if plain and not (op.attrs["input_unsigned"] or op.attrs["output_unsigned"]) and not op.operands[0].is_const:
            ops += multiplied_by_one(op.operands[0], op.result, op.attrs)
        else:
            ops.append(op)
    graph.ops = ops


def multiplied_by_one(value: Value, result: Value, attrs: dict[str, object]) -> list[Op]:
    """``result`` = RESCALE of ``value`` with these attributes, both INT8, through a convolution."""
    shape = (*(1,) * (4 - value.rank), *value.shape)
    shape = (1, math.prod(shape[:-2]), *shape[-2:])
    ops: list[Op] = []

    def then(op_name: str, operands: tuple[Value, ...], dtype: str, attributes: dict[str, object]) -> Value:
        made = Value(f"{result.name}_by_one_{len(ops)}", shape, dtype, result.origin)
        ops.append(Op(op_name, operands, attributes, (made,)))
        return made

    one = Value(f"{result.name}_one", (1, 1, shape[3], 1), "INT8", result.origin, np.ones((1, 1, shape[3], 1), np.int8))
    zero = Value(f"{result.name}_zero", (1,), "INT32", result.origin, np.zeros(1, np.int32))
    if value.shape != shape:
        value = then("RESHAPE", (value,), "INT8", {"shape": shape})
    window = {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1), "input_zp": attrs["input_zp"], "weight_zp": 0}
    wide = then("DEPTHWISE_CONV2D", (value, one, zero), "INT32", window)
    then("RESCALE", (wide,), "INT8", {**attrs, "input_zp": 0})
    if result.shape != shape:
        ops.append(Op("RESHAPE", (ops[-1].result,), {"shape": result.shape}, (result,)))
    else:
        ops[-1].results = (result,)
    return ops
