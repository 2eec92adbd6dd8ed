"""Constant folding of single operators."""

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


def is_foldable(name: str, operands: Sequence[Value], attrs: Attrs) -> bool:
    """Return True if ``evaluate`` can and should compute an operator.

    INT16 TABLEs, unsigned RESCALEs, and RESCALEs of INT8 or INT16 to INT32 are not folded. An elementwise operator with two
    rescaled INT8 operands is one NPU operation. With one INT32 constant operand, it requires three on U55 and two on U85.
    """
    if name == "RESCALE" and (attrs["input_unsigned"] or attrs["output_unsigned"]):
        return False
    if name == "RESCALE" and attrs["dtype"] == "INT32" and operands[0].dtype in ("INT8", "INT16"):
        return False
    return name in FOLDABLE and all(value.is_const for value in operands) and (name, operands[0].dtype) != ("TABLE", "INT16")


def evaluate(name: str, operands: Sequence[Array], attrs: Attrs) -> Array:
    """Compute an operator listed in ``FOLDABLE``."""
    return np.asarray(MEANING[name](attrs, *operands))
