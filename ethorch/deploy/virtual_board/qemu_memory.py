"""The memories of a board in QEMU: its test interface, and a guest that copies by it what is not mapped."""

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
    """QEMU's test interface: memory and interrupt lines. EmulatorError where it breaks off or refuses.

    Args:
        path: of its socket.
    """

    def __init__(self, path: str):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rb")

    def close(self) -> None:
        """Let go of QEMU."""
        self._lines.close()
        self._socket.close()

    def ask(self, line: str) -> str:
        """A command's answer, without its OK."""
        try:
            self._socket.sendall(line.encode() + b"\n")
            while True:
                answer = self._lines.readline().decode().strip()
                if answer.startswith("OK"):
                    return answer[3:]
                if not answer.startswith("IRQ"):
                    raise EmulatorError(f"QEMU's test interface answers {line[:40]!r} with {answer!r}; tested is QEMU 7.2.")
        except OSError as error:
            raise EmulatorError(f"QEMU's test interface broke off: {error}.") from None

    def read(self, address: int, size: int) -> bytes:
        """Memory."""
        return base64.b64decode(self.ask(f"b64read {address:#x} {size:#x}"))

    def write(self, address: int, content: bytes) -> None:
        """Memory."""
        self.ask(f"b64write {address:#x} {len(content):#x} {base64.b64encode(content).decode()}")

    def set_line(self, lines: str, number: int, raised: bool) -> None:
        """Raise or lower an interrupt line."""
        self.ask(f"set_irq_in {lines} {number} {int(raised)}")


class CopiedGuest(Guest):
    """Memories of which some are mapped, and the others copied from QEMU when somebody looks at them.

    Args:
        board: whose memories.
        mapped: by name.
        qtest: the way to the others.
    """

    def __init__(self, board: Board, mapped: dict[str, Bytes], qtest: Qtest):
        super().__init__(board, mapped)
        self._mapped, self._qtest = set(mapped), qtest

    def bytes_at(self, address: int, size: int) -> Bytes | None:
        """The bytes at an address, as QEMU has them now."""
        self.fetch(address, size)
        return super().bytes_at(address, size)

    def fetch(self, address: int, size: int) -> None:
        """Copy from QEMU what is not mapped."""
        found = self.find(address)
        if found is not None and size and found[0].memory.name not in self._mapped:
            block, offset = found
            size = min(size, block.bytes.size - offset)
            block.bytes[offset : offset + size] = np.frombuffer(self._qtest.read(address, size), np.uint8)

    def store(self, address: int, size: int) -> None:
        """Copy to QEMU what is not mapped."""
        found = self.find(address)
        if found is not None and size and found[0].memory.name not in self._mapped:
            block, offset = found
            self._qtest.write(address, block.bytes[offset : offset + size].tobytes())

    def before_run(self, reads: Sequence[tuple[int, int]], writes: Sequence[tuple[int, int]], exact: bool) -> None:
        """Copy what the NPU will read, and what lies between the bytes that it will write."""
        for start, end in (*reads, *writes):
            self.fetch(start, end - start)

    def after_run(self, writes: Sequence[tuple[int, int]], exact: bool) -> None:
        """Copy back what the NPU has written."""
        for start, end in writes:
            self.store(start, end - start)
