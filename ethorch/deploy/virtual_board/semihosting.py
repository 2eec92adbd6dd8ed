"""Semihosting (BKPT 0xAB) with console output, exit and command line, but without file access."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ethorch.deploy.virtual_board.guest import Guest

# Arm's semihosting specification, release 3: operation numbers.
_OPEN, _CLOSE, _WRITEC, _WRITE0, _WRITE, _READ, _READC, _ISERROR, _ISTTY = 1, 2, 3, 4, 5, 6, 7, 8, 9
_FLEN, _CLOCK, _TIME, _ERRNO, _GET_CMDLINE, _HEAPINFO, _EXIT, _EXIT_EXTENDED, _ELAPSED, _TICKFREQ = (
    0x0C, 0x10, 0x11, 0x13, 0x15, 0x16, 0x18, 0x20, 0x30, 0x31,
)  # fmt: skip
_APPLICATION_EXIT = 0x20026
_FAILED = 0xFFFFFFFF
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Exit:
    """The firmware's exit code."""

    code: int


class Semihost:
    """The host's side of semihosting.

    Args:
        put: Callback for printed text.
        arguments: Command line of the firmware.
        instructions: Function that returns the number of executed instructions, from which clocks are computed.
    """

    def __init__(
        self, guest: Guest, put: Callable[[bytes], None], arguments: str, instructions: Callable[[], int], clock_hz: float
    ):
        self._guest, self._put, self._arguments = guest, put, arguments.encode()
        self._instructions, self._clock_hz = instructions, clock_hz

    def call(self, operation: int, parameter: int) -> int | Exit:
        """Execute an operation. Return the new value of R0, or an ``Exit`` if the program ends."""
        if operation == _EXIT:
            return Exit(0 if parameter == _APPLICATION_EXIT else 1)
        if operation == _EXIT_EXTENDED:
            reason, code = self._words(parameter, 2)
            return Exit(code if reason == _APPLICATION_EXIT else 1)
        if operation == _WRITEC:
            self._put(self._bytes(parameter, 1))
            return 0
        if operation == _WRITE0:
            self._put(self._guest.text_at(parameter))
            return 0
        if operation == _WRITE:
            _, address, length = self._words(parameter, 3)
            self._put(self._bytes(address, min(length, MOST_BYTES)))
            return 0
        if operation == _OPEN:
            address, _, length = self._words(parameter, 3)
            return 1 if self._bytes(address, min(length, 16)) == b":tt" else _FAILED
        if operation == _READ:
            return self._words(parameter, 3)[2]  # nothing was read: the end of the input
        if operation in (_CLOSE, _ISERROR, _ERRNO):
            return 0
        if operation == _ISTTY:
            return 1
        if operation == _CLOCK:
            return int(self._instructions() * 100 / self._clock_hz) & 0x7FFFFFFF
        if operation == _TIME:
            return int(time.time()) & 0xFFFFFFFF
        if operation == _ELAPSED:
            self._store(parameter, self._instructions().to_bytes(8, "little"))
            return 0
        if operation == _TICKFREQ:
            return int(self._clock_hz) & 0x7FFFFFFF
        if operation == _GET_CMDLINE:
            return self._command_line(parameter)
        if operation == _HEAPINFO:
            self._store(self._words(parameter, 1)[0], bytes(16))
            return 0
        return _FAILED

    def _command_line(self, parameter: int) -> int:
        address, room = self._words(parameter, 2)
        if len(self._arguments) + 1 > room:
            return _FAILED
        self._store(address, self._arguments + b"\0")
        self._store(parameter + 4, len(self._arguments).to_bytes(4, "little"))
        return 0

    def _words(self, address: int, count: int) -> list[int]:
        return [self._guest.word(address + 4 * n) or 0 for n in range(count)]

    def _bytes(self, address: int, size: int) -> bytes:
        parameter_bytes = self._guest.bytes_at(address, size)
        return b"" if parameter_bytes is None else parameter_bytes.tobytes()

    def _store(self, address: int, content: bytes) -> None:
        place = self._guest.bytes_at(address, len(content))
        if place is not None:
            place[:] = memoryview(content)
