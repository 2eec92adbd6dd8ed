"""Private peripherals of a Cortex-M: interrupt controller, system timer, control block and cycle counter.

Only features required to drive an NPU are modeled. SysTick and the DWT cycle counter count executed instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ethorch.deploy.virtual_board.mpu import Mpu

SYSTEM_BASE, SYSTEM_BYTES = 0xE0000000, 0x100000  # the private peripheral bus
_DWT, _SCS, _SCS_NONSECURE = 0x1000, 0xE000, 0x2E000
SYSTICK, SVCALL, PENDSV, EXTERNAL = 15, 11, 14, 16  # exception numbers; EXTERNAL is the first external line
_CPUID = {
    "cortex-m0": 0x410CC200,
    "cortex-m3": 0x412FC231,
    "cortex-m4": 0x410FC241,
    "cortex-m7": 0x411FC272,
    "cortex-m33": 0x410FD213,
    "cortex-m52": 0x411FD240,
    "cortex-m55": 0x411FD221,
    "cortex-m85": 0x410FD230,
}  # Arm's technical reference manuals, CPUID
_IDLE_PRIORITY = 256
_WAYS = 4  # ways of the data cache; bits 31:30 of a set/way register


class Maintenance(Protocol):
    """The interface through which maintenance registers control a cache."""

    is_enabled: bool

    def operate(self, clean: bool, invalidate: bool, address: int | None) -> None: ...


class NoCache:
    """A placeholder for cores without a data cache."""

    is_enabled = False

    def operate(self, clean: bool, invalidate: bool, address: int | None) -> None: ...


class Core:
    """The private peripheral bus of a Cortex-M.

    Args:
        core: Name of the core, which determines CPUID.
        interrupts: Number of NVIC lines.
        vector_table: Value of VTOR after a reset.
        instructions: Function that returns the number of executed instructions.
        lines: Function that returns the numbers of the raised external interrupt lines.
        reset: Callback for a system reset that the firmware requests.
        on_change: Callback for register writes that can pend, enable or schedule an exception.
    """

    def __init__(
        self,
        core: str,
        interrupts: int,
        vector_table: int,
        instructions: Callable[[], int],
        lines: Callable[[], list[int]],
        reset: Callable[[], None],
        on_change: Callable[[], None] = lambda: None,
    ):
        self.vtor = vector_table
        self.interrupts = interrupts
        self.caches: Maintenance = NoCache()
        self.cache_bytes, self.line_bytes = 0, 32
        self.enabled: set[int] = set()
        self.pending: set[int] = set()  # exception numbers
        self.active: list[int] = []  # exception numbers, the innermost last
        self._instructions, self._lines, self._reset, self._on_change = instructions, lines, reset, on_change
        self._cpuid = _CPUID.get(core, 0)
        self._words: dict[int, int] = {}
        self._priorities: dict[int, int] = {}
        self._systick_control = self._systick_reload = 0
        self._systick_start = self._cycle_start = 0
        self.mpu = Mpu()
        self._lines_by_operation: dict[int, set[tuple[int, int]]] = {}

    # The bus.

    def read(self, offset: int, size: int) -> int:
        """Read ``size`` bytes at an offset from SYSTEM_BASE."""
        word = self._read(offset & ~3)
        return word >> 8 * (offset & 3) & (1 << 8 * size) - 1

    def write(self, offset: int, value: int, size: int) -> None:
        at = offset & ~3
        if size < 4:
            shift, mask = 8 * (offset & 3), (1 << 8 * size) - 1
            value = self._read(at) & ~(mask << shift) | (value & mask) << shift
        self._write(at, value)

    def _read(self, offset: int) -> int:
        offset = _SCS + offset - _SCS_NONSECURE if _SCS_NONSECURE <= offset < _SCS_NONSECURE + 0x1000 else offset
        if offset == _DWT + 4:
            return self._instructions() - self._cycle_start & 0xFFFFFFFF
        if not _SCS <= offset < _SCS + 0x1000:
            return self._words.get(offset, 0)
        at = offset - _SCS
        if 0x100 <= at < 0x380:
            return self._bits(at)
        if 0x400 <= at < 0x400 + self.interrupts:
            return sum(self._priorities.get(EXTERNAL + at - 0x400 + n, 0) << 8 * n for n in range(4))
        if at == 0x010:
            fired = SYSTICK in self.pending
            return self._systick_control | fired << 16
        if at == 0x014:
            return self._systick_reload
        if at == 0x018:
            period = self._systick_reload + 1
            return self._systick_reload - (self._instructions() - self._systick_start) % period
        if at == 0xD00:
            return self._cpuid
        if at == 0xD04:
            first = min(self.pending, default=0)
            return first << 12 | (self.active[-1] if self.active else 0)
        if at == 0xD08:
            return self.vtor
        if at == 0xD14:
            return self._words.get(offset, 0x201) & ~(1 << 16) | self.caches.is_enabled << 16
        if self.mpu.owns(at):
            return self.mpu.read(at)
        if 0xD18 <= at < 0xD24:
            return sum(self._priorities.get(4 + at - 0xD18 + n, 0) << 8 * n for n in range(4))
        if at == 0xD78:
            return 0x09000003 if self.cache_bytes else 0  # CLIDR: caches for data and for instructions at level 1
        if at == 0xD7C:
            return 0x8303C003  # CTR: lines of 32 bytes
        if at == 0xD80:
            return self._ccsidr()
        return self._words.get(offset, 0)

    def _ccsidr(self) -> int:
        if not self.cache_bytes:
            return 0
        sets = self.cache_bytes // self.line_bytes // _WAYS
        return (sets - 1) << 13 | (_WAYS - 1) << 3 | (self.line_bytes.bit_length() - 5)

    def _write(self, offset: int, value: int) -> None:
        offset = _SCS + offset - _SCS_NONSECURE if _SCS_NONSECURE <= offset < _SCS_NONSECURE + 0x1000 else offset
        if offset == _DWT + 4:
            self._cycle_start = self._instructions() - value
            return
        at = offset - _SCS
        if not 0 <= at < 0x1000:
            self._words[offset] = value
            return
        if 0x100 <= at < 0x300:
            self._set_bits(at, value)
        elif 0x400 <= at < 0x400 + self.interrupts:
            for n in range(4):
                self._priorities[EXTERNAL + at - 0x400 + n] = value >> 8 * n & 0xFF
        elif at == 0x010:
            self._systick_control = value & 7
            self._systick_start = self._instructions()
        elif at == 0x014:
            self._systick_reload = value & 0xFFFFFF
        elif at == 0x018:
            self._systick_start = self._instructions()
        elif at == 0xD04:
            for bit, number, sets in ((28, PENDSV, True), (27, PENDSV, False), (26, SYSTICK, True), (25, SYSTICK, False)):
                if value >> bit & 1:
                    (self.pending.add if sets else self.pending.discard)(number)
        elif at == 0xD08:
            self.vtor = value & ~0x7F
        elif at == 0xD0C:
            if value >> 16 == 0x05FA and value & 4:
                self._reset()
        elif at == 0xD14:
            self._words[offset] = value
            self.caches.is_enabled = bool(value >> 16 & 1) and self.cache_bytes > 0
        elif self.mpu.owns(at):
            self.mpu.write(at, value)
        elif 0xD18 <= at < 0xD24:
            for n in range(4):
                self._priorities[4 + at - 0xD18 + n] = value >> 8 * n & 0xFF
        elif 0xF50 <= at <= 0xF78:
            self._maintain(at, value)
        else:
            self._words[offset] = value
        if at < 0xD24:  # SysTick, NVIC, ICSR and priorities
            self._on_change()

    def _maintain(self, at: int, value: int) -> None:
        """Clean or invalidate the line that contains an address, or the whole cache after set/way operations on all lines."""
        if at in _BY_ADDRESS:
            clean, invalidate = _BY_ADDRESS[at]
            self.caches.operate(clean, invalidate, value & ~(self.line_bytes - 1))
        elif at in _BY_SET and self.cache_bytes:
            sets = self.cache_bytes // self.line_bytes // _WAYS
            set_index = value >> self.line_bytes.bit_length() - 1 & (1 << (sets - 1).bit_length()) - 1
            level = value >> 1 & 7  # 0 is level 1; the other bits are reserved
            if level or set_index >= sets:
                return
            lines = self._lines_by_operation.setdefault(at, set())
            lines.add((set_index, value >> 30))
            if len(lines) == sets * _WAYS:
                self._lines_by_operation.clear()
                self.caches.operate(*_BY_SET[at], None)

    def _bits(self, at: int) -> int:
        first = 32 * ((at & 0x7F) // 4)
        kind = at & 0x380
        if kind in (0x100, 0x180):
            numbers = self.enabled
        else:
            numbers = {n - EXTERNAL for n in (self.active if kind == 0x300 else self._pending_now())}
        return sum(1 << n - first for n in numbers if first <= n < first + 32)

    def _set_bits(self, at: int, value: int) -> None:
        first, kind = 32 * ((at & 0x7F) // 4), at & 0x380
        numbers = {first + bit for bit in range(32) if value >> bit & 1 and first + bit < self.interrupts}
        if kind == 0x100:
            self.enabled |= numbers
        elif kind == 0x180:
            self.enabled -= numbers
        elif kind == 0x200:
            self.pending |= {n + EXTERNAL for n in numbers}
        elif kind == 0x280:
            self.pending -= {n + EXTERNAL for n in numbers}

    # Exceptions.

    def _pending_now(self) -> set[int]:
        return self.pending | {EXTERNAL + line for line in self._lines()}

    def tick(self) -> None:
        """Pend SysTick's exception if it is due."""
        elapsed = self._instructions() - self._systick_start
        if self._systick_control & 1 and 0 < self._systick_reload < elapsed:  # a reload value of 0 stops the timer
            self._systick_start = self._instructions()
            if self._systick_control & 2:
                self.pending.add(SYSTICK)

    def systick_due(self) -> int | None:
        """Return the instruction count at SysTick's next interrupt, or None if no interrupt is scheduled."""
        if self._systick_control & 3 != 3 or not self._systick_reload:
            return None
        return self._systick_start + self._systick_reload + 1

    def next_exception(self, masked: bool, base_priority: int = 0) -> int | None:
        """Return the number of the exception to take now, or None if no exception can be taken.

        Args:
            masked: Whether PRIMASK or FAULTMASK is set.
        """
        if masked:
            return None
        current = min((self.priority(n) for n in self.active), default=_IDLE_PRIORITY)
        if base_priority:
            current = min(current, base_priority)
        ready = [n for n in self._pending_now() if n < EXTERNAL or n - EXTERNAL in self.enabled]
        best = min(ready, key=lambda n: (self.priority(n), n), default=None)
        return best if best is not None and self.priority(best) < current else None

    def priority(self, exception: int) -> int:
        """Return the priority of an exception, where 0 is the most urgent."""
        return self._priorities.get(exception, 0)

    def wakes(self) -> bool:
        """Return True if an enabled exception is pending. Even if masked, it wakes the core from WFI."""
        return any(n < EXTERNAL or n - EXTERNAL in self.enabled for n in self._pending_now())

    def enter(self, exception: int) -> None:
        self.pending.discard(exception)
        self.active.append(exception)

    def leave(self) -> int:
        """Leave the innermost exception. Return the number of the exception that continues, or 0 in thread mode."""
        self.active.pop()
        return self.active[-1] if self.active else 0


# Offsets in the SCS -> (cleans, invalidates): DCIMVAC, DCCMVAU, DCCMVAC, DCCIMVAC; DCISW, DCCSW, DCCISW.
_BY_ADDRESS = {0xF5C: (False, True), 0xF64: (True, False), 0xF68: (True, False), 0xF70: (True, True)}
_BY_SET = {0xF60: (False, True), 0xF6C: (True, False), 0xF74: (True, True)}
