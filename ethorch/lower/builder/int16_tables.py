"""Approximation of int16 functions by TABLEs.

An int16 TABLE (TOSA 1.0) reads entry (value + 32768) >> 7 of 513 and interpolates with the low 7 bits. Finer TABLEs refine
steep, curved or discontinuous sections. A finer TABLE covers a range of inputs with one entry per 64, 32, ... or 1 values, and is
constant outside it. Entries minimize the interpolation error, unless the function must be exact.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

#: Output for each input value, not rounded.
Codes = npt.NDArray[np.float64]
#: Function that returns the maximum error for each input value.
Allowed = Callable[[Codes], Codes]

#: Maximum error of one TABLE in output steps. Steeper sections may differ by the change of the function between nearby inputs.
FAR = 8.0
#: Usual maximum error as a fraction of ``far``, and the fraction of input values that may exceed it, as for curved tanh.
_USUALLY, _FEW = 0.125, 0.04
#: Maximum mean square of errors above the maximum error, as a fraction of the function's variance (-40 dB).
_MOST_EXCESS = 1e-4
#: Maximum number of TABLEs for one function.
MOST = 8
#: Tabulated range as a multiple of the output range. The margin makes clamping exact at the ends of the output range.
_BEYOND = 1.25
#: Weight of input 0 in the fit, because f(0) = 0 should be exact and most values of a network are near 0.
_WEIGHT_OF_0 = 1000.0
#: Weight of an entry's previous value in the fit, which determines entries that no input value reads.
_WEIGHT_OF_OLD = 0.01


@dataclass(frozen=True)
class Piece:
    """One TABLE of an approximation.

    Entry k is the result for input ``start + 128 * k / zoom``, in units of ``unit`` output steps.
    """

    start: int
    zoom: int
    unit: float
    entries: npt.NDArray[np.int16]

    @property
    def middle(self) -> int:
        """The input value that the lookup shifts to 0."""
        return self.start + 32768 // self.zoom

    def places(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return the entry index for each input value, and the distance from this entry in 128ths of the entry spacing."""
        index = np.clip((np.arange(-32768, 32768) - self.middle) * self.zoom, -32768, 32767) + 32768
        return index >> 7, index & 127

    def values(self) -> Codes:
        """Return the TABLE's contribution for each input value, in output steps."""
        index, distance = self.places()
        entries = self.entries.astype(np.int64)
        looked_up = entries[index] * 128 + (entries[index + 1] - entries[index]) * distance
        rounded: npt.NDArray[np.int64] = (looked_up + 64) >> 7
        return rounded * self.unit


#: Cache of ``pieces``, because the partitioner and the backend lower the same functions.
_cache: dict[tuple[bytes, int, int, float, bool], list[Piece]] = {}
_MOST_CACHED = 256


def pieces(codes: Codes, low: int, high: int, *, far: float = FAR, exact: bool = False) -> list[Piece]:
    """Return TABLEs whose sum, clamped to ``low..high``, approximates ``codes``. The first TABLE spans all input values.

    If ``MOST`` are too few, return an empty list.

    Args:
        codes: Output for each input in -32768..32768, neither rounded nor clamped.
        far: Maximum error outside steep sections, in output steps, if ``exact`` is False.
        exact: Whether every result must be within one output step of ``codes``, even at discontinuities.
    """
    key = hashlib.sha256(codes.tobytes()).digest(), low, high, far, exact
    if key not in _cache:
        if len(_cache) >= _MOST_CACHED:
            _cache.clear()
        _cache[key] = _pieces(codes, low, high, far, exact)
    return _cache[key]


def _pieces(codes: Codes, low: int, high: int, far: float, exact: bool) -> list[Piece]:
    codes, far = (np.rint(codes), 1.0) if exact else (codes, far)
    clamped = np.clip(codes, low, high)
    extended_codes = _extend(codes, low, high)
    single = _table(extended_codes, -32768, 1)
    if exact:
        allowed = functools.partial(_tolerances, far=far, exact=True)
        if _misses([single], clamped, low, high, allowed) == 0:
            return [single]
        cover = _cover(clamped, -32768, 1, allowed, joined=False)
        return cover if len(cover) <= MOST and _misses(cover, clamped, low, high, allowed) == 0 else []
    best = _fit([single], extended_codes[:-1])
    for limit, tolerated in ((far, 0), (far * _USUALLY, int(_FEW * 65536))):
        allowed = functools.partial(_tolerances, far=limit, exact=False)
        if (misses := _misses(best, clamped, low, high, allowed)) > tolerated:
            cover = min((_cover(clamped, -32768, 1, allowed, joined=joined) for joined in (False, True)), key=len)
            cover = _fit(cover, clamped[:-1]) if len(cover) <= MOST else best
            best = cover if _misses(cover, clamped, low, high, allowed) < misses else best
    return best if _represents(best, clamped, low, high, far) else []


def _represents(tables: Sequence[Piece], function: Codes, low: int, high: int, far: float) -> bool:
    # One half of the inputs suffices, because many functions are not defined for negative inputs.
    excess = np.maximum(np.abs(_sum(tables, low, high) - function[:-1]) - _tolerances(function, far=far, exact=False), 0.0)
    halves = slice(32768), slice(32768, 65536)
    return any(bool(np.mean(excess[half] ** 2) <= _MOST_EXCESS * np.var(function[half])) for half in halves)


def _fit(tables: Sequence[Piece], function: Codes) -> list[Piece]:
    fits = list(tables)
    weight = np.ones(function.size)
    weight[32768] = _WEIGHT_OF_0
    for k, piece in enumerate(fits):
        contributions = [np.floor(table.values() + 0.5) for table in (*fits[:k], *fits[k + 1 :])]
        target = (function - np.sum(contributions, axis=0)) / piece.unit
        index, distance = piece.places()
        right: Codes = distance / 128
        left = 1 - right

        def sums(of: Codes, entry: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
            return np.bincount(entry, of * weight, 513)

        old = piece.entries.astype(np.float64)
        diagonal = sums(left * left, index) + sums(right * right, index + 1) + _WEIGHT_OF_OLD
        beside = sums(left * right, index)[:-1]
        normal = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        entries = np.linalg.solve(normal, sums(left * target, index) + sums(right * target, index + 1) + _WEIGHT_OF_OLD * old)
        clipped = np.clip(np.rint(entries), -32768, 32767).astype(np.int16)
        if np.abs(np.diff(clipped.astype(np.int32))).max() <= 32767:  # the NPU stores differences in 16 bits
            fits[k] = replace(piece, entries=clipped)
    return fits


def sums_fit(tables: Sequence[Piece]) -> bool:
    sums = np.cumsum([np.floor(piece.values() + 0.5) for piece in tables], axis=0)
    return bool(sums.min() >= -32768 and sums.max() <= 32767)


def _sum(tables: Sequence[Piece], low: int, high: int) -> Codes:
    total: Codes = np.sum([np.floor(piece.values() + 0.5) for piece in tables], axis=0)
    return np.clip(total, low, high)


def _misses(tables: Sequence[Piece], function: Codes, low: int, high: int, allowed: Allowed) -> int:
    values = np.clip(tables[0].values(), low, high) if len(tables) == 1 else _sum(tables, low, high)
    return int(np.count_nonzero(np.abs(values - function[:-1]) > allowed(function) + 0.5))


def _tolerances(function: Codes, *, far: float, exact: bool) -> Codes:
    if exact:
        return np.full(function.size - 1, far)
    change = np.pad(np.abs(np.diff(function)), 2, mode="edge")
    near: Codes = np.lib.stride_tricks.sliding_window_view(change, 4)[: function.size - 1].max(axis=1)
    return np.maximum(far, near / 2)


def _extend(codes: Codes, low: int, high: int) -> Codes:
    ends, inside = codes[::128], (codes >= low) & (codes <= high)
    any_inside = np.logical_or.reduceat(inside, np.arange(0, 65536, 128))
    near = np.concatenate((any_inside, [False])) | np.concatenate(([False], any_inside))
    middle, reach = (low + high) / 2, (high - low) / 2 * _BEYOND
    near &= np.abs(ends - middle) <= reach
    return np.clip(codes, min(low, np.min(ends[near], initial=low)), max(high, np.max(ends[near], initial=high)))


def _grid(start: int, zoom: int) -> npt.NDArray[np.intp]:
    last = 512 if zoom == 1 else 511
    return np.minimum(start + 32768 + np.minimum(np.arange(513), last) * (128 // zoom), 65536)


def _table(span: Codes, start: int, zoom: int) -> Piece:
    entries = span[_grid(start, zoom)]
    unit = max(1.0, float(np.abs(np.diff(entries)).max()) / 32766, float(entries.max()) / 32767, float(-entries.min()) / 32768)
    return Piece(start, zoom, unit, np.rint(entries / unit).astype(np.int16))


def _run(bad: npt.NDArray[np.bool_], joined: bool) -> tuple[int, int]:
    intervals = np.flatnonzero(bad)
    first, span = int(intervals[0]), int(intervals[-1] - intervals[0]) + 1
    if joined and span <= 255:
        return first, span
    good = np.flatnonzero(~bad[first : first + 255])
    return first, int(good[0]) if good.size else min(255, bad.size - first)


def _cover(span: Codes, start: int, zoom: int, allowed: Allowed, *, joined: bool) -> list[Piece]:
    grid, step = _grid(start, zoom), 128 // zoom
    codes = np.arange(grid[0], grid[-1])
    count = len(codes) // step
    complete = codes[: count * step]
    off = np.abs(np.interp(complete, grid[: count + 1], span[grid[: count + 1]]) - span[complete])
    bad = (off > allowed(span[complete[0] : complete[-1] + 2])).reshape(count, step).any(axis=1)
    finer: list[Piece] = []
    while zoom < 128 and bad.any():
        first, run = _run(bad, joined)
        factor = max((f for f in (2, 4, 8, 16, 32, 64, 128) if f * zoom <= 128 and 512 // f - 1 >= run), default=2)
        first = first if not joined else max(0, first - (512 // factor - 1 - run) // 2)
        last = min(first + 512 // factor - 1, count)
        begin, end = int(grid[first]), int(grid[last])
        inside = span[np.clip(np.arange(span.size), begin, end)]
        reach = inside - inside[0]
        inside = reach if np.abs(reach).max() <= 32767 else inside - (inside.max() + inside.min()) / 2
        finer += _cover(inside, begin - 32768, factor * zoom, allowed, joined=joined)
        span, bad = span - inside, bad.copy()
        bad[first:last] = False
        if len(finer) > MOST:
            break
    return [_table(span, start, zoom), *finer]
