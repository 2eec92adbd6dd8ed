"""Coherence checks for the CPU's data cache."""

# The CPU and the NPU always read the newest value. Two flags per line detect missing maintenance: the CPU wrote the line and did
# not clean it, or the NPU wrote the line and the CPU did not invalidate it. Lines are never evicted, which is the worst case.

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ethorch.deploy.virtual_board.guest import Block, Guest
from ethorch.deploy.virtual_board.mpu import BACK, THROUGH, Mpu
from ethorch.deploy.virtual_board.unicorn_hooks import DIRTY, STALE, Hooks
from ethorch.npu.arrays import Bytes
from ethorch.support.wording import count_noun
from ethorch.targets.boards.description import Cpu


class DataCache:
    """Per-line flags to detect missing cache maintenance in all memories except TCMs.

    Args:
        hooks: Hooks that set the flags when the CPU loads or stores.
        report: Callback for a fault: ``report(id, text, pc)``. ``pc`` is None for the current instruction.
        switched_on: Callback invoked when the firmware enables the cache.
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
        self.mpu = Mpu()  # replaced by the core's MPU
        self._flags: dict[str, Bytes] = {}
        if cpu.dcache_bytes:
            cached = [block for block in guest.blocks if block.memory.kind != "tcm"]
            self._flags = {b.memory.name: np.zeros(b.memory.size_bytes // self.line_bytes, np.uint8) for b in cached}
        hooks.line_shift = self.line_bytes.bit_length() - 1

    def flags_address(self, block: Block) -> int | None:
        flags = self._flags.get(block.memory.name)
        return None if flags is None else flags.ctypes.data

    @property
    def is_enabled(self) -> bool:
        return bool(self._hooks.caching)

    @is_enabled.setter
    def is_enabled(self, is_enabled: bool) -> None:
        self._hooks.caching = int(is_enabled)
        if is_enabled:
            self._switched_on()

    def operate(self, clean: bool, invalidate: bool, address: int | None) -> None:
        """Clean or invalidate the line that contains an address, or all lines if the address is None."""
        keep = ~((DIRTY if clean or invalidate else 0) | (STALE if invalidate else 0)) & 0xFF
        if address is None:
            for flags in self._flags.values():
                flags &= keep
            return
        flags_of_lines = self._lines(address, address + 1)
        if flags_of_lines is not None:
            flags_of_lines &= keep

    def _lines(self, start: int, end: int) -> Bytes | None:
        location = self._guest.find(start)
        if location is None or location[0].memory.name not in self._flags:
            return None
        block, offset = location
        end_offset = offset + end - start
        assert end_offset <= block.memory.size_bytes  # NpuDevice reports npu.extent for a region that passes the end
        first, last = offset // self.line_bytes, (end_offset - 1) // self.line_bytes
        return self._flags[block.memory.name][first : last + 1]

    def _select_cached(self, ranges: Sequence[tuple[int, int]], *policies: str) -> Iterator[tuple[int, int]]:
        for start, end in ranges:
            for low, high, policy in self.mpu.policies(start, end):
                if policy in policies:
                    yield low, high

    def before_run(self, reads: Sequence[tuple[int, int]], writes: Sequence[tuple[int, int]], exact: bool) -> None:
        """Report the first of the NPU's address ranges that contains dirty cache lines."""
        if not self.is_enabled or not exact:
            return
        for verb, ranges in (("reads", reads), ("writes", writes)):
            for start, end in self._select_cached(ranges, BACK):
                flags = self._lines(start, end)
                dirty = np.flatnonzero(flags & DIRTY) if flags is not None else np.zeros(0, np.int64)
                if len(dirty):
                    address = (start & ~(self.line_bytes - 1)) + int(dirty[0]) * self.line_bytes
                    lines = count_noun(len(dirty), "cache line")
                    text = (
                        f"The NPU {verb} {start:#010x}..{end:#010x}, but CPU writes to {lines} in this range (the first at "
                        f"{address:#010x}) were not cleaned."
                    )
                    self._report("cache.not_cleaned", text, None)
                    return

    def after_run(self, writes: Sequence[tuple[int, int]], exact: bool) -> None:
        """Mark the cache lines of the written ranges as stale."""
        if not self.is_enabled or not exact:
            return
        for start, end in self._select_cached(writes, BACK, THROUGH):
            flags = self._lines(start, end)
            if flags is not None:
                flags |= STALE

    def look(self) -> None:
        """Report the first stale line that the CPU has read since the last call, if any."""
        if self._hooks.stale_reads:
            self._hooks.stale_reads = 0
            address = int(self._hooks.stale_address)
            text = f"The CPU reads {address:#010x}, which the NPU wrote, but the CPU did not invalidate the cache line."
            self._report("cache.not_invalidated", text, int(self._hooks.stale_at))
