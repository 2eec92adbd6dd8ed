"""A function of int16 codes as few TABLEs: one of 513 entries, and finer ones where it is too steep, bent or broken for that.

TOSA 1.0 TABLE, int16: entry (code + 32768) >> 7, the low 7 bits interpolate between an entry and the next. A finer table has
an entry for every 64, 32... or single codes of a window, is flat outside of it, and is added to what the others give.
Entries do not lie on the function but where the lines between them are closest to it, unless it jumps.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

#: A number for each code of the input, in codes of the output; not rounded.
Codes = npt.NDArray[np.float64]
#: How far off each code may be.
Allowed = Callable[[Codes], Codes]

#: Where one TABLE is further off than so many codes, and than the function changes at one of the next two codes of its input,
#: finer ones are added.
FAR = 8.0
#: And where it is further off than this part of it at more than a few of all codes, as tanh is wherever it bends.
_USUALLY, _FEW = 0.125, 0.04
#: As many TABLEs as one function may become.
MOST = 8
#: A function that leaves the output's range is tabulated up to here, so that it bends at the range's end and not at an entry.
_BEYOND = 1.25
#: Fitting entries, an input of 0 counts like so many codes: f(0) = 0 stays, and what a network has most is near it.
_WEIGHT_OF_0 = 1000.0
#: And an entry's own value like this many codes: it decides of those that no code reads.
_WEIGHT_OF_OLD = 0.01


@dataclass(frozen=True)
class Piece:
    """One TABLE: entry k, an int16, is for code ``start + 128 * k / zoom``, in steps of ``unit`` output codes."""

    start: int
    zoom: int
    unit: float
    entries: npt.NDArray[np.int16]

    @property
    def middle(self) -> int:
        """The code that the TABLE is to see as 0."""
        return self.start + 32768 // self.zoom

    def places(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """(The entry for each code, its distance from there in 1/128 of that to the next)."""
        seen = np.clip((np.arange(-32768, 32768) - self.middle) * self.zoom, -32768, 32767) + 32768
        return seen >> 7, seen & 127

    def values(self) -> Codes:
        """What it adds for each code, before it is rounded to whole codes."""
        index, rest = self.places()
        entries = self.entries.astype(np.int64)
        looked_up = entries[index] * 128 + (entries[index + 1] - entries[index]) * rest
        whole: npt.NDArray[np.int64] = (looked_up + 64) >> 7
        return whole * self.unit


#: What ``pieces`` has found: a program is walked by the partitioner and again by the backend, and a network repeats its functions.
_found: dict[tuple[bytes, int, int, float, bool], list[Piece]] = {}
_MOST_FOUND = 256


def pieces(codes: Codes, low: int, high: int, *, far: float = FAR, exact: bool = False) -> list[Piece]:
    """The TABLEs whose sum, clamped to ``low..high``, is the function; the first spans all codes.

    Args:
        codes: what each of -32768..32768 becomes, in output codes, neither rounded nor clamped.
        far: how far off it may be everywhere.
        exact: to a code, also where it jumps; else as close as few tables come.
    Returns: empty where ``exact`` needs too many.
    """
    key = hashlib.sha256(codes.tobytes()).digest(), low, high, far, exact
    if key not in _found:
        if len(_found) >= _MOST_FOUND:
            _found.clear()
        _found[key] = _pieces(codes, low, high, far, exact)
    return _found[key]


def _pieces(codes: Codes, low: int, high: int, far: float, exact: bool) -> list[Piece]:
    codes, far = (np.rint(codes), 1.0) if exact else (codes, far)
    wanted = np.clip(codes, low, high)
    extended = _extended(codes, low, high)
    single = _table(extended, -32768, 1)
    if exact:
        allowed = functools.partial(_allowed, far=far, exact=True)
        if _misses([single], wanted, low, high, allowed) == 0:
            return [single]
        made = _cover(wanted, -32768, 1, allowed, joined=False)
        return made if len(made) <= MOST and _misses(made, wanted, low, high, allowed) == 0 else []
    found = _fitted([single], extended[:-1])
    for limit, few in ((far, 0), (far * _USUALLY, int(_FEW * 65536))):
        allowed = functools.partial(_allowed, far=limit, exact=False)
        if (misses := _misses(found, wanted, low, high, allowed)) > few:
            made = min((_cover(wanted, -32768, 1, allowed, joined=joined) for joined in (False, True)), key=len)
            made = _fitted(made, wanted[:-1]) if len(made) <= MOST else found
            found = made if _misses(made, wanted, low, high, allowed) < misses else found
    return found


def _fitted(made: Sequence[Piece], wanted: Codes) -> list[Piece]:
    """The TABLEs with other entries, for the least squares of what they are off.

    Where a function bends, lines between entries that lie on it are all on one side of it.
    """
    fitted = list(made)
    weight = np.ones(wanted.size)
    weight[32768] = _WEIGHT_OF_0
    for k, piece in enumerate(fitted):
        others = [np.floor(other.values() + 0.5) for other in (*fitted[:k], *fitted[k + 1 :])]
        target = (wanted - np.sum(others, axis=0)) / piece.unit
        index, rest = piece.places()
        right: Codes = rest / 128
        left = 1 - right

        def sums(of: Codes, entry: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
            return np.bincount(entry, of * weight, 513)

        old = piece.entries.astype(np.float64)
        own = sums(left * left, index) + sums(right * right, index + 1) + _WEIGHT_OF_OLD
        beside = sums(left * right, index)[:-1]
        normal = np.diag(own) + np.diag(beside, 1) + np.diag(beside, -1)
        entries = np.linalg.solve(normal, sums(left * target, index) + sums(right * target, index + 1) + _WEIGHT_OF_OLD * old)
        fitted[k] = replace(piece, entries=np.clip(np.rint(entries), -32768, 32767).astype(np.int16))
    return fitted


def sums_fit(made: Sequence[Piece]) -> bool:
    """Does what the first TABLEs add up to fit INT16, however many they are?"""
    sums = np.cumsum([np.floor(piece.values() + 0.5) for piece in made], axis=0)
    return bool(sums.min() >= -32768 and sums.max() <= 32767)


def _sum(made: Sequence[Piece], low: int, high: int) -> Codes:
    total: Codes = np.sum([np.floor(piece.values() + 0.5) for piece in made], axis=0)
    return np.clip(total, low, high)


def _misses(made: Sequence[Piece], wanted: Codes, low: int, high: int, allowed: Allowed) -> int:
    """How many codes are too far off."""
    found = np.clip(made[0].values(), low, high) if len(made) == 1 else _sum(made, low, high)
    return int(np.count_nonzero(np.abs(found - wanted[:-1]) > allowed(wanted) + 0.5))


def _allowed(wanted: Codes, *, far: float, exact: bool) -> Codes:
    """How far off each code but the last may be."""
    if exact:
        return np.full(wanted.size - 1, far)
    change = np.pad(np.abs(np.diff(wanted)), 2, mode="edge")
    near: Codes = np.lib.stride_tricks.sliding_window_view(change, 4)[: wanted.size - 1].max(axis=1)
    return np.maximum(far, near)


def _extended(codes: Codes, low: int, high: int) -> Codes:
    """``codes`` clamped, but as far beyond ``low..high`` as the ends of intervals in which they leave it."""
    ends, inside = codes[::128], (codes >= low) & (codes <= high)
    any_inside = np.logical_or.reduceat(inside, np.arange(0, 65536, 128))
    near = np.concatenate((any_inside, [False])) | np.concatenate(([False], any_inside))
    middle, reach = (low + high) / 2, (high - low) / 2 * _BEYOND
    near &= np.abs(ends - middle) <= reach
    return np.clip(codes, min(low, np.min(ends[near], initial=low)), max(high, np.max(ends[near], initial=high)))


def _grid(start: int, zoom: int) -> npt.NDArray[np.intp]:
    """Indices into all codes of a TABLE's entries; of a finer one the last two are the same, which ends it flat."""
    last = 512 if zoom == 1 else 511
    return np.minimum(start + 32768 + np.minimum(np.arange(513), last) * (128 // zoom), 65536)


def _table(span: Codes, start: int, zoom: int) -> Piece:
    """In whole codes, or as fine as INT16 has entries and steps from one to the next (TOSA 1.0 TABLE)."""
    entries = span[_grid(start, zoom)]
    unit = max(1.0, float(np.abs(np.diff(entries)).max()) / 32766, float(entries.max()) / 32767, float(-entries.min()) / 32768)
    return Piece(start, zoom, unit, np.rint(entries / unit).astype(np.int16))


def _run(bad: npt.NDArray[np.bool_], joined: bool) -> tuple[int, int]:
    """(The first bad interval, how many one finer table takes): up to the next good one; ``joined``: up to the last bad one."""
    found = np.flatnonzero(bad)
    first, span = int(found[0]), int(found[-1] - found[0]) + 1
    if joined and span <= 255:
        return first, span
    good = np.flatnonzero(~bad[first : first + 255])
    return first, int(good[0]) if good.size else min(255, bad.size - first)


def _cover(span: Codes, start: int, zoom: int, allowed: Allowed, *, joined: bool) -> list[Piece]:
    """TABLEs that add up to ``span`` over the window of one that starts at ``start``: itself, and finer ones in it."""
    grid, step = _grid(start, zoom), 128 // zoom
    codes = np.arange(grid[0], grid[-1])
    count = len(codes) // step
    whole = codes[: count * step]
    off = np.abs(np.interp(whole, grid[: count + 1], span[grid[: count + 1]]) - span[whole])
    bad = (off > allowed(span[whole[0] : whole[-1] + 2])).reshape(count, step).any(axis=1)
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
