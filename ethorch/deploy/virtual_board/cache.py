"""The CPU's data cache, as far as it comes between CPU and NPU: which lines memory and cache may disagree about.

Values are not modelled, both sides always see the newest. What would go wrong on silicon is found by two flags for each line: the
CPU has written it and not cleaned it; the NPU has written it and the CPU has not invalidated it since. The model is the worst
case: nothing leaves the cache by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ethorch.deploy.virtual_board.guest import Block, Guest
from ethorch.deploy.virtual_board.mpu import BACK, THROUGH, Mpu
from ethorch.deploy.virtual_board.unicorn_hooks import DIRTY, STALE, Hooks
from ethorch.npu.arrays import Bytes
from ethorch.targets.boards.description import Cpu


class DataCache:
    """Flags of cache lines, for the memories that a cache lies before: all but TCMs.

    Args:
        cpu: size and line length.
        guest: memory.
        hooks: where the emulator's loads and stores leave their marks.
        report: takes id and text of a fault, and the address of the instruction where that is not the present one.
        switched_on: called when firmware switches the cache on.
    """

    def __init__(
        self,
        cpu: Cpu,
        guest: Guest,
        hooks: Hooks,
        report: Callable[[str, str, int | None], None],
        switched_on: Callable[[], None],
    ):
        self.line_bytes = cpu.cache_line_bytes
        self._guest, self._hooks, self._report, self._switched_on = guest, hooks, report, switched_on
        self.mpu = Mpu()  # until the core brings its own
        self._flags: dict[str, Bytes] = {}
        if cpu.dcache_bytes:
            cached = [block for block in guest.blocks if block.memory.kind != "tcm"]
            self._flags = {b.memory.name: np.zeros(b.memory.size_bytes // self.line_bytes, np.uint8) for b in cached}
        hooks.line_shift = self.line_bytes.bit_length() - 1

    def flags_address(self, block: Block) -> int | None:
        """Where the flags of a memory are, for the hooks; None where nothing is cached."""
        flags = self._flags.get(block.memory.name)
        return None if flags is None else flags.ctypes.data

    @property
    def enabled(self) -> bool:
        """True if the cache is on."""
        return bool(self._hooks.caching)

    @enabled.setter
    def enabled(self, on: bool) -> None:
        self._hooks.caching = int(on)
        if on:
            self._switched_on()

    def operate(self, clean: bool, invalidate: bool, address: int | None) -> None:
        """Clean and invalidate the line of an address, or every line."""
        keep = ~((DIRTY if clean or invalidate else 0) | (STALE if invalidate else 0)) & 0xFF
        if address is None:
            for flags in self._flags.values():
                flags &= keep
            return
        found = self._lines(address, address + 1)
        if found is not None:
            found &= keep

    def _lines(self, start: int, end: int) -> Bytes | None:
        """The flags of the lines that a range touches; None where it is not cached."""
        found = self._guest.find(start)
        if found is None or found[0].memory.name not in self._flags:
            return None
        first, last = found[1] // self.line_bytes, (found[1] + end - start - 1) // self.line_bytes
        return self._flags[found[0].memory.name][first : last + 1]

    def _select_cached(self, ranges: Sequence[tuple[int, int]], *policies: str) -> Iterator[tuple[int, int]]:
        """The parts of address ranges that the cache keeps in one of these ways, by the MPU and the default memory map."""
        for start, end in ranges:
            for low, high, policy in self.mpu.policies(start, end):
                if policy in policies:
                    yield low, high

    def before_run(self, reads: Sequence[tuple[int, int]], writes: Sequence[tuple[int, int]], exact: bool) -> None:
        """Complain of lines that the CPU has written and not cleaned, where the NPU reads or writes."""
        if not self.enabled or not exact:
            return
        for verb, ranges in (("reads", reads), ("writes", writes)):
            for start, end in self._select_cached(ranges, BACK):
                flags = self._lines(start, end)
                dirty = np.flatnonzero(flags & DIRTY) if flags is not None else np.zeros(0, np.int64)
                if len(dirty):
                    address = (start & ~(self.line_bytes - 1)) + int(dirty[0]) * self.line_bytes
                    text = (
                        f"The NPU {verb} {start:#010x}..{end:#010x}, but {len(dirty)} cache lines there, "
                        f"the first at {address:#010x}, hold what the CPU has written and not cleaned."
                    )
                    self._report("cache.not_cleaned", text, None)
                    return

    def after_run(self, writes: Sequence[tuple[int, int]], exact: bool) -> None:
        """The NPU has written: what the cache has of it is old."""
        if not self.enabled or not exact:
            return
        for start, end in self._select_cached(writes, BACK, THROUGH):
            flags = self._lines(start, end)
            if flags is not None:
                flags |= STALE

    def look(self) -> None:
        """Complain of what the CPU has read since the last look, and the NPU had written."""
        if self._hooks.stale_reads:
            self._hooks.stale_reads = 0
            address = int(self._hooks.stale_address)
            text = f"The CPU reads {address:#010x}, which the NPU has written, without having invalidated its cache line since."
            self._report("cache.not_invalidated", text, int(self._hooks.stale_at))
