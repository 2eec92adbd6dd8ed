"""Armv8-M exceptions for unicorn, which has no interrupt controller: entry, stack frames and return."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ethorch.deploy.virtual_board.core import EXTERNAL, Core
from ethorch.deploy.virtual_board.guest import Guest
from ethorch.deploy.virtual_board.unicorn_cpu import Cpu

MOST_ENTRIES = 10_000  # maximum number of consecutive handler entries while the interrupted code makes no progress
_FRAME_WORDS, _SHORT_FRAME_WORDS = 26, 8  # R0-R3, R12, LR, PC, xPSR; the long frame adds S0-S15, FPSCR and a reserved word
_EXC_RETURN, _PROCESS_STACK, _TO_THREAD, _SHORT_FRAME = 0xFFFFFFE1, 4, 8, 16


class Exceptions:
    """A model of exception entry and return.

    Args:
        fail: Callback that ends the run with a fault: ``fail(id, text, pc)``.

    Attributes:
        entries: Number of handler entries since the interrupted code or an NPU made progress.
        is_deferred: Whether an exception waits for the end of an IT block.
    """

    def __init__(self, cpu: Cpu, core: Core, guest: Guest, fail: Callable[[str, str, int | None], None]) -> None:
        self._cpu, self._core, self._guest, self._fail = cpu, core, guest, fail
        self.entries = 0
        self.is_deferred = False
        self._left_at = -1  # instruction count at the last exception return

    def take(self) -> None:
        """Enter the handler of a pending exception if one can be taken now."""
        masked = bool(self._cpu.register("PRIMASK") & 1 or self._cpu.register("FAULTMASK") & 1)
        exception = self._core.next_exception(masked, self._cpu.register("BASEPRI"))
        self.is_deferred = exception is not None and bool(self._cpu.register("XPSR") & 0x0600FC00)
        if exception is None or self.is_deferred:
            return
        self.entries = self.entries + 1 if self._cpu.instructions == self._left_at else 1
        if self.entries > MOST_ENTRIES:
            name = f"interrupt {exception - EXTERNAL}" if exception >= EXTERNAL else f"exception {exception}"
            text = (
                f"The handler of {name} was entered {MOST_ENTRIES} times in succession, and the {name.split()[0]} is still pending."
            )
            self._fail("cpu.interrupt_storm", text, self._cpu.next_pc)
            return
        handler = self._guest.word(self._core.vtor + 4 * exception)
        if not handler or not handler & 1 or self._guest.find(handler & ~1) is None:
            what = "no memory" if handler is None else f"{handler:#010x}"
            text = f"The vector table at {self._core.vtor:#010x} has no valid handler for exception {exception}: {what}."
            self._fail("cpu.vector", text, self._cpu.next_pc)
            return
        self._enter(exception, handler)

    def _enter(self, exception: int, handler: int) -> None:
        stack = self._cpu.register("SP")
        aligned = (stack - 4 * _FRAME_WORDS) & ~7
        flags = self._cpu.register("XPSR") & 0xF80F0000 | (self._core.active[-1] if self._core.active else 0) | 1 << 24
        if aligned != stack - 4 * _FRAME_WORDS:
            flags |= 1 << 9
        words = [*(self._cpu.register(name) for name in ("R0", "R1", "R2", "R3", "R12", "LR")), self._cpu.next_pc, flags]
        words += [*(self._cpu.register(f"S{n}") for n in range(16)), self._cpu.register("FPSCR"), 0]
        place = self._guest.bytes_at(aligned, 4 * _FRAME_WORDS)
        if place is None:
            self._fail(
                "cpu.memory", f"An exception pushes its frame to {aligned:#010x}, where the board has no memory.", self._cpu.next_pc
            )
            return
        place[:] = np.array(words, "<u4").view(np.uint8)
        thread = not self._core.active
        on_process_stack = thread and self._cpu.register("CONTROL") & 2
        self._core.enter(exception)
        self._cpu.write("SP", aligned)
        self._cpu.write("LR", _EXC_RETURN | (_TO_THREAD if thread else 0) | (_PROCESS_STACK if on_process_stack else 0))
        self._cpu.write("IPSR", exception)  # selects the main stack for SP
        self._cpu.next_pc = handler & ~1

    def leave(self) -> None:
        """Pop the frame selected by the EXC_RETURN value in PC."""
        kind = self._cpu.next_pc
        stack = self._cpu.register("PSP" if kind & _PROCESS_STACK else "MSP")
        size = _SHORT_FRAME_WORDS if kind & _SHORT_FRAME else _FRAME_WORDS
        place = self._guest.bytes_at(stack, 4 * size)
        if place is None:
            text = f"An exception return pops its frame from {stack:#010x}, where the board has no memory."
            self._fail("cpu.memory", text, self._cpu.register("LR"))
            return
        words = [int(word) for word in place.view("<u4")]
        for name, value in zip(("R0", "R1", "R2", "R3", "R12", "LR"), words, strict=False):
            self._cpu.write(name, value)
        self._cpu.next_pc, flags = words[6] & ~1, words[7]
        if size == _FRAME_WORDS:
            for n in range(16):
                self._cpu.write(f"S{n}", words[8 + n])
            self._cpu.write("FPSCR", words[24])
        self._cpu.write("IPSR", self._core.leave())
        if not self._core.active:
            self._cpu.write("CONTROL", self._cpu.register("CONTROL") & ~2 | (2 if kind & _PROCESS_STACK else 0))
        self._cpu.write("SP", stack + 4 * size + (4 if flags >> 9 & 1 else 0))
        self._cpu.write("APSR", flags & 0xF80F0000)
        self._left_at = self._cpu.instructions
