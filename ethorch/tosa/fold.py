"""NumPy meaning of TOSA operators that only move data: what the builder folds when every operand is a constant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ethorch.tosa.ir import Value

Attrs = Mapping[str, Any]
Array = npt.NDArray[Any]


def _slice(a: Attrs, x: Array) -> Array:
    return x[tuple(slice(start, start + size) for start, size in zip(a["start"], a["size"], strict=True))]


def _pad(a: Attrs, x: Array) -> Array:
    pads = np.asarray(a["padding"]).reshape(-1, 2)
    return np.pad(x, pads, constant_values=a["pad_const"])


def _table(a: Attrs, x: Array, table: Array) -> Array:
    return np.take(table, x.astype(np.int32) + 128)


def _rescale(a: Attrs, x: Array) -> Array:
    """TOSA 1.0 RESCALE, SINGLE_ROUND: ((x - input_zp) * multiplier + 2**(shift - 1)) >> shift, plus output_zp, saturated."""
    multiplier, shift = (np.asarray(a[key], np.int64) for key in ("multiplier", "shift"))
    product: npt.NDArray[np.int64] = (x.astype(np.int64) - a["input_zp"]) * multiplier + (np.int64(1) << (shift - 1))
    bits = {"INT8": 8, "INT16": 16, "INT32": 32}[a["dtype"]]
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return np.asarray(np.clip((product >> shift) + a["output_zp"], low, high), f"int{bits}")


FOLDABLE: Mapping[str, Callable[..., Array]] = {
    "RESHAPE": lambda a, x: x.reshape(a["shape"]),
    "TRANSPOSE": lambda a, x: x.transpose(a["perms"]),
    "CONCAT": lambda a, *xs: np.concatenate(xs, a["axis"]),
    "REVERSE": lambda a, x: np.flip(x, a["axis"]),
    "TILE": lambda a, x: np.tile(x, a["multiples"]),
    "CLAMP": lambda a, x: np.clip(x, a["min_val"], a["max_val"]).astype(x.dtype),
    "SLICE": _slice,
    "PAD": _pad,
    "TABLE": _table,
    "RESCALE": _rescale,
}


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
    return np.asarray(FOLDABLE[name](attrs, *operands))
