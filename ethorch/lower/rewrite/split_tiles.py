"""Split TILEs, because Vela emits an operation for each copy, and its compile time is quadratic in the number of copies."""

from __future__ import annotations

import math

from ethorch.lower.rewrite.rewriter import Rewriter
from ethorch.targets.tuning import TileCost

_BYTES = {"INT32": 4, "INT16": 2}


def split_tiles(r: Rewriter, cost: TileCost) -> None:
    """Split each TILE into one per axis, and each multiple into factors if this is estimated to be faster."""
    for op in r.select("TILE"):
        value, multiples = op.operands[0], op.attrs["multiples"]
        shape, factors = list(value.shape), dict[int, list[int]]()
        for axis in reversed(range(value.rank)):
            shape[axis] *= multiples[axis]
            factors[axis] = _factors(multiples[axis], math.prod(shape) * _BYTES.get(value.dtype, 1), cost)
        if sum(len(parts) for parts in factors.values()) < 2:
            continue
        at = r.before(op)
        for axis, parts in factors.items():
            extent_needed = value.shape[axis] * multiples[axis]
            for factor in parts:
                value = at.emit("TILE", value, multiples=tuple(factor if k == axis else 1 for k in range(value.rank)))
            if value.shape[axis] > extent_needed:
                size = tuple(extent_needed if k == axis else extent for k, extent in enumerate(value.shape))
                value = at.emit("SLICE", value, start=(0,) * value.rank, size=size)
        r.replace(op, value)


def _factors(copies: int, bytes_made: int, cost: TileCost) -> list[int]:
    if copies == 1:
        return []
    best, least = [copies], math.inf
    for count in range(1, copies.bit_length() + 1):
        factor = math.ceil(round(copies ** (1 / count), 9))
        last = -(-copies // factor ** (count - 1))
        if last < 2:
            continue
        factors = [factor] * (count - 1) + [last]
        excess = math.prod(factors) / copies
        moved = cost.cycles_per_byte * bytes_made * (excess * (1 + 1 / last) + (excess > 1)) * (count > 1)
        cycles = cost.cycles_per_copy * sum(factors) + moved
        if cycles < least:
            best, least = factors, cycles
    return best
