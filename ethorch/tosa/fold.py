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


def evaluate(name: str, operands: Sequence[Array], attrs: Attrs) -> Array:
    """The result of one operator of ``FOLDABLE``."""
    return np.asarray(MEANING[name](attrs, *operands))
