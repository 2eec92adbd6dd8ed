"""The board in QEMU: a Cortex-M55 with Helium, NVIC and caches' registers, and our NPU behind an address where QEMU has nothing.

A stock qemu-system-arm is driven from outside: a watchpoint of its gdbstub stops it at every access to the NPU, which is done here
(``thumb`` decodes the instruction); the NPU's interrupt is raised through its test interface; the board's DRAM is a file that both
sides map, its other memories are copied at each run of the NPU. Tested with QEMU 7.2.

What differs from unicorn: a run of the NPU is over before the CPU goes on, so that writes while it runs cannot be seen; caches are
not looked at; instructions are not counted.
"""

from __future__ import annotations

import base64
import mmap
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ethorch.deploy.virtual_board.elf import Firmware
from ethorch.deploy.virtual_board.faults import Fault
from ethorch.deploy.virtual_board.gdb import Gdb, Stop, host_call
from ethorch.deploy.virtual_board.guest import Guest
from ethorch.deploy.virtual_board.npu_device import NpuDevice
from ethorch.deploy.virtual_board.npu_registers import SPAN
from ethorch.deploy.virtual_board.outcome import Run
from ethorch.deploy.virtual_board.serial import Serial
from ethorch.deploy.virtual_board.settings import Settings
from ethorch.deploy.virtual_board.thumb import after_it, decode
from ethorch.npu.arrays import Bytes
from ethorch.support.errors import ElfError, EmulatorError
from ethorch.targets.boards.description import Board

COMMAND = "qemu-system-arm"
_START_SECONDS = 20.0
_SP, _PC, _XPSR = 13, 15, 25
MOST_FAULTS = 100


@dataclass(frozen=True)
class Machine:
    """What QEMU calls the parts of a machine.

    Attributes:
        ram_base, ram_bytes: the memory that a file can stand for.
        interrupts: object and name of the lines that devices outside raise.
        first_interrupt: the NVIC's number of the first of them.
    """

    ram_base: int
    ram_bytes: int
    interrupts: str
    first_interrupt: int


#: QEMU's machine -> its parts (hw/arm/mps2-tz.c and hw/arm/armsse.c of QEMU 7.2).
MACHINES = {"mps3-an547": Machine(0x60000000, 1 << 31, "/machine/iotkit EXP_IRQ", 32)}


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


class QemuBoard:
    """A QEMU process that is the board; a context: the process is gone after it, whatever happens.

    Raises:
        EmulatorError: QEMU is not installed, or has no such machine, or is asked for what it cannot do.
        ElfError: the firmware does not fit the board.
    """

    def __init__(self, board: Board, firmware: Firmware, settings: Settings):
        if board.qemu not in MACHINES:
            said = f"QEMU's machine {board.qemu!r}" if board.qemu else "no machine of QEMU's"
            raise EmulatorError(
                f"board {board.name} is {said}; known is {', '.join(MACHINES)}. backend='unicorn' runs every board."
            )
        if settings.max_instructions is not None:
            raise EmulatorError("QEMU counts no instructions; max_instructions is for backend='unicorn'.")
        path = shutil.which(COMMAND)
        if path is None:
            raise EmulatorError(f"{COMMAND} is not on PATH: apt-get install {COMMAND}. backend='unicorn' needs none.")
        self.board, self.firmware, self.settings, self.machine = board, firmware, settings, MACHINES[board.qemu]
        self._command = path
        self._pc = 0
        self._faults: dict[tuple[str, str], Fault] = {}
        self._begun: list[NpuDevice] = []
        self._raised: dict[int, bool] = {}
        self._heard: list[socket.socket] = []

    def __enter__(self) -> QemuBoard:
        self._folder = tempfile.TemporaryDirectory(prefix="ethorch-qemu-")
        try:
            self._start(Path(self._folder.name))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in ("gdb", "qtest"):
            if (held := getattr(self, name, None)) is not None:
                held.close()
        for heard in self._heard:
            heard.close()
        process = getattr(self, "_process", None)
        if process is not None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stderr.close()
        self._folder.cleanup()

    # Starting.

    def _start(self, folder: Path) -> None:
        ram = folder / "ram"
        with open(ram, "wb") as file:
            file.truncate(self.machine.ram_bytes)
        sockets = {name: str(folder / name) for name in ("gdb", "qtest", "uart", "console")}
        words = [
            self._command,
            "-M",
            f"{self.board.qemu},memory-backend=ram",
            "-display",
            "none",
            "-monitor",
            "none",
            "-S",
            "-nodefaults",
        ]
        words += ["-object", f"memory-backend-file,id=ram,size={self.machine.ram_bytes},mem-path={ram},share=on"]
        for name, path in sockets.items():
            words += ["-chardev", f"socket,id={name},path={path},server=on,wait=off"]
        words += ["-gdb", "chardev:gdb", "-qtest", "chardev:qtest", "-qtest-log", os.devnull, "-serial", "chardev:uart"]
        semihosting = f"enable=on,target=gdb,chardev=console,arg={_escaped(self.settings.arguments)}"
        words += ["-semihosting-config", semihosting, "-kernel", str(self.firmware.path.resolve())]
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=folder, start_new_session=True
        )
        self._wait_for(sockets)
        self.qtest = Qtest(sockets["qtest"])
        self.gdb = Gdb(sockets["gdb"])
        for name in ("uart", "console"):  # what the firmware prints on the UART, and by semihosting
            heard = socket.socket(socket.AF_UNIX)
            self._heard.append(heard)
            heard.connect(sockets[name])
            heard.setblocking(False)
        self.serial = Serial(self.board.uart.kind, self.settings.on_text)
        self.guest = CopiedGuest(self.board, self._map(ram), self.qtest)
        settings = self.settings
        self.devices = [
            NpuDevice(self, npu, slot, self.guest, settings.sources, settings.cycles, settings.inject)
            for slot, npu in settings.npus
        ]
        for device in self.devices:
            device.coherence = self.guest
        self._load()

    def _wait_for(self, sockets: dict[str, str]) -> None:
        end = time.monotonic() + _START_SECONDS
        while not all(os.path.exists(path) for path in sockets.values()):
            if self._process.poll() is not None or time.monotonic() > end:
                if self._process.poll() is None:
                    self._process.kill()
                assert self._process.stderr is not None
                said = self._process.stderr.read().decode(errors="replace").strip()
                raise EmulatorError(f"QEMU does not start: {said[-1000:] or 'it says nothing'}.")
            time.sleep(0.005)

    def _map(self, ram: Path) -> dict[str, Bytes]:
        """The board's memories that the file holds."""
        with open(ram, "r+b") as file:
            whole = np.frombuffer(mmap.mmap(file.fileno(), self.machine.ram_bytes), np.uint8)
        first, size = self.machine.ram_base, self.machine.ram_bytes
        return {
            memory.name: whole[memory.base - first : memory.base - first + memory.size_bytes]
            for memory in self.board.memories
            if first <= memory.base and memory.base + memory.size_bytes <= first + size
        }

    def _load(self) -> None:
        """Data into memory, the CPU to its entry, watchpoints onto the NPU."""
        Guest(self.board).load(self.firmware, self.settings.data)  # refuses what does not fit
        for address, content in self.settings.data.items():
            place = Guest.bytes_at(self.guest, address, len(content))
            assert place is not None
            place[:] = np.frombuffer(content, np.uint8)
            self.guest.store(address, len(content))
        table = self._vector_table()
        self.gdb.set_register(_SP, int.from_bytes(table[:4], "little") & ~3)
        self.gdb.set_register(_PC, self.firmware.entry)
        for device in self.devices:
            for base in (device.slot.base, *device.slot.aliases):
                self.gdb.watch(base, SPAN)

    def _vector_table(self) -> bytes:
        for segment in self.firmware.segments:
            if int.from_bytes(segment.data[4:8], "little") == self.firmware.entry | 1:
                return segment.data
        raise ElfError(f"{self.firmware.path}: no segment begins with a vector table whose second word is the entry.")

    # What the NPU wants of a session.

    @property
    def instructions(self) -> int | None:
        """Nobody counts."""
        return None

    def report(self, id: str, text: str) -> None:
        """Note a fault at the instruction that is being executed."""
        place = self.firmware.place(self._pc)
        if len(self._faults) < MOST_FAULTS:
            self._faults.setdefault((id, place), Fault(id, text, place))

    def started(self, device: NpuDevice) -> None:
        """A run of the NPU has begun; it is finished when the access that began it is done."""
        self._begun.append(device)

    # Running.

    def run(self) -> Run:
        """Run to the end."""
        started = time.perf_counter()
        ended, code = self._until(started + self.settings.timeout)
        slot = self.settings.npus[0][0]
        return Run(
            board=self.board.name,
            npu=", ".join(device.npu.name for device in self.devices),
            backend="qemu",
            text=self.serial.text,
            ended=ended,
            exit_code=code,
            faults=tuple(self._faults.values()),
            inferences=tuple(inference for device in self.devices for inference in device.inferences),
            seconds=time.perf_counter() - started,
            cpu_clock_hz=self.board.cpu.clock_hz,
            npu_clock_hz=slot.clock_hz,
        )

    def _until(self, deadline: float) -> tuple[str, int | None]:
        """Let QEMU run, deal with its stops; returns how it ended and with what code."""
        self.gdb.send("c")
        while True:
            left = deadline - time.perf_counter()
            if left <= 0:
                return "timeout", None
            waited: list[Any] = [self.gdb, *self._heard]
            ready, _, _ = select.select(waited, [], [], min(left, 0.5))
            self._hear()
            if self.serial.ended:
                return "eot", None
            if self.gdb in ready and (stop := self.gdb.poll()) is not None:
                end = self._on_stop(stop)
                if end is not None:
                    self._hear_out()
                    return ("eot", None) if self.serial.ended else end

    def _hear(self) -> None:
        """Take what has been printed."""
        for heard in list(self._heard):
            try:
                while data := heard.recv(1 << 16):
                    self.serial.put(data)
                self._heard.remove(heard)  # QEMU has ended
                heard.close()
            except BlockingIOError:
                pass

    def _hear_out(self) -> None:
        """Take what is left of it from a QEMU that ends."""
        end = time.monotonic() + 1
        while self._heard and time.monotonic() < end:
            select.select(self._heard, [], [], 0.1)
            self._hear()

    def _on_stop(self, stop: Stop) -> tuple[str, int | None] | None:
        if stop.kind == "W":
            return "exit", int(stop.text[1:3] or "0", 16)
        if stop.kind == "X":
            return "fault", None
        if stop.kind == "F":
            self._hear()
            host_call(self.gdb, stop.text, self.serial.put)
            return None
        if "watch:" not in stop.text:
            self._pc = self.gdb.registers()[_PC]
            self.report("cpu.exception", f"QEMU stops with {stop.text[:40]!r}.")
            return "fault", None
        self._access()
        self.gdb.send("c")
        return None

    def _access(self) -> None:
        """Do the load or store that QEMU stopped before."""
        registers = self.gdb.registers()
        self._pc = registers[_PC]
        code = self.gdb.read(self._pc, 4)
        access = decode(int.from_bytes(code[:2], "little"), int.from_bytes(code[2:], "little"))
        if access is None:
            place = self.firmware.place(self._pc)
            raise EmulatorError(
                f"the firmware accesses the NPU by instruction {code.hex()} at {place}, which is no plain load or store; access "
                "its registers through a volatile uint32_t."
            )
        address = access.address(registers)
        for number, register in enumerate(access.registers):
            self._one(address + number * access.size, access, register, registers)
        back = access.written_back(registers)
        if back is not None:
            self.gdb.set_register(access.base, back)
        self.gdb.set_register(_PC, self._pc + access.length)
        flags = self.gdb.register(_XPSR)
        if after_it(flags) != flags:
            self.gdb.set_register(_XPSR, after_it(flags))
        self._finish()

    def _one(self, address: int, access: Any, register: int, registers: list[int]) -> None:
        for device in self.devices:
            for base in (device.slot.base, *device.slot.aliases):
                if base <= address < base + SPAN:
                    if access.loads:
                        self.gdb.set_register(register, access.loaded(device.read(address - base, access.size)))
                    else:
                        device.write(address - base, registers[register] & (1 << 8 * access.size) - 1, access.size)
                    return

    def _finish(self) -> None:
        """Run what has begun, and set the interrupt lines."""
        for device in self._begun:
            device.finish()
        self._begun.clear()
        for device in self.devices:
            line = device.slot.interrupt - self.machine.first_interrupt
            if self._raised.get(line, False) != device.irq:
                self._raised[line] = device.irq
                self.qtest.set_line(self.machine.interrupts, line, device.irq)


def _escaped(text: str) -> str:
    """A text inside QEMU's list of options, where a comma is doubled."""
    return text.replace(",", ",,")


def run(board: Board, firmware: Firmware, settings: Settings) -> Run:
    """Run a firmware in QEMU; errors as of QemuBoard."""
    with QemuBoard(board, firmware, settings) as qemu:
        return qemu.run()
