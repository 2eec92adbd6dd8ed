"""Bit-exact scaling, rounding, reciprocals and table lookups on int64 arrays.

Source: npu-reference 6.1, 6.4 and 6.6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from ethorch.npu.arrays import Ints

DOUBLE_BIT = 31  # DBL rounding adds a second half at bit 30 (npu-reference 6.1)

# U55 and U65 names of U85 roundings (npu-reference 6.1).
SAME_ROUNDING = {"DBL": "DOUBLE_SYMMETRIC", "TRUNCATE": "TRUNCATE_TO_ZERO"}


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    return ceil_div(a, b) * b


@dataclass(eq=False)
class Scaling:
    """The function that maps v to v * multiplier / 2**shift, rounded.

    Attributes:
        multiplier, shift: int64 scalars, or arrays with one element per channel.
        rounding: A key of ``_ADDENDS``.
        double: The constant d of npu-reference 6.1. The DOUBLE_* roundings round a second time at bit 30 - d.
    """

    multiplier: Ints | np.int64
    shift: Ints | np.int64
    rounding: str
    double: int = 0

    @cached_property
    def is_identity(self) -> bool:
        if self.shift.ndim == 0 and self.multiplier.ndim == 0:
            return int(self.multiplier) == 1 and int(self.shift) == 0
        return bool(np.all(self.multiplier == 1) and np.all(self.shift == 0))

    @cached_property
    def addends(self) -> tuple[Ints, Ints]:
        """The values added to v * multiplier before the shift, for v >= 0 and for v < 0. Each has the shape of ``shift``."""
        if self.is_identity:
            nothing = np.zeros(np.shape(self.shift), np.int64)
            return nothing, nothing
        if self.shift.ndim == 0:
            return _addends_of(int(self.shift), self.rounding, self.double)
        return _addends(self)

    def __call__(self, v: Ints) -> Ints:
        """Scale int64 values. Their products with ``multiplier`` wrap at 64 bits."""
        if self.is_identity:
            return v
        p = v * self.multiplier
        if addend := _ADDENDS[self.rounding]:
            p += addend(v, self)
        p >>= self.shift
        return p


def scaling(multiplier: int, shift: int, rounding: str, double: int = 0) -> Scaling:
    return Scaling(np.int64(multiplier), np.int64(shift), SAME_ROUNDING.get(rounding, rounding), double)


def _half(s: Scaling) -> Ints:
    return np.where(s.shift > 0, np.int64(1) << np.maximum(s.shift - 1, 0), np.int64(0))


def _second_half(s: Scaling) -> Ints:
    return np.where(s.shift > DOUBLE_BIT - s.double, np.int64(1) << (DOUBLE_BIT - 1 - s.double), np.int64(0))


_ADDENDS: dict[str, Callable[[Ints, Scaling], Ints] | None] = {
    "NATURAL": lambda v, s: _half(s),
    "DOUBLE_SYMMETRIC": lambda v, s: _half(s) + np.where(v >= 0, _second_half(s), -_second_half(s)),
    "DOUBLE_ASYMMETRIC": lambda v, s: _half(s) + _second_half(s),
    "SYMMETRIC": lambda v, s: _half(s) - (v < 0),
    "TRUNCATE_TO_ZERO": lambda v, s: np.where(v >= 0, np.int64(0), (np.int64(1) << s.shift) - 1),
    "TRUNCATE_TO_LOWER": None,
}


def _addends(s: Scaling) -> tuple[Ints, Ints]:
    make, shape = _ADDENDS[s.rounding], np.shape(s.shift)
    if make is None:
        return np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    above, below = (np.asarray(make(np.asarray(v, np.int64), s), np.int64) for v in (0, -1))
    return np.broadcast_to(above, shape), np.broadcast_to(below, shape)


@cache
def _addends_of(shift: int, rounding: str, double: int) -> tuple[Ints, Ints]:
    return _addends(Scaling(np.int64(1), np.int64(shift), rounding, double))


def reciprocal(count: Ints) -> tuple[Ints, Ints]:
    """Return (m, s) such that m / 2**s approximates 1 / count, computed with TOSA's formula."""
    k = np.ceil(np.log2(np.maximum(count, 1))).astype(np.int64)  # bit_length(count - 1)
    return ((np.int64((1 << 30) + 1)) << k) // count, 30 + k


def average(total: Ints, count: Ints) -> Ints:
    """Divide ``total`` by ``count`` using ``reciprocal``, and round half up (npu-reference 6.6)."""
    m, s = reciprocal(count)
    rounded: Ints = (total * m + (np.int64(1) << (s - 1))) >> s
    return rounded


def interpolate_16(values: Ints, base: Ints, slope: Ints) -> Ints:
    """Interpolate a table of 16-bit results (npu-reference 6.4)."""
    u = values + 32768
    i = u >> 7
    result: Ints = base[i] + ((slope[i] * (u & 127) + 64) >> 7)
    return result


def interpolate_32(values: Ints, base: Ints, slope: Ints) -> Ints:
    """Interpolate a table of 32-bit results, like TOSA's TABLE on int16 (npu-reference 6.4)."""
    u = values + 32768
    i = u >> 7
    result: Ints = (base[i] << 7) + slope[i] * (u & 127)
    return result


def tanh_16(values: Ints, base: Ints, slope: Ints) -> Ints:
    """Compute tanh by interpolating a table with one entry per 2**8 codes (npu-reference 6.4)."""
    return _symmetric(_interpolate_clipped(values, base, slope, 8), 8)


def sigmoid_16(values: Ints, base: Ints, slope: Ints) -> Ints:
    """Compute sigmoid(x) as 16384 + tanh(x/2)/2, by interpolating a table with one entry per 2**9 codes (npu-reference 6.4)."""
    return 16384 + _symmetric(_interpolate_clipped(values, base, slope, 9), 10)


def _interpolate_clipped(v: Ints, base: Ints, slope: Ints, b: int) -> Ints:
    u = np.clip(v, -(256 << b), (256 << b) - 1) + (256 << b)
    i = u >> b
    result: Ints = base[i] * (1 << b) + slope[i] * (u & ((1 << b) - 1))
    return result


def _symmetric(t: Ints, n: int) -> Ints:
    half = 1 << (n - 1)
    return np.where(t >= 0, (t + half) >> n, -((-t + half) >> n))


def wrap_32(v: Ints) -> Ints:
    return v.astype(np.int32).astype(np.int64)


def leading_zeros_32(v: Ints) -> Ints:
    """Count the leading zeros of 32-bit values. Return 32 for 0."""
    pattern = (v & 0xFFFFFFFF).astype(np.float64)  # exact; the exponent is the bit length
    return 32 - np.frexp(pattern)[1].astype(np.int64)
