"""Select the levels of a weight that minimize the rounding error."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

#: Largest magnitude of an integer weight, because quantized weights are symmetric.
MOST = 127
_CODES = np.arange(-MOST, MOST + 1)

Levels = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


def cluster(codes: npt.NDArray[np.int64], importance: npt.NDArray[Any], count: int, *, zero: bool = False) -> Levels:
    """Return at most ``count`` levels that minimize the sum of importance x (code - nearest level)^2.

    Find the optimum by dynamic programming over the 255 integer values (Wang and Song 2011, Ckmeans.1d.dp).

    Args:
        codes: Integers from -127 to 127, of any shape.
        importance: Nonnegative importance of each element of ``codes``.
        count: Maximum number of levels, at least 1.
        zero: Whether zero must be a level.

    Returns:
        int64[<= count], ascending.
    """
    at = codes.ravel() + MOST
    weight = np.zeros(2 * MOST + 1)
    np.add.at(weight, at, importance.ravel())
    if weight.sum() <= 0:
        np.add.at(weight, at, 1.0)
    present = np.flatnonzero(weight > 0)
    if zero:
        present = np.union1d(present, [MOST])
    if len(present) <= count:
        return _CODES[present]
    error, level = _intervals(_CODES[present].astype(np.float64), weight[present])
    if zero:
        error, level = _with_zero(error, level, _CODES[present], weight[present])
    return np.unique(_partition(error, level, count))


def even(bits: int) -> Levels:
    """Return the levels of a symmetric ``bits``-bit integer, scaled to -127..127."""
    half = (1 << bits - 1) - 1
    even_levels: Levels = np.round(np.arange(-half, half + 1) * (MOST / half)).astype(np.int64)
    return even_levels


def nearest(levels: Levels) -> npt.NDArray[np.int64]:
    """Return int64[255]: the nearest level for each integer value from -127 to 127."""
    middles = (levels[1:] + levels[:-1]) / 2
    nearest_levels: Levels = levels[np.searchsorted(middles, _CODES)]
    return nearest_levels


def _intervals(values: _Floats, weight: _Floats) -> tuple[_Floats, Levels]:

    def sums(x: _Floats) -> _Floats:
        total = np.concatenate([[0.0], np.cumsum(x)])
        weight_sums: _Floats = total[None, 1:] - total[:-1, None]
        return weight_sums

    mass, moment, square = sums(weight), sums(weight * values), sums(weight * values**2)
    upper = np.triu(np.ones_like(mass, dtype=bool))
    level = np.round(np.divide(moment, mass, out=np.zeros_like(mass), where=upper & (mass > 0)))
    error = square - 2 * level * moment + level**2 * mass
    return np.where(upper, error, np.inf), level.astype(np.int64)


def _with_zero(error: _Floats, level: Levels, values: Levels, weight: _Floats) -> tuple[_Floats, Levels]:
    square = np.concatenate([[0.0], np.cumsum(weight * values.astype(np.float64) ** 2)])
    at = int(np.searchsorted(values, 0))
    rows, columns = np.ogrid[: len(values), : len(values)]
    holds = (rows <= at) & (columns >= at)
    zero_error = square[None, 1:] - square[:-1, None]
    return np.where(holds, zero_error, error), np.where(holds, 0, level)


def _partition(error: _Floats, level: Levels, count: int) -> Levels:
    size = len(error)
    best, starts = error[0].copy(), []
    for _ in range(count - 1):
        total = np.concatenate([[np.inf], best[:-1]])[:, None] + error  # [first of the last cluster, last]
        start = total.argmin(0)
        starts.append(start)
        best = total[start, np.arange(size)]
    cluster_levels, last = [], size - 1
    for start in reversed(starts):
        first = int(start[last])
        cluster_levels.append(level[first, last])
        last = first - 1
    cluster_levels.append(level[0, last])
    return np.array(cluster_levels[::-1], np.int64)
