"""The context in which passes run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ethorch.npu.cycles import Effects, Estimate, Regions, estimate
from ethorch.npu.cycles.memories import CONSTANTS
from ethorch.npu.cycles.model import RatedOperator, rate_operators
from ethorch.npu.ir import Stream

#: Minimum share of the cycles that the growth of a region saves.
GROWTH_WORTH = 0.005


@dataclass(frozen=True)
class Context:
    """The information that passes require in addition to the stream."""

    regions: Regions
    limits: Mapping[int, int] = field(default_factory=dict)  # maximum bytes by region; by default the size in the image
    grown_limits: Mapping[int, int] = field(default_factory=dict)  # if growth beyond ``limits`` saves GROWTH_WORTH of the cycles
    effects: Effects = field(default_factory=Effects)
    passes: frozenset[str] | None = None  # to run; None for all
    resident_bytes: int = 0  # of weights that are read several times and may be copied to fast memory
    _estimates: dict[int, tuple[Stream, Estimate]] = field(default_factory=dict, repr=False, compare=False)
    _operators: dict[int, tuple[Stream, list[RatedOperator]]] = field(default_factory=dict, repr=False, compare=False)

    def rate_operators(self, stream: Stream) -> list[RatedOperator]:
        """Return the operators of a stream with their cycles. The result is cached; do not modify the stream afterwards."""
        if id(stream) not in self._operators:
            self._operators[id(stream)] = stream, rate_operators(stream, self.regions, self.effects)
        return self._operators[id(stream)][1]

    def estimate(self, stream: Stream) -> Estimate:
        """Return the cycle estimate of a stream. The result is cached; do not modify the stream afterwards."""
        if id(stream) not in self._estimates:
            rated = self.rate_operators(stream)
            self._estimates[id(stream)] = stream, estimate(stream, self.regions, self.effects, rated)
        return self._estimates[id(stream)][1]

    def rate(self, stream: Stream) -> int:
        return self.estimate(stream).cycles

    def find_fast_region(self, stream: Stream) -> int | None:
        """Return the region with the highest number if its memory is faster than that of the constants, or None."""
        region = max(stream.image.sizes, default=0)
        is_faster = region and self.regions[region].bytes_per_cycle > self.regions[CONSTANTS].bytes_per_cycle
        return region if is_faster else None

    def limit(self, stream: Stream, region: int) -> int:
        size = stream.image.sizes.get(region, 0)
        return max(size, self.limits.get(region, size))

    def grown_limit(self, stream: Stream, region: int) -> int:
        return max(self.limit(stream, region), self.grown_limits.get(region, 0))
