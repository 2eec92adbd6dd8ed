"""Ranges of integers, which determine the choice between 32-bit, 64-bit and float64 arithmetic."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ethorch.npu.arithmetic import Scaling
from ethorch.npu.arrays import Array
from ethorch.npu.feature_map import FeatureMap
from ethorch.npu.filters import FLOAT64_EXACT

Range = tuple[int, int]  # least and largest value

INT8, INT16, INT32 = ((-(1 << bits), (1 << bits) - 1) for bits in (7, 15, 31))


def within(inner: Range, outer: Range) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def around(values: Iterable[int]) -> Range:
    numbers = list(values)
    return min(numbers), max(numbers)


def of_map(fm: FeatureMap) -> Range:
    """Return the range of (value - zero point) in a feature map."""
    low, high = fm.value_range
    return low - fm.zero_point, high - fm.zero_point


def magnitude(r: Range) -> int:
    return max(abs(r[0]), abs(r[1]))


def scale_range(r: Range, s: Scaling) -> Range:
    """Apply a per-tensor scaling to a range. The scaling is monotonic on each side of 0."""
    if s.is_identity:
        return r
    above, below = (int(a) for a in s.addends)
    m, shift = int(s.multiplier), int(s.shift)
    ends = [v for v in (*r, 0, -1) if r[0] <= v <= r[1]]
    return around((v * m + (above if v >= 0 else below)) >> shift for v in ends)


def combine(name: str, a: Range, b: Range, mask: int) -> Range | None:
    """Return the range of an elementwise function's results, or None for SHL and DIV."""
    if name == "MUL":
        return around(x * y for x in a for y in b)
    if name in ("MIN", "MAX"):
        return around((*a, *b))
    if name == "ADD":
        return a[0] + b[0], a[1] + b[1]
    if name == "SUB":
        return a[0] - b[1], a[1] - b[0]
    if name == "ABS":
        return 0, magnitude(a)
    if name == "CLZ":
        return 0, 32
    if name.startswith("CMP_"):
        return -1, 0
    if name in ("AND", "OR", "XOR", "NOT", "AND_NOT"):
        bits = max(int(v).bit_length() for v in (*a, *b))
        return -(1 << bits), (1 << bits) - 1
    if name == "SHR":  # rounding may add half of the discarded bits
        return around((*a, 0, a[1] + 1))
    if name == "LSR":
        return 0, mask
    return None


def one_exact_in_double(largest: int, s: Scaling, zero_point: int) -> bool:
    """Return True if ``exact_in_double`` holds for a per-tensor scaling."""
    shift = int(s.shift)
    moved = max(abs(int(addend)) for addend in s.addends) + (abs(zero_point) << shift)
    return abs(largest * int(s.multiplier)) < FLOAT64_EXACT / 2 and moved < FLOAT64_EXACT / 2


def exact_in_double(largest: int | Array, s: Scaling, zero_point: int) -> Array:
    """Return True for each channel whose floor(v * (multiplier / unit) + (addend / unit + zero_point)) is exact in float64.

    This expression then equals the result of integer scaling. ``unit`` is 2**shift. As multiples of 1 / unit, all terms are
    integers, which are exact if the terms and their sum are below 2**53.

    Args:
        largest: Bound on |v|, a scalar or one element per channel.
    """
    above, below = s.addends
    unit = np.ldexp(1.0, s.shift)
    moved = np.maximum(np.abs(above), np.abs(below)) + abs(zero_point) * unit
    products = np.abs(np.asarray(largest, np.float64) * s.multiplier)
    is_exact: Array = (products < FLOAT64_EXACT / 2) & (moved < FLOAT64_EXACT / 2)
    return is_exact


def all_exact_in_double(largest: Array, s: Scaling, zero_point: int) -> bool:
    """Return True if the largest terms prove ``exact_in_double`` for all channels.

    No addend exceeds 2**shift (npu-reference 6.1).
    """
    product = float(largest.max(initial=0)) * float(np.abs(s.multiplier).max(initial=0))
    moved = (abs(zero_point) + 1) << int(np.max(s.shift, initial=0))
    return product < FLOAT64_EXACT / 2 and moved < FLOAT64_EXACT / 2
