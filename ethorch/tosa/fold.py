"""Constant folding: which operators of constants the builder computes at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.tosa.interpreter import MEANING
from ethorch.tosa.ir import Value

Attrs = Mapping[str, Any]
Array = npt.NDArray[Any]

FOLDABLE = ("RESHAPE", "TRANSPOSE", "CONCAT", "REVERSE", "TILE", "CLAMP", "SLICE", "PAD", "TABLE", "RESCALE")


def foldable(name: str, operands: Sequence[Value], attrs: Attrs) -> bool:
    """Can and should ``evaluate`` compute this operator here and now?

    int16 tables interpolate and are left to the NPU, and so are unsigned numbers. Codes are not made INT32: an elementwise operator
    of an INT32 constant and a RESCALE of INT8 is three operations on U55, two on U85, and one where both are RESCALEs of INT8.
    """
    if name == "RESCALE" and (attrs["input_unsigned"] or attrs["output_unsigned"]):
        return False
    if name == "RESCALE" and attrs["dtype"] == "INT32" and operands[0].dtype in ("INT8", "INT16"):
        return False
    return name in FOLDABLE and all(value.is_const for value in operands) and (name, operands[0].dtype) != ("TABLE", "INT16")


def reads_only_padding(name: str, operands: Sequence[Value], attrs: Attrs, shape: Sequence[int]) -> bool:
    """Return True for a convolution by constants of which no window contains an element of the map: the bias is its result.

    Args:
        shape: The shape of the result.
    """
    if name not in ("CONV2D", "DEPTHWISE_CONV2D") or not (operands[1].is_const and operands[2].is_const):
        return False
    kernel = operands[1].shape[0 if name == "DEPTHWISE_CONV2D" else 1 :][:2]
    return any(
        all(
            not 0
            <= place * attrs["stride"][axis] - attrs["pad"][2 * axis] + tap * attrs["dilation"][axis]
            < operands[0].shape[1 + axis]
            for place in range(shape[1 + axis])
            for tap in range(kernel[axis])
        )
        for axis in (0, 1)
    )


def evaluate(name: str, operands: Sequence[Array], attrs: Attrs) -> Array:
    """The result of one operator of ``FOLDABLE``."""
    return np.asarray(MEANING[name](attrs, *operands))
