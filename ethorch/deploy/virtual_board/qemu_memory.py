"""The memories of a board in QEMU."""

from __future__ import annotations

import base64
import socket
from collections.abc import Sequence

import numpy as np

from ethorch.deploy.virtual_board.guest import Guest
from ethorch.npu.arrays import Bytes
from ethorch.support.errors import EmulatorError
from ethorch.targets.boards.description import Board


class Qtest:
    """A connection to QEMU's test interface for memory and interrupts. It raises EmulatorError if the connection fails."""

    def __init__(self, path: str):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rb")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def ask(self, line: str) -> str:
        try:
            self._socket.sendall(line.encode() + b"\n")
            while True:
                answer = self._lines.readline().decode().strip()
                if answer.startswith("OK"):
                    return answer[3:]
                if not answer.startswith("IRQ"):
                    raise EmulatorError(
                        f"QEMU's qtest interface returned {answer!r} for command {line[:40]!r}. Use QEMU 7.2, the tested version."
                    )
        except OSError as error:
            raise EmulatorError(f"the connection to QEMU's qtest interface was lost: {error}.") from None

    def read(self, address: int, size: int) -> bytes:
        return base64.b64decode(self.ask(f"b64read {address:#x} {size:#x}"))

    def write(self, address: int, content: bytes) -> None:
        self.ask(f"b64write {address:#x} {len(content):#x} {base64.b64encode(content).decode()}")

    def set_line(self, lines: str, number: int, raised: bool) -> None:
        self.ask(f"set_irq_in {lines} {number} {int(raised)}")


class CopiedGuest(Guest):
    """The memories of a board. Unmapped memories are copied from QEMU on access."""

    def __init__(self, board: Board, mapped: dict[str, Bytes], qtest: Qtest):
        super().__init__(board, mapped)
        self._mapped, self._qtest = set(mapped), qtest

    def bytes_at(self, address: int, size: int) -> Bytes | None:
        """Return QEMU's current bytes in an address range."""
        self.fetch(address, size)
        return super().bytes_at(address, size)

    def fetch(self, address: int, size: int) -> None:
        """Copy an address range from QEMU, unless its memory is mapped."""
        location = self.find(address)
        if location is not None and size and location[0].memory.name not in self._mapped:
            block, offset = location
            size = min(size, block.bytes.size - offset)
            block.bytes[offset : offset + size] = np.frombuffer(self._qtest.read(address, size), np.uint8)

    def store(self, address: int, size: int) -> None:
        """Copy an address range to QEMU, unless its memory is mapped."""
        location = self.find(address)
        if location is not None and size and location[0].memory.name not in self._mapped:
            block, offset = location
            self._qtest.write(address, block.bytes[offset : offset + size].tobytes())

    def before_run(self, reads: Sequence[tuple[int, int]], writes: Sequence[tuple[int, int]], exact: bool) -> None:
        """Copy the accessed ranges from QEMU. Written ranges are included because they may have gaps."""
        for start, end in (*reads, *writes):
            self.fetch(start, end - start)

    def after_run(self, writes: Sequence[tuple[int, int]], exact: bool) -> None:
        for start, end in writes:
            self.store(start, end - start)
