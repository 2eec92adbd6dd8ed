"""A QEMU process with its sockets and the file that backs the board's DRAM."""

from __future__ import annotations

import mmap
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ethorch.deploy.virtual_board.gdb import Gdb
from ethorch.deploy.virtual_board.qemu_memory import Qtest
from ethorch.npu.arrays import Bytes
from ethorch.support.errors import EmulatorError
from ethorch.targets.boards.description import Board

COMMAND = "qemu-system-arm"
_START_SECONDS = 20.0


@dataclass(frozen=True)
class Machine:
    """A QEMU machine.

    Attributes:
        ram_base, ram_bytes: Address and size of the memory that can be file-backed.
        interrupts: QEMU object, and name of its interrupt lines for external devices.
        first_interrupt: NVIC number of the first line.
    """

    ram_base: int
    ram_bytes: int
    interrupts: str
    first_interrupt: int


#: Name of a QEMU machine -> description. Source: hw/arm/mps2-tz.c and hw/arm/armsse.c in QEMU 7.2.
MACHINES = {"mps3-an547": Machine(0x60000000, 1 << 31, "/machine/iotkit EXP_IRQ", 32)}


def check_machine(board: Board) -> None:
    """Raise EmulatorError unless QEMU has a machine for the board."""
    if board.qemu not in MACHINES:
        raise EmulatorError(
            f"board {board.name}: expected qemu to be one of {', '.join(MACHINES)}, got {board.qemu or 'none'}. Use "
            "backend='unicorn', which supports every board."
        )


def find() -> str:
    path = shutil.which(COMMAND)
    if path is None:
        raise EmulatorError(f"{COMMAND} is not on PATH. Install it (apt-get install {COMMAND}), or use backend='unicorn'.")
    return path


class QemuProcess:
    """A QEMU process, stopped at the firmware's first instruction.

    Args:
        command: Path of QEMU.
        kernel: Path of the firmware.
        arguments: Command line of the firmware.

    Raises:
        EmulatorError: QEMU does not start.
    """

    def __init__(self, command: str, board: Board, kernel: Path, arguments: str) -> None:
        self._machine = MACHINES[board.qemu]
        self._heard: list[socket.socket] = []
        self._folder = tempfile.TemporaryDirectory(prefix="ethorch-qemu-")
        try:
            self._start(Path(self._folder.name), command, board.qemu, kernel, arguments)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for name in ("gdb", "qtest"):
            if (connection := getattr(self, name, None)) is not None:
                connection.close()
        for heard in self._heard:
            heard.close()
        process = getattr(self, "_process", None)
        if process is not None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stderr.close()
        self._folder.cleanup()

    def _start(self, folder: Path, command: str, machine: str, kernel: Path, arguments: str) -> None:
        size = self._machine.ram_bytes
        self._ram = folder / "ram"
        with open(self._ram, "wb") as file:
            file.truncate(size)
        sockets = {name: str(folder / name) for name in ("gdb", "qtest", "uart", "console")}
        words = [command, "-M", f"{machine},memory-backend=ram", "-display", "none", "-monitor", "none", "-S", "-nodefaults"]
        words += ["-object", f"memory-backend-file,id=ram,size={size},mem-path={self._ram},share=on"]
        for name, path in sockets.items():
            words += ["-chardev", f"socket,id={name},path={path},server=on,wait=off"]
        words += ["-gdb", "chardev:gdb", "-qtest", "chardev:qtest", "-qtest-log", os.devnull, "-serial", "chardev:uart"]
        semihosting = f"enable=on,target=gdb,chardev=console,arg={_escape(arguments)}"
        words += ["-semihosting-config", semihosting, "-kernel", str(kernel)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=folder, start_new_session=True
        )
        self._wait_for(sockets)
        self.qtest = Qtest(sockets["qtest"])
        self.gdb = Gdb(sockets["gdb"])
        for name in ("uart", "console"):  # UART and semihosting output
            heard = socket.socket(socket.AF_UNIX)
            self._heard.append(heard)
            heard.connect(sockets[name])
            heard.setblocking(False)

    def _wait_for(self, sockets: dict[str, str]) -> None:
        end = time.monotonic() + _START_SECONDS
        while not all(os.path.exists(path) for path in sockets.values()):
            if self._process.poll() is not None or time.monotonic() > end:
                if self._process.poll() is None:
                    self._process.kill()
                assert self._process.stderr is not None
                error_text = self._process.stderr.read().decode(errors="replace").strip()
                raise EmulatorError(f"cannot start QEMU: {error_text[-1000:] or 'it printed no error message'}.")
            time.sleep(0.005)

    def map_memories(self, board: Board) -> dict[str, Bytes]:
        """Map the file that backs QEMU's RAM. Return the board's memories in the file, keyed by name."""
        first, size = self._machine.ram_base, self._machine.ram_bytes
        with open(self._ram, "r+b") as file:
            mapped_bytes = np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
        return {
            memory.name: mapped_bytes[memory.base - first : memory.base - first + memory.size_bytes]
            for memory in board.memories
            if first <= memory.base and memory.base + memory.size_bytes <= first + size
        }

    def wait(self, seconds: float, put: Callable[[bytes], None]) -> bool:
        """Wait for data from the gdbstub or for printed text, with a timeout. Return True if the gdbstub sent data."""
        waited: list[Gdb | socket.socket] = [self.gdb, *self._heard]
        ready, _, _ = select.select(waited, [], [], seconds)
        self.hear(put)
        return self.gdb in ready

    def hear(self, put: Callable[[bytes], None]) -> None:
        """Pass received text to the callback."""
        for heard in list(self._heard):
            try:
                while data := heard.recv(1 << 16):
                    put(data)
                self._heard.remove(heard)  # QEMU has ended
                heard.close()
            except BlockingIOError:
                pass

    def hear_out(self, put: Callable[[bytes], None]) -> None:
        """Pass the remaining text of an exiting QEMU process to the callback."""
        end = time.monotonic() + 1
        while self._heard and time.monotonic() < end:
            select.select(self._heard, [], [], 0.1)
            self.hear(put)


def _escape(text: str) -> str:
    return text.replace(",", ",,")  # required by QEMU's option lists
