"""Choose the operations that run part by part to reduce peak memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ethorch.npu.ir import Op
from ethorch.npu.ir.image import Place
from ethorch.npu.passes.lifetimes import Lifetimes, find_lifetimes
from ethorch.npu.passes.packing import bound_size
from ethorch.npu.passes.segments import Segment
from ethorch.npu.passes.split import DEPTH, HEIGHT, WIDTH
from ethorch.npu.passes.tiling import Cut, Tiler, describe_shapes

_COUNTS = (2, 4)  # of bands of rows
_MOST_HEADS = 16
_LEAST_ROWS = 8  # of a part
_SEEDS = 16  # units before a segment at which parts can start
_BEFORE = 8  # minimum number of undivided units of a window before its first divided unit
_AFTER = 64  # units after the life of a segment in which a window may end
_MOST_SEEDS = 4  # of a segment
_MOST_WINDOWS = 40
_MOST_SEGMENTS = 2  # at a peak
_HOT = 0.7  # share of the peak from which parts may help
_WORTH = 0.03  # share of the peak that a window must save


Rate = Callable[[Sequence[Op]], int]
Refine = Callable[[Sequence[Op]], Sequence[Op]]


@dataclass(frozen=True)
class Window:
    """The consecutive operations or chains [first, end), with the parts that replace them."""

    first: int
    end: int
    parts: tuple[tuple[Op, ...], ...]
    region: int = 0
    peak: int = 0  # bytes in use when the window was chosen
    cost: int = 0  # cycles

    @property
    def ops(self) -> list[Op]:
        return [op for ops in self.parts for op in ops]


class WindowSearch:
    """A search for disjoint windows whose division reduces peak memory.

    Args:
        ops: Operations of a stream with disjoint segments.
        rate: Function that returns the estimated cycles of operations.
        refine: Function that returns operations with block sizes that suit them.
        budget: Maximum cycles that the windows may add.
        work: Maximum number of operations to visit or create when comparing windows.
    """

    def __init__(
        self,
        ops: Sequence[Op],
        lifetimes: Lifetimes,
        sizes: Mapping[int, int],
        first_key: int,
        rate: Rate,
        refine: Refine,
        budget: int,
        work: int,
    ):
        self.rate, self.refine, self.budget, self.work = rate, refine, budget, work
        self.segments, self.sizes = lifetimes.segments, dict(sizes)
        self.tiler = Tiler(ops, sizes, lifetimes.segments, first_key)
        self.count = len(self.tiler.units)
        self.live = {region: self._profile(region) for region in sizes}
        self.windows: list[Window] = []
        self.cuts: dict[object, tuple[int, Cut] | None] = {}

    def run(self) -> list[Window]:
        """Return the windows in stream order."""
        for region, live in self.live.items():
            peak = int(live.max())
            for time in np.argsort(-live, kind="stable"):
                if live[time] < _HOT * peak or len(self.windows) >= _MOST_WINDOWS:
                    break
                if not self._is_used(int(time) - 1, int(time)):
                    window = self._improve(region, int(time), peak)
                    if window is None:
                        if live[time] == peak:  # it remains
                            self.windows = [window for window in self.windows if window.region != region]
                        break
                    self.budget -= max(window.cost, 0)
                    self.windows.append(replace(window, region=region, peak=int(live[time])))
        return sorted(self.windows, key=lambda window: window.first)

    def _profile(self, region: int) -> npt.NDArray[np.int64]:
        live = np.zeros(self.count + 3, np.int64)
        for segment in self.segments:
            if segment.region == region:
                for piece in segment.pieces:
                    live[max(piece.start, 0)] += piece.high - piece.low
                    live[piece.end + 1] -= piece.high - piece.low
        return np.cumsum(live)

    def _is_used(self, first: int, end: int) -> bool:
        return any(first < window.end and window.first < end for window in self.windows)

    def _improve(self, region: int, time: int, peak: int) -> Window | None:
        best: tuple[int, int, Window] | None = None
        for segment in self._list_segments(region, time):
            start, stop = min(p.start for p in segment.pieces), max(p.end for p in segment.pieces)
            for seed in self._list_seeds(max(start - 1 - _SEEDS, 0), min(start, time)):
                signature = region, describe_shapes(self.tiler.units[seed].ops), stop - seed, time - seed
                is_known = signature in self.cuts
                cuts = [self.cuts[signature]] if is_known else self._list_cuts(seed)
                first, last = self._find_first(seed), self._find_last(region, stop)
                most, best_cut = 0, None
                for cut in cuts:
                    window = None if cut is None else self._tile(first, seed, *cut, last)
                    if window is None or not window.first < time <= window.end:
                        continue
                    saved = int(self.live[region][time]) - self._measure(window, region)
                    if saved <= _WORTH * peak or saved < most:
                        continue
                    is_best = False
                    if best is None or -saved <= best[0]:
                        window = self._refine(window)
                        if window.cost > self.budget:
                            continue
                        is_best = best is None or (-saved, window.cost) < best[:2]
                        best = (-saved, window.cost, window) if is_best else best
                    if is_best or saved > most:
                        most, best_cut = saved, cut
                if not is_known:
                    self.cuts[signature] = best_cut
        return None if best is None else best[2]

    def _refine(self, window: Window) -> Window:
        before = [op for unit in self.tiler.units[window.first : window.end] for op in unit.ops]
        parts = tuple(tuple(self.refine(part)) for part in window.parts)
        cost = sum(map(self.rate, parts)) - self.rate(before)  # parts of an operator are not one operator
        return replace(window, parts=parts, cost=cost)

    def _list_segments(self, region: int, time: int) -> list[Segment]:
        live = [
            segment
            for segment in self.segments
            if segment.region == region and any(piece.start <= time <= piece.end for piece in segment.pieces)
            if min(piece.start for piece in segment.pieces) > 0
        ]
        return sorted(live, key=lambda segment: segment.low - segment.high)[:_MOST_SEGMENTS]

    def _list_seeds(self, first: int, end: int) -> list[int]:
        """Return the units of [first, end) that write most."""
        written = {}
        for seed in reversed(range(first, min(end, self.count))):
            op = self.tiler.units[seed].ops[0]
            if not op.is_dma:
                written[seed] = sum(access.high - access.low for access in self.tiler.accesses(op)[1])
        return sorted(written, key=written.__getitem__, reverse=True)[:_MOST_SEEDS]

    def _list_cuts(self, seed: int) -> list[tuple[int, Cut] | None]:
        """Return the axes and cuts to try for a unit."""
        op = self.tiler.units[seed].ops[0]
        extents = [op.registers[name] + 1 for name in ("OFM_HEIGHT_M1", "OFM_WIDTH_M1", "OFM_DEPTH_M1")]
        cuts: list[tuple[int, Cut] | None] = []
        for axis in (HEIGHT, WIDTH) if max(extents[:2]) > 1 else (DEPTH,):
            extent = extents[axis]
            if extent <= _MOST_HEADS:
                counts = [n for n in range(2, extent + 1) if extent % n == 0]
            else:
                counts = [n for n in _COUNTS if extent >= n * _LEAST_ROWS]
            cuts += [(axis, Cut(extent, count)) for count in counts]
        return cuts

    def _find_first(self, seed: int) -> int:
        """Return the first unit of a window: the first writer of an operand of ``seed``, and at least _BEFORE units before it."""
        first = seed - _BEFORE
        for access in self.tiler.accesses(self.tiler.units[seed].ops[0])[0]:
            for segment in self.segments:
                if segment.region == access.region and segment.low <= access.low < segment.high:
                    first = min(first, min(piece.start for piece in segment.pieces) - 1)
        return self.tiler.include_tables(max(first, 0), seed + 1)

    def _find_last(self, region: int, stop: int) -> int:
        """Return the last unit of a window: the one after ``stop`` at which the fewest bytes are in use."""
        live = self.live[region][stop : min(stop + _AFTER, self.count + 1)]
        return stop + int(live.argmin()) - 1 if live.size else self.count - 1

    def _tile(self, first: int, seed: int, axis: int, cut: Cut, last: int) -> Window | None:
        first = max([first, *(w.end for w in self.windows if w.end <= seed)])
        last = min([self.count - 1, last, *(w.first - 1 for w in self.windows if w.first > seed)])
        if self._is_used(first, last + 1) or self.tiler.work > self.work:
            return None
        result = self.tiler.tile(first, seed, axis, cut, last)
        return None if result is None else Window(first, result[0], tuple(map(tuple, result[1])))

    def _measure(self, window: Window, region: int) -> int:
        first, last = window.first + 1, window.end
        live = [(segment, min(p.start for p in segment.pieces), max(p.end for p in segment.pieces)) for segment in self.segments]
        inputs: list[Place] = [(segment.region, segment.low, segment.high) for segment, start, end in live if start < first <= end]
        outputs: list[Place] = [(segment.region, segment.low, segment.high) for segment, start, end in live if start <= last < end]
        lifetimes = find_lifetimes(window.ops, self.sizes, inputs, outputs, spaces=self.tiler.spaces)
        segments = [segment for segment in lifetimes.segments if segment.region == region]
        numbers = {n: at for at, n in enumerate(n for n, segment in enumerate(lifetimes.segments) if segment.region == region)}
        permits = [
            replace(p, first=numbers[p.first], second=numbers[p.second])
            for p in lifetimes.permits
            if p.first in numbers and p.second in numbers
        ]
        return bound_size(segments, permits)
