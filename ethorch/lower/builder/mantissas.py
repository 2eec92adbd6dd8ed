"""Roots, reciprocals and logarithms of INT32 values.

The NPU lacks floating-point operations but counts leading zeros. A value v is split into m / base**h, where m is at least
2**31 / base and below 2**31. Because m varies little, a single TABLE (TOSA 1.0: 513 entries for INT16) approximates a function
of m with a relative error below 2**-18. In the result, base**h becomes a shift, a factor or a term.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ethorch.lower.builder.builder import Builder
from ethorch.tosa.ir import Value

Function = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Mantissas:
    """INT32 values, split into v = m / base**h.

    Attributes:
        base: 2, or 4 for roots.
        index: INT16 index of m in a TABLE. The lowest index represents v = 0.
        exponent: INT32 h.
    """

    base: Literal[2, 4]
    index: Value
    exponent: Value

    @staticmethod
    def of(b: Builder, v: Value, base: Literal[2, 4]) -> Mantissas:
        """Split INT32 ``v`` in 0..2**31 - 1 into m and h. For base 4 and v = 0, h is 15."""
        zeros = b.emit("CLZ", v)
        if base == 2:
            exponent = shift = b.emit("SUB", zeros, b.const_like(v, 1))
        else:  # (zeros - 1) // 2, with the rounding shift that U55 supports
            exponent = b.emit("ARITHMETIC_RIGHT_SHIFT", b.emit("SUB", zeros, b.const_like(v, 2)), b.const_like(v, 1), round=True)
            shift = b.emit("ADD", exponent, exponent)
        # The first interval of the TABLE is for 0, the others are for mantissas.
        low = 2.0**31 / base
        scale = 128 * 511 / (2.0**31 - low)
        centre = b.const_like(v, round(low + (32768 - 128) / scale))
        mantissa = b.emit("SUB", b.emit("LOGICAL_LEFT_SHIFT", v, shift), centre)
        return Mantissas(base, b.rescale(mantissa, scale, dtype="INT16"), exponent)

    def power(self, b: Builder) -> Value:
        """Return 2**h as INT16, for h up to 14."""
        one = b.const_like(self.exponent, 1)
        return b.rescale(b.emit("LOGICAL_LEFT_SHIFT", one, self.exponent), 1.0, dtype="INT16")

    def look_up(self, b: Builder, function: Function) -> Value:
        """Return INT16 function(m / 2**31) * 32767 for function values in 0..1, and 0 for v = 0.

        Do not widen the result with a RESCALE by 1, because the TABLE would then return INT32, which requires three operations
        on U55.
        """
        entries = np.append(0, np.rint(function(self._entries) * 32767))
        return b.rescale(b.interpolate(self.index, entries.astype(np.int16)), 1 / 128, dtype="INT16")

    def look_up_precisely(self, b: Builder, function: Function, bits: int) -> Value:
        """Return INT32 function(m / 2**31) * 2**bits for a monotonic function. For v = 0, m is 2**31 / base.

        Entries are relative to the middle of the function's range, for more precision. The unit of an entry is a power of 2,
        which saves an operation on U55.
        """
        real = function(self._entries)
        middle = (real[0] + real[-1]) / 2
        step = 2.0 ** math.ceil(math.log2(abs(real[-1] - middle) / 32768) - 1e-9)
        entries = np.clip(np.rint((np.append(real[0], real) - middle) / step), -32768, 32767)
        above = b.rescale(b.interpolate(self.index, entries.astype(np.int16)), 1 / 128, dtype="INT16")
        wide = b.rescale(above, step * 2.0**bits, dtype="INT32")
        return b.emit("ADD", wide, b.const_like(wide, round(middle * 2.0**bits)))

    def multiply(self, b: Builder, value: Value, bits: int) -> Value:
        """Return INT32 value * 2**h / 2**bits, rounded, for h up to ``bits``."""
        count = b.emit("SUB", b.const_like(value, bits), self.exponent)
        return b.emit("ARITHMETIC_RIGHT_SHIFT", value, count, round=True)

    def divide(self, b: Builder, value: Value) -> Value:
        """Return INT32 value / 2**h, rounded."""
        return b.emit("ARITHMETIC_RIGHT_SHIFT", value, self.exponent, round=True)

    @property
    def _entries(self) -> npt.NDArray[np.float64]:
        return np.linspace(1 / self.base, 1, 512)


def exponent_of(v: float, base: Literal[2, 4]) -> int:
    """Return the exponent h (see Mantissas) of a number in 1..2**31 - 1."""
    zeros = 30 - math.floor(math.log2(v))
    return zeros if base == 2 else zeros // 2
