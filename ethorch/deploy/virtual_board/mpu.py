"""A memory protection unit, limited to cache policies.

Source: Armv8-M Architecture Reference Manual, PMSAv8 and the default memory map.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

NONE, THROUGH, BACK = "not cached", "written through", "written back"
REGIONS = 16
TYPE, CTRL, RNR, RBAR, RLAR, MAIR0, MAIR1 = 0xD90, 0xD94, 0xD98, 0xD9C, 0xDA0, 0xDC0, 0xDC4
_ALIASES = {RBAR + 8 * n: (RBAR, n) for n in range(1, 4)} | {RLAR + 8 * n: (RLAR, n) for n in range(1, 4)}
# Default memory map: (first address, policy). A policy applies up to the next first address.
_DEFAULT = (
    (0x00000000, THROUGH),
    (0x20000000, BACK),
    (0x40000000, NONE),
    (0x60000000, BACK),
    (0x80000000, THROUGH),
    (0xA0000000, NONE),
)
_END = 1 << 32


class Mpu:
    """The MPU registers, by offset in the system control space."""

    def __init__(self) -> None:
        self._control = self._number = 0
        self._bases, self._limits, self._attributes = [0] * REGIONS, [0] * REGIONS, [0, 0]

    @staticmethod
    def owns(at: int) -> bool:
        return TYPE <= at <= MAIR1 and (at <= RLAR + 24 or at >= MAIR0)

    def read(self, at: int) -> int:
        at, region = self._region(at)
        if at == TYPE:
            return REGIONS << 8
        if at in (MAIR0, MAIR1):
            return self._attributes[at == MAIR1]
        return {CTRL: self._control, RNR: self._number, RBAR: self._bases[region], RLAR: self._limits[region]}.get(at, 0)

    def write(self, at: int, value: int) -> None:
        at, region = self._region(at)
        if at == CTRL:
            self._control = value & 7
        elif at == RNR:
            self._number = value % REGIONS
        elif at == RBAR:
            self._bases[region] = value
        elif at == RLAR:
            self._limits[region] = value
        elif at in (MAIR0, MAIR1):
            self._attributes[at == MAIR1] = value

    def _region(self, at: int) -> tuple[int, int]:
        at, more = _ALIASES.get(at, (at, 0))
        return at, (self._number & ~3 | more) if more else self._number

    def policies(self, start: int, end: int) -> Iterator[tuple[int, int, str]]:
        """Iterate over (start, end, cache policy) ranges that cover an address range, in order."""
        rows = list(self._regions())
        cuts = {start, end, *(at for at, _ in _DEFAULT), *(at for low, high, _ in rows for at in (low, high))}
        points = sorted(at for at in cuts if start <= at <= end)
        for low, high in itertools.pairwise(points):
            policy = next((kind for first, last, kind in rows if first <= low < last), None)
            if policy is None:
                policy = next(kind for at, kind in reversed(_DEFAULT) if at <= low)
            yield low, high, policy

    def _regions(self) -> Iterator[tuple[int, int, str]]:
        if not self._control & 1:
            return
        for base, limit in zip(self._bases, self._limits, strict=True):
            if limit & 1:
                index = limit >> 1 & 7
                attribute = self._attributes[index >> 2] >> 8 * (index & 3) & 0xFF
                yield base & ~31, min((limit & ~31) + 32, _END), _policy(attribute)


def _policy(attribute: int) -> str:
    # ``attribute`` is a byte of a MAIR register. An outer half of 0 is device memory. An inner half of 4 is not cached.
    outer, inner = attribute >> 4, attribute & 15
    if not outer or inner == 4:
        return NONE
    return THROUGH if inner >> 2 in (0, 2) else BACK
