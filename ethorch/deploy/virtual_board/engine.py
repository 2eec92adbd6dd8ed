"""A base class for the engines that run firmware: unicorn, QEMU and Arm's FVPs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from types import TracebackType
from typing import ClassVar, TypeVar

from ethorch.deploy.virtual_board.elf import Firmware
from ethorch.deploy.virtual_board.faults import Fault
from ethorch.deploy.virtual_board.guest import Guest
from ethorch.deploy.virtual_board.npu_device import Coherence, NpuDevice
from ethorch.deploy.virtual_board.outcome import End, Run
from ethorch.deploy.virtual_board.serial import Serial
from ethorch.deploy.virtual_board.settings import Settings
from ethorch.support.errors import EthorchError
from ethorch.targets.boards.description import Board

MOST_FAULTS, MOST_NOTES = 100, 100
_Self = TypeVar("_Self", bound="Engine")


class Engine(ABC):
    """An emulation of a board that runs firmware once.

    An engine is a context manager that releases the processes and files of the run. Subclasses implement ``execute``. Subclasses
    that simulate the NPU also implement ``pc`` and ``on_npu_start``, and can implement ``instructions``.

    Attributes:
        name: Key in ``runner.ENGINES``.
        readable: Memory that can be read after the run, or None.
        measured_cycles: NPU cycles printed by the firmware, or None if not measured.
        expected_cycles: Sum of ``settings.cycles`` if cycles are measured, or None.

    Raises:
        EmulatorError: The engine is not installed, or does not support the board or a setting.
        ElfError: The firmware does not fit the board.
    """

    name: ClassVar[str]

    def __init__(self, board: Board, firmware: Firmware, settings: Settings) -> None:
        self.board, self.firmware, self.settings = board, firmware, settings
        self.serial = Serial(board.uart.kind, settings.on_text)
        self.devices: tuple[NpuDevice, ...] = ()
        self.readable: Guest | None = None
        self.resources = ExitStack()
        self.measured_cycles: int | None = None
        self.expected_cycles: int | None = None
        self._faults: dict[tuple[str, str], Fault] = {}
        self._notes: dict[str, None] = {}
        self._started = 0.0

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.resources.close()

    # Implemented by each engine.

    @abstractmethod
    def execute(self) -> End:
        """Run the firmware until it ends or reaches a limit. Exceptions raised by the caller's ``on_text`` propagate."""

    @property
    def pc(self) -> int:
        """The address of the current instruction."""
        return 0

    @property
    def instructions(self) -> int | None:
        """The number of executed instructions, or None if instructions are not counted."""
        return None

    def on_npu_start(self, device: NpuDevice) -> None:
        """Handle the start of an NPU run. By default, finish the run immediately."""
        device.finish()

    # Shared by all engines.

    def run(self) -> Run:
        """Run the firmware and return its outcome."""
        self._started = time.perf_counter()
        end = self.execute()
        return Run(
            board=self.board.name,
            npu=", ".join(npu.name for _, npu in self.settings.npus),
            backend=self.name,
            text=self.serial.text,
            ended=end.how,
            exit_code=end.code,
            faults=tuple(self._faults.values()),
            instructions=self.instructions,
            inferences=tuple(sorted((i for d in self.devices for i in d.inferences), key=lambda i: i.started or 0)),
            seconds=time.perf_counter() - self._started,
            notes=tuple(self._notes),
            measured_cycles=self.measured_cycles,
            expected_cycles=self.expected_cycles,
            cpu_clock_hz=self.board.cpu.clock_hz,
            npu_clock_hz=self.settings.npus[0][0].clock_hz,
            _read=None if self.readable is None else self._read,
        )

    def report(self, id: str, text: str, pc: int | None = None) -> None:
        """Record a fault at ``pc``, by default the current instruction."""
        place = self.firmware.place(self.pc if pc is None else pc)
        if len(self._faults) < MOST_FAULTS:
            self._faults.setdefault((id, place), Fault(id, text, place, self.instructions))

    def note(self, text: str) -> None:
        """Record a limitation that affects the run, unless it is already recorded."""
        if len(self._notes) < MOST_NOTES:
            self._notes.setdefault(text)

    def seconds_left(self) -> float:
        """Return the seconds until the caller's timeout. The result is negative after the timeout."""
        return self._started + self.settings.timeout - time.perf_counter()

    def connect_npus(self, guest: Guest, coherence: Coherence) -> None:
        """Create the NPUs of the run.

        Args:
            coherence: Callbacks that check the CPU's cache or copy memory at each NPU run.
        """
        settings = self.settings
        self.devices = tuple(
            NpuDevice(self, npu, slot, guest, settings.sources, settings.cycles, settings.inject) for slot, npu in settings.npus
        )
        for device in self.devices:
            device.coherence = coherence

    def _read(self, address: int, size: int) -> bytes:
        assert self.readable is not None
        memory_bytes = self.readable.bytes_at(address, size)
        if memory_bytes is None:
            raise EthorchError(f"board {self.board.name} has no memory at {address:#010x}..{address + size:#010x}.")
        return memory_bytes.tobytes()
