"""A client for the subset of GDB's remote protocol that QEMU requires."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from ethorch.support.errors import EmulatorError

CHUNK = 1024  # bytes of memory in one request; QEMU's packets end at 4096 characters
_SECONDS = 30.0  # timeout of a request


@dataclass(frozen=True)
class Stop:
    """A stop reason: ``T`` or ``S`` for a signal, ``W`` or ``X`` for the end of the target, ``F`` for a host call."""

    kind: str
    text: str


class Gdb:
    """A connection to the socket of a gdbstub. It raises EmulatorError if the connection is lost or a reply is unknown."""

    def __init__(self, path: str):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_SECONDS)
        self._socket.connect(path)
        self._buffer = bytearray()
        supported = self.ask("qSupported:multiprocess-;swbreak+;hwbreak+;xmlRegisters=arm")
        if "qXfer:features:read+" in supported:
            self.ask("qXfer:features:read:target.xml:0,ffb")  # required by the stub before registers can be set

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def ask(self, packet: str) -> str:
        """Send a request and return the reply."""
        self.send(packet)
        return self._receive(time.monotonic() + _SECONDS)

    def send(self, packet: str) -> None:
        """Send a packet without waiting for a reply."""
        data = packet.encode()
        self._write(b"$" + data + b"#%02x" % (sum(data) & 0xFF))

    def interrupt(self) -> None:
        self._write(b"\x03")

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise EmulatorError(f"the connection to QEMU's GDB stub was lost: {error}.") from None

    def poll(self) -> Stop | None:
        """Return the stop reason if one was received, otherwise None. The socket must be readable."""
        self._fill()
        packet = self._packet()
        return None if packet is None else Stop(packet[:1], packet)

    def _receive(self, deadline: float) -> str:
        while True:
            packet = self._packet()
            if packet is not None:
                return packet
            if time.monotonic() > deadline:
                raise EmulatorError(f"QEMU's GDB stub did not respond within {_SECONDS:g} seconds.")
            self._fill()

    def _fill(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            return
        except OSError as error:
            raise EmulatorError(f"the connection to QEMU's GDB stub was lost: {error}.") from None
        if not data:
            raise EmulatorError("QEMU exited and closed the connection to its GDB stub.")
        self._buffer += data

    def _packet(self) -> str | None:
        """Return the next packet, or None if it is incomplete. A packet that reports the target's end is not acknowledged."""
        start, end = self._buffer.find(b"$"), self._buffer.find(b"#")
        if start < 0 or end < 0 or len(self._buffer) < end + 3:
            return None
        packet = self._buffer[start + 1 : end].decode(errors="replace")
        del self._buffer[: end + 3]
        if packet[:1] not in ("W", "X"):
            self._write(b"+")
        return packet

    # Registers and memory.

    def registers(self) -> list[int]:
        text = self._right(self.ask("g"), "g")
        return [int.from_bytes(bytes.fromhex(text[8 * n : 8 * n + 8]), "little") for n in range(16)]

    def register(self, number: int) -> int:
        """Read a register by number, e.g. 25 for XPSR."""
        return int.from_bytes(bytes.fromhex(self._right(self.ask(f"p{number:x}"), "p")), "little")

    def set_register(self, number: int, value: int) -> None:
        self._right(self.ask(f"P{number:x}={value.to_bytes(4, 'little').hex()}"), "P")

    def read(self, address: int, size: int) -> bytes:
        parts = []
        for at in range(0, size, CHUNK):
            parts.append(bytes.fromhex(self._right(self.ask(f"m{address + at:x},{min(CHUNK, size - at):x}"), "m")))
        return b"".join(parts)

    def write(self, address: int, content: bytes) -> None:
        for at in range(0, len(content), CHUNK):
            piece = content[at : at + CHUNK]
            self._right(self.ask(f"M{address + at:x},{len(piece):x}:{piece.hex()}"), "M")

    def watch(self, address: int, size: int) -> None:
        """Stop the CPU at every access to an address range."""
        self._right(self.ask(f"Z4,{address:x},{size:x}"), "Z4")

    def _right(self, answer: str, request: str) -> str:
        if not answer or (answer[0] == "E" and len(answer) == 3):
            raise EmulatorError(f"QEMU's GDB stub returned {answer!r} for packet {request!r}. Use QEMU 7.2, the tested version.")
        return answer


Putter = Callable[[bytes], None]


def host_call(gdb: Gdb, text: str, put: Putter) -> None:
    """Execute a semihosting call forwarded by QEMU. Only console output is supported."""
    name, *arguments = text[1:].split(",")
    answer = "F-1,9"
    if name == "write" and int(arguments[0], 16) in (1, 2):
        size = int(arguments[2], 16)
        put(gdb.read(int(arguments[1], 16), min(size, 1 << 20)))
        answer = f"F{size:x}"
    elif name in ("isatty", "close"):
        answer = "F1" if name == "isatty" else "F0"
    elif name == "open":
        pointer, length = arguments[0].split("/")
        argument = gdb.read(int(pointer, 16), min(int(length, 16), 16)).rstrip(b"\0")
        answer = "F1" if argument == b":tt" else "F-1,2"
    gdb.send(answer)
